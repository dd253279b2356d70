"""The compression benchmark: every row compares the same student, and only missing cells run."""

import csv
from pathlib import Path

from benchmarks import compression
from benchmarks.compression import Cell
from benchmarks.compression_table import markdown, table
from benchmarks.resumable import finished

# {row: trainings that its baseline lacks, of the student as its paper has them, or of its teacher}


def test_the_committed_table_has_the_committed_lines():
    committed = (Path(__file__).parents[2] / "docs" / "results" / "compression.csv").read_text()
    assert table(finished(compression.RESULTS)) == committed


def test_the_tables_print_the_same_rows():
    lines = finished(compression.RESULTS)
    printed = [row for row in markdown(lines).splitlines() if row.startswith("| `")]
    rows = list(csv.DictReader(table(lines).splitlines()))
    assert len(printed) == len(rows) > 60
    for text, row in zip(printed, rows):
        name, source, run, scores, share, without = (cell.strip() for cell in text.strip("|").split("|"))
        assert (name, source, run) == (f"`{row['row']}`", row["source"], row["run"])
        assert scores.startswith(row["mean"]) and scores.endswith(f"({row['seeds']})")
        assert share == f"{row['of teacher']}%" and without.startswith(row["without"])


def test_commands_of_finished_cells_never_change():
    """A cell is run again if its fingerprint changes, and some take hours."""
    assert Cell("pkd", "SST-2", 0).fingerprint == "56f3385ba8a965e0"
    assert Cell("tinybert", "MRPC", 1).fingerprint == "1a829825fa8766b7"
    assert Cell("relations", "SST-2", 2).fingerprint == "831a06e0b2e638f4"
