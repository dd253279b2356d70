"""The speed of compressed models: one row of each shape, made in single steps and measured beside its teacher."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import compression_speed
from benchmarks.arms import latency, onnx_latency
from benchmarks.compression_rows import ROWS, shape_of
from benchmarks.compression_speed import SHAPES, in_one_step, markdown
from benchmarks.compression_tasks import Place
from benchmarks.resumable import finished
from bertjax.cli import exit_code_of
from bertjax.errors import UserError

PLACE = Place("SST-2", 0, Path("DATA"), "CORPUS", Path("ADAPTED"), Path("TEACHER"), Path("OUT"))


def test_the_page_shows_the_last_measurement():
    page = (Path(__file__).parents[2] / "docs" / "results" / "compression.md").read_text()
    assert markdown(finished(compression_speed.RESULTS)[-1]) in page


def test_rows_of_one_shape_set_the_same_sizes():
    """A shape is measured once, so its rows may not differ in what decides size and speed."""
    sizes = ("--config.model.layers", "--config.model.width", "--config.model.preset", "--heads", "--mlp", "--quantize")

    def sizes_of(row):
        flags = [flag for command in ROWS[row].commands(PLACE) for flag in command if flag.startswith(sizes)]
        return set(flags) | ({"--config.model.layers=3"} if row == "distilbert" else set())  # set by its recipe

    assert SHAPES[0] == "teacher" and shape_of("tinybert-general") == shape_of("theseus") == "three-layers"
    for row in ROWS:
        assert sizes_of(row) == sizes_of(shape_of(row)), row


@pytest.mark.parametrize("shape", SHAPES)
def test_every_training_of_a_shape_has_one_step_in_each_stage(shape):
    for command in ROWS[shape].commands(PLACE):
        shorter = in_one_step(command)
        if command[0] != "bertjax.train":
            assert shorter == command
            continue
        last = dict(flag.split("=", 1) for flag in shorter if flag.startswith("--config."))
        stages = 2 if "mobilebert" in command[1] else 1
        assert [last[f"--config.stages.{stage}.steps"] for stage in range(stages)] == ["1"] * stages
        assert {last[f"--config.stages.{stage}.epochs"] for stage in range(stages)} == {"0"}


def shape(parameters, milliseconds, onnx=None):
    taken = {"bertjax": {"batch_1": milliseconds, "batch_32": 1.0}}
    if onnx:
        taken["ONNX Runtime"] = {"batch_1": onnx, "batch_32": 0.5}
    return {"parameters": parameters, "bytes": 4 * parameters, "milliseconds": taken}


def test_the_table_compares_each_shape_with_the_teacher():
    shapes = {"teacher": shape(8e6, 4.0, 3.0), "bilstm": shape(4e6, 2.0), "narrow": shape(4e6, 2.0, 1.0)}
    head, _, teacher, bilstm, narrow = markdown({"shapes": shapes}).splitlines()
    assert head.endswith("| bertjax: ms at 32 | ONNX Runtime: ms at 1 | ONNX Runtime: ms at 32 |")
    assert (
        narrow == "| `narrow` | 4.0 M (2.0x) | 16.0 MB (2.0x) | 2.00 (2.0x) | 1.00 (1.0x) | 1.00 (3.0x) | 0.50 (1.0x) |"
    )
    assert bilstm == "| `bilstm` | 4.0 M (2.0x) | 16.0 MB (2.0x) | 2.00 (2.0x) | 1.00 (1.0x) |  |  |"
    assert "ONNX" not in markdown({"shapes": {"teacher": shape(8e6, 4.0)}})


def test_the_latency_of_a_sentence_is_that_of_its_batch_by_its_size(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(latency, "time", argparse.Namespace(perf_counter=lambda: next(clock)))
    assert latency.medians({("a", 1): int, ("a", 32): int}) == {"a": {"batch_1": 1000.0, "batch_32": 1000 / 32}}


def test_a_model_without_an_onnx_file_is_left_out_and_the_reason_is_printed(monkeypatch, capsys):
    def write(path, export):
        raise UserError("ONNX needs torch")

    monkeypatch.setattr(onnx_latency, "SavedModel", lambda name: argparse.Namespace(export=None))
    monkeypatch.setattr(onnx_latency.onnx, "write", write)
    onnx_latency.main("somewhere")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {}
    assert printed.err == "somewhere is not measured with ONNX Runtime: ONNX needs torch\n"


def test_a_table_without_a_measurement_is_one_line(tmp_path, capsys):
    results = tmp_path / "none.jsonl"
    assert exit_code_of(lambda: compression_speed.main(["--markdown", f"--results={results}"])) == 2
    assert capsys.readouterr().err.startswith(f"error: {results} has no measurement; run the command without")
