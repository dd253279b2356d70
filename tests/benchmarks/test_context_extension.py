"""The benchmark of a larger rotary base for longer rows."""

import json

import pytest

from benchmarks import context_extension
from benchmarks.context_extension import LONG_BASE, MODELS, SHORT_BASE, Cell, markdown


def test_the_table_has_means_and_ranges():
    lines = [{name: {"below": loss, "beyond": 2.0 * loss} for name in MODELS} for loss in (1.0, 3.0)]
    _, _, *rows = markdown(lines).splitlines()
    assert len(rows) == len(MODELS)
    assert all(row.endswith(" | 2.000 (1.000 to 3.000) | 4.000 (2.000 to 6.000) |") for row in rows)


@pytest.mark.slow
def test_a_line_has_the_losses_of_all_models(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(context_extension, "ROWS", 4)
    with caplog.at_level("INFO", logger="bertjax"):
        line = json.loads(json.dumps(context_extension.measured(Cell(0, (20, 10)), tmp_path / "workdirs")))
    assert line.keys() == {"seed", "steps", *MODELS}
    assert all(0.0 < line[name][side] < 6.0 for name in MODELS for side in ("below", "beyond"))
    assert line["short"] != line["short, larger base"] and line["long"] != line["long, larger base"]
    assert not list((tmp_path / "workdirs").iterdir())
    assert f"model.block.rotary_base={SHORT_BASE} (this run has {LONG_BASE})" in caplog.text
