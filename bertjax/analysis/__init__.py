"""Look inside any BERT: attention patterns, knowledge by layer, and masked heads or neurons.

    from bertjax import analysis
    result = analysis.patterns("runs/tiny", ["The king is dead.", "Long live the king."])
    result.numbers, result.arrays["shares"]

A `Subject` is a model to analyze, a `Material` the texts to analyze it on, and a `Part` turns both into a `Result`.
Each part is also a function in this module. `bertjax analyze` writes all parts as one page.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bertjax.analysis.parts import PARTS

if TYPE_CHECKING:
    from bertjax.analysis.part import Result


def run(part: str, models, texts: Sequence[str] = (), *, corpus: str = "", labeled: Sequence[str] = (), **options):
    """Run one part of the analysis and return its result.

    Args:
      part: name of the part, such as `patterns`.
      models: one model or several: names as on the command line, exports in memory, or subjects.
      texts: sentences to analyze it on.
      corpus: corpus to analyze it on.
      labeled: labeled files to analyze it on, as in `--labeled`.
      options: `examples`, the limit per corpus or file; `trust_code` and `task`, see `bertjax.predictor`.

    Raises:
      UserError: the part is unknown, a model lacks what it needs, or a text cannot be read.
    """
    # Imported on first use: `from bertjax import analysis` stays fast and does not load all parts.
    from bertjax.analysis import running

    return running.run_part(part, models, texts, corpus=corpus, labeled=labeled, **options)


def __getattr__(part: str) -> "Callable[..., Result]":
    """Return the function of a part; its arguments are those of `run` after the first."""
    if part not in PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {part!r}")
    return functools.partial(run, part)
