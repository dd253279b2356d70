"""The compression benchmark: every row compares the same student, and only missing cells run."""

from pathlib import Path

from benchmarks import compression
from benchmarks.compression import Cell
from benchmarks.compression_table import markdown
from benchmarks.resumable import finished

# {row: trainings that its baseline lacks, of the student as its paper has them, or of its teacher}


def test_the_page_shows_the_committed_lines():
    page = (Path(__file__).parents[2] / "docs" / "results" / "compression.md").read_text()
    tables = markdown(finished(compression.RESULTS))
    assert tables and all(table in page for table in tables.split("\n\n"))


def test_commands_of_finished_cells_never_change():
    """A cell is run again if its fingerprint changes, and some take hours."""
    assert Cell("pkd", "SST-2", 0).fingerprint == "56f3385ba8a965e0"
    assert Cell("tinybert", "MRPC", 1).fingerprint == "1a829825fa8766b7"
    assert Cell("relations", "SST-2", 2).fingerprint == "831a06e0b2e638f4"
