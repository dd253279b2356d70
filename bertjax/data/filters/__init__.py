"""Document filters that `data.filters` applies while a corpus is prepared: keep a document, rewrite it, or drop it.

The registry lists them; name a filter from outside bertjax as `module:Class`.
"""

import dataclasses
from typing import Any

from bertjax.config.registry import Kind, Union
from bertjax.data.sources import Document
from bertjax.runtime.setting import check


@dataclasses.dataclass(frozen=True)
class Filter(Kind):
    """A rule that looks at one document at a time; a subclass's fields are its settings.

    Filters are pickled to worker processes, so the answer for a document must not depend on order or process. A store's
    identity covers filter settings but not filter code: give your own filter a field `version`, and raise it when the
    rule changes.
    """

    def __post_init__(self):
        check(self, of=f" of the filter {self.kind!r}")

    def rewrite(self, text: str) -> tuple[str, int]:
        """Return the text to use instead, and how many changes were made. Runs before `keep`."""
        return text, 0

    def keep(self, document: Document) -> str | None:
        """Return None to keep a document, else the reason to drop it.

        Reports count documents by reason, so a reason names the rule, not the document: `fewer than 50 words`.
        """
        return None

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the filter's answers, as JSON values: settings, and digests of their files.

        Raises:
          UserError: such a file cannot be read.
        """
        return dataclasses.asdict(self)


FILTERS = Union(
    "data.filters.*",
    Filter,
    default="length",
    kinds={
        "length": "bertjax.data.filters.rules:Length",
        "gopher_quality": "bertjax.data.filters.rules:GopherQuality",
        "gopher_repetition": "bertjax.data.filters.rules:GopherRepetition",
        "c4": "bertjax.data.filters.rules:C4",
        "scripts": "bertjax.data.filters.rules:Scripts",
        "personal": "bertjax.data.filters.rules:Personal",
        "decontamination": "bertjax.data.filters.rules:Decontamination",
    },
)
