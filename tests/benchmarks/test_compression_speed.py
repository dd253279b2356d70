"""The speed of compressed models: one row of each shape, made in single steps and measured beside its teacher."""

from pathlib import Path

from benchmarks import compression_speed
from benchmarks.compression_speed import markdown
from benchmarks.resumable import finished


def test_the_page_shows_the_last_measurement():
    page = (Path(__file__).parents[2] / "docs" / "results" / "compression_speed.md").read_text()
    assert markdown(finished(compression_speed.RESULTS)[-1]) in page
