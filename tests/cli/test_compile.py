"""Compiling for a TPU that is not there, through the function and the command line."""

import dataclasses
import json

import pytest

from bertjax.cli import compile
from bertjax.config import config, config_file
from bertjax.config.config import Config
from bertjax.forecast import report, topologies
from bertjax.forecast.cost import cost_of
from bertjax.forecast.forecast import Forecast, Memory, best
from bertjax.models.vocabulary import count_parameters
from bertjax.runtime import command_line
from bertjax.training.config import Stage
from bertjax.training.setup import make_setups
from tests import runs

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install '.[tpu]'")

FLAGS = [f"--config={runs.CONFIG}"]


def load(*overrides: str) -> config.Config:
    return config_file.load(str(runs.CONFIG), list(overrides))


@pytest.fixture(scope="module")
def forecast():
    [forecast] = compile.run(load(), "v5e:2x2")
    return forecast


def test_a_small_run_fits(forecast):
    memory = forecast.memory
    assert memory.fits and 0 < memory.needed < memory.usable
    assert memory.free == memory.usable - memory.needed
    assert memory.arguments > 3 * 4 * forecast.step.parameters / 4  # weights and two moments on four chips
    assert (forecast.step.topology.chips, forecast.step.mesh) == (4, {"data": 1, "fsdp": 4, "tensor": 1})


def test_collectives_of_gathered_weights(forecast):
    """Gathered once and scattered once, in bfloat16."""
    kinds = {(row.kind, row.dtype) for row in forecast.counts.collectives}
    assert ("all-gather", "bf16") in kinds
    assert {"reduce-scatter", "all-reduce"} & {kind for kind, dtype in kinds if dtype == "bf16"}


def test_json(forecast):
    plain = json.loads(json.dumps(report.as_dict(forecast)))
    assert plain["predicted"] is True and plain["memory"]["fits"] is True
    assert plain["topology"]["name"] == "v5e:2x2" and plain["floor"]["binds"] == forecast.counts.floor.binds
    assert sum(row["runs"] for row in plain["collectives"]) == sum(one.runs for one in forecast.counts.collectives)


def test_epochs_and_days(forecast):
    config = Config(stages=(Stage(steps=11_000, seq_len=32, batch=8), Stage(steps=4000, seq_len=32, batch=8)))
    cost = cost_of([forecast], config, mfu=0.5, corpus_tokens=15_000 * 8 * 32 / 3)
    seconds = 15_000 * forecast.step.model_flops / (4 * 197e12 * 0.5)
    plain, text = cost.as_dict(), cost.as_text(whole=True)
    assert plain["epochs"] == pytest.approx(3) and plain["seconds"] == pytest.approx(seconds)
    assert plain["chip_hours"] == pytest.approx(4 * seconds / 3600)
    assert "whole run" in text and ", 3 epochs of" in text and "assumed MFU 50%" in text and "warning" not in text
    last = cost_of([forecast], config, mfu=0.5, corpus_tokens=4000 * 8 * 32 / 41, stages=[1])
    assert last.seconds == pytest.approx(seconds * 4 / 15)
    assert "stage 1" in last.as_text(whole=False) and "warning: 41 epochs" in last.as_text(whole=False)


def test_a_utilization_above_one_is_an_internal_error(forecast):
    """It is neither clamped nor printed; a program with parts that were not counted has none."""
    flops = 1.1 * forecast.step.model_flops / forecast.most_mfu
    wrong = dataclasses.replace(forecast, step=dataclasses.replace(forecast.step, model_flops=flops))
    with pytest.raises(AssertionError, match=r"the floor of stage 0 allows an MFU of 1\.1.*, above 1"):
        report.as_text(wrong)
    partly = dataclasses.replace(wrong, counts=dataclasses.replace(wrong.counts, unknown_loops=1))
    assert partly.most_mfu is None and "MFU of at most" not in report.as_text(partly)


