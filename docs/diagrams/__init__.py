"""The figures of the concept pages, drawn from the code: names, rows, masks and splits are what it computes.

    python -m docs.diagrams

writes `docs/concepts/*.svg`. `tests/test_diagrams.py` compares the files with what this writes, so a figure cannot keep
a name that the code no longer has.
"""

from collections.abc import Callable
from pathlib import Path

from docs.diagrams import data, model, run
from docs.diagrams.canvas import Canvas
from docs.diagrams.tales import Tales, tales

FOLDER = Path(__file__).parents[1] / "concepts"
# {name of a concept page: what draws its figure}
FIGURES: dict[str, Callable[[Tales], Canvas]] = {
    "attention": model.attention,
    "determinism": data.determinism,
    "masking": data.masking,
    "objective_contract": run.objective_contract,
    "packing": data.packing,
    "saving": run.saving,
    "sharding": model.sharding,
    "taps": model.taps,
}


def figures() -> dict[str, Canvas]:
    """Return {name of a concept page: its figure}."""
    with tales() as texts:
        return {name: draw(texts) for name, draw in FIGURES.items()}


def path_of(name: str) -> Path:
    """Return the file of a page's figure."""
    return FOLDER / f"{name}.svg"
