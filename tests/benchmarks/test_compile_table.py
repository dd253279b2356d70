"""The table of forecasts: a stopped command continues, and the table shows the forecasts."""

import pytest

from benchmarks import compile_table

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install '.[tpu]'")


def test_cells_are_those_of_bert_as_published():
    cell = compile_table.cell_config("large", 512, 64)
    assert (cell.model.layers, cell.model.width, cell.model.vocab_size, cell.model.dropout) == (24, 1024, 30522, 0.1)
    assert (cell.stages[0].seq_len, cell.stages[0].batch) == (512, 64)