@pytest.fixture
def refused(capsys):
    def refuse(*flags: str) -> str:
        code = command_line.exit_code_of(lambda: compile.main([*FLAGS, *flags]))
        output = capsys.readouterr().err
        assert code == 2 and output.startswith("error: ") and output.count("\n") == 1, output
        return output

    return refuse


@pytest.mark.parametrize(
    "flags, complaints",
    [
        (["--topology=v5e:3x3"], ["--topology=v5e:3x3 does not exist", "16x16"]),
        (["--topology=v5e:2x2", "--topology=v5e:3x3"], ["--topology=v5e:3x3 does not exist"]),
        (
            ["--topology=v5e:2x2", "--config.stages.0.epochs=3"],
            ["stages.0.epochs depends on the data, which compile does not read", "--config.stages.0.steps=N"],
        ),
        (
            ["--topology=v5e:2x2", "--config.stages.0.examples=16", "--search"],
            ["stages.0.examples depends on the data", "add --config.stages.0.examples=0 --config.stages.0.batch=N"],
        ),
        (
            ["--topology=v5e:2x2", "--config.tasks.bert.weight=None"],
            ["tasks.bert.weight depends on the data", "add --config.tasks.bert.weight=1"],
        ),
        (
            ["--topology=v5e:2x2", "--topology=v5e:4x4", "--search"],
            ["--search tries many settings for one --topology, and there are 2"],
        ),
        (["--topology=v5e:4x4", "--stage=3"], ["--stage=3 does not exist"]),
        (["--topology=v5e:2x2", "--mfu=40"], ["--mfu=40.0 must be above 0 and at most 1"]),
        (["--topology=v5e:2x2", "--corpus-tokens=0"], ["--corpus-tokens=0.0 must be above 0"]),
        ([], ["--topology"]),
    ],
)
def test_bad_input(refused, flags, complaints):
    error = refused(*flags)
    assert all(complaint in error for complaint in complaints), error


def test_without_libtpu(refused, monkeypatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    assert "pip install '.[tpu]'" in refused("--topology=v5e:2x2")


def with_floor(forecast: Forecast, **seconds: float) -> Forecast:
    """Return a forecast whose floor has these bounds."""
    floor = dataclasses.replace(forecast.counts.floor, **seconds)
    return dataclasses.replace(forecast, counts=dataclasses.replace(forecast.counts, floor=floor))


def test_the_best_is_the_lowest_floor_that_fits(forecast):
    slow = with_floor(forecast, compute=1.0)
    large = dataclasses.replace(forecast, memory=Memory(usable=1, needed=2, table="too much"), counts=None)
    assert best([slow, large, forecast]) is forecast
    assert best([large]) is None


@pytest.mark.slow
def test_search(capsys):
    """On one chip strategies are the same, and so small a model reads nothing back from memory."""
    stages = "stages=[{'steps': 9, 'seq_len': 32, 'batch': 8, 'layers': 1}, {'steps': 9, 'seq_len': 32, 'batch': 8}]"
    assert compile.main([*FLAGS, f"--config.{stages}", "--topology=v5e:1x1", "--search", "--stage=0"]) == 0
    output = capsys.readouterr().out
    first, _ = make_setups(load(stages, "model.layers=2"), 400)
    assert f"parameters   {count_parameters(first.shapes['params'], first.encoder):,}\n" in output
    settings = ("strategy=gathered", "remat=none", "micro_tokens=0", "mesh.data=0", "mesh.fsdp=1")
    assert f"best         {' '.join(f'--config.runtime.{setting}' for setting in settings)}\n" in output
    # Of a mixture, the tasks of the stage are compiled, and not the first one of the run.
    order = "--config.tasks.order={'objective': {'kind': 'sentence_order'}, 'examples': {'kind': 'sentence_order'}}"
    mixture = [
        "--config.tasks.bert.objective.kind=bert",
        order,
        f"--config.{stages[:-2]}, 'tasks': ['order']}}]",
        "--topology=v5e:1x1",
    ]
    assert compile.main([*FLAGS, *mixture, "--search", "--stage=1", "--json"]) == 0
    assert {tried["task"] for tried in json.loads(capsys.readouterr().out)["tried"]} == {"order"}
