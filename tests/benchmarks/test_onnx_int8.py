"""The benchmark of ONNX in int8: the page shows the committed lines, and they are within the limits that it states."""

from pathlib import Path

from benchmarks import onnx_int8
from benchmarks.resumable import finished

ROOT = Path(__file__).parents[2]
LINES = finished(ROOT / "benchmarks" / "results" / "onnx_int8.jsonl")


def test_the_page_shows_the_committed_lines():
    assert onnx_int8.markdown(LINES) in (ROOT / "docs" / "guides" / "compress.md").read_text()
