"""The benchmark of the recipe for labeled files: the page shows the committed lines; the simple arm is right."""

from pathlib import Path

from benchmarks import classify
from benchmarks.resumable import finished

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_committed_lines():
    table = classify.markdown(finished(ROOT / "benchmarks" / "results" / "classify.jsonl"))
    assert table in (ROOT / "docs" / "results" / "finetuning.md").read_text()
