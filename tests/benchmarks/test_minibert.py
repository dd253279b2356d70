"""The benchmark of MiniBERT: the page shows the committed lines, and a method and its baseline train as often."""

from pathlib import Path

from benchmarks import minibert
from benchmarks.resumable import finished

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_committed_lines():
    table = minibert.markdown(finished(minibert.RESULTS))
    assert table in (ROOT / "docs" / "results" / "compression_speed.md").read_text()
