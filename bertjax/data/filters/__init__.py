"""Document filters, one per file, that `data.filters` applies while a corpus is prepared.

The registry lists them; name a filter from outside bertjax as `module:Class`.
"""

from bertjax.config.registry import Union
from bertjax.data.filters.base import Filter

FILTERS = Union(
    "data.filters.*",
    Filter,
    default="length",
    kinds={
        "length": "bertjax.data.filters.length:Length",
        "gopher_quality": "bertjax.data.filters.gopher:GopherQuality",
        "gopher_repetition": "bertjax.data.filters.gopher:GopherRepetition",
        "c4": "bertjax.data.filters.c4:C4",
        "scripts": "bertjax.data.filters.scripts:Scripts",
        "personal": "bertjax.data.filters.personal:Personal",
        "decontamination": "bertjax.data.filters.decontamination:Decontamination",
    },
)
