"""The table of forecasts: a stopped command continues, and the table shows the forecasts."""

import json

import pytest

from benchmarks import compile_table
from bertjax import compile, config_file
from bertjax.forecast import report
from tests import runs

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install '.[tpu]'")


def test_a_line_that_was_cut_off_is_not_finished(tmp_path):
    path = tmp_path / "cells.jsonl"
    assert compile_table.finished(path) == {}
    path.write_text('{"cell": "v5e:4x4 base 128", "batch": 8}\n{"cell": "v5e:4x4 ba')
    assert compile_table.finished(path) == {"v5e:4x4 base 128": {"cell": "v5e:4x4 base 128", "batch": 8}}


@pytest.mark.slow
def test_rows(tmp_path):
    [forecast] = compile.run(config_file.load(str(runs.CONFIG)), "v5e:2x2")
    fits = json.loads(json.dumps(report.as_dict(forecast)))
    # The collectives of so small a model are below the megabyte from which the table lists them.
    fits["collectives"] = [{"kind": "all-gather", "between_slices": False, "bytes": 5e6}]
    too_large = fits | {"floor": None, "collectives": [], "memory": fits["memory"] | {"fits": False}}
    table = compile_table.markdown({"v5e:4x4 base 128": fits, "v5e:4x4 large 512": too_large})
    needed, sent = (part.splitlines() for part in table.split("\n\n"))
    header, _, row, other = needed
    assert header.count("|") == row.count("|") == other.count("|")
    assert row.startswith("| v5e:4x4 | base | 128 | 4 | gathered | 8 | dots | 0.0")
    assert f"ms, {forecast.floor.binds} |" in row and row.endswith(" s |")
    assert "does not fit" in other and "**0.0" in other
    assert sent[2] == "| v5e:4x4 | base | 128 | all-gather 5 |" and sent[3] == "| v5e:4x4 | large | 512 |  |"


def test_cells_are_those_of_bert_as_published():
    cell = compile_table.cell_config("large", 512, 64)
    assert (cell.model.layers, cell.model.width, cell.model.vocab_size, cell.model.dropout) == (24, 1024, 30522, 0.1)
    assert (cell.stages[0].seq_len, cell.stages[0].batch) == (512, 64)
