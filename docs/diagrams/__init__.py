"""The figures of the pages: concepts drawn from the code, results from the committed lines of benchmarks.

    python -m docs.diagrams

writes `docs/concepts/*.svg` and `docs/results/*.svg`. `tests/test_diagrams.py` compares the files with what this
writes, so a figure cannot keep a name that the code no longer has.
"""

from collections.abc import Callable
from pathlib import Path

from docs.diagrams import data, model, results, run
from docs.diagrams.canvas import Canvas
from docs.diagrams.tales import Tales, tales

DOCS = Path(__file__).parents[1]
# {page: what draws its figure}
FIGURES: dict[str, Callable[[Tales], Canvas]] = {
    "concepts/attention": model.attention,
    "concepts/determinism": data.determinism,
    "concepts/masking": data.masking,
    "concepts/objective_contract": run.objective_contract,
    "concepts/packing": data.packing,
    "concepts/saving": run.saving,
    "concepts/sharding": model.sharding,
    "concepts/taps": model.taps,
    "results/compression": results.compression,
    "results/inside": results.inside,
    "results/inside_korean": results.inside_korean,
    "results/inside_training": results.inside_training,
}


def figures() -> dict[str, Canvas]:
    """Return {page: its figure}."""
    with tales() as texts:
        return {page: draw(texts) for page, draw in FIGURES.items()}


def path_of(page: str) -> Path:
    """Return the file of a page's figure."""
    return DOCS / f"{page}.svg"
