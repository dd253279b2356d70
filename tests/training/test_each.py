"""Seeds of one command: one that fails is a result, all read the same data, and none leaves its state behind."""

import dataclasses
import errno
import json

import jax
import pytest

from bertjax.cli import train
from bertjax.config.config import Config
from bertjax.models.config import EncoderConfig
from bertjax.runtime import command_line
from bertjax.runtime.errors import RunFailed
from bertjax.runtime.storage import StorageError
from bertjax.training import each
from bertjax.training.hooks.base import Hook
from bertjax.training.run.checkpoint import NotSaved
from tests import runs

MEASURED: list[int] = []


class LiveBytes(Hook):
    """Notes the bytes on the device when a run has its state."""

    def on_start(self, run):
        MEASURED.append(sum(array.nbytes for array in jax.live_arrays()))


class Diverging(Hook):
    """Fails the second seed in its second step."""

    def on_step(self, run, step, metrics):
        if step == 2 and run.program.config.seed == 1:
            raise RunFailed("the loss is not finite")


@pytest.mark.parametrize("failing, code", [({1}, 0), ({0, 1, 2}, 1)])
def test_a_seed_that_diverges_does_not_end_the_others(monkeypatch, tmp_path, capsys, failing, code):
    def run(config, workdir, **options):
        if config.seed in failing:
            raise RunFailed("the loss is not finite")
        return train.Summary(100, True, {"eval": {"mlm_loss": float(config.seed)}, "baseline": {}}, tmp_path / "seed=2")

    monkeypatch.setattr(train, "run", run)

    def command() -> int:
        return train.report_result(*train.run_seeds(Config(), tmp_path, 3), Config(), [])

    assert command_line.exit_code_of(command) == code
    if code == 0:
        spread = json.loads((tmp_path / "seeds.json").read_text())
        assert (
            spread["metrics"]["mlm_loss"]["values"] == [0.0, None, 2.0] and spread["metrics"]["mlm_loss"]["mean"] == 1
        )
        assert spread["failures"] == {"seed=1": "the loss is not finite"}
        assert "seed=1 failed: the loss is not finite" in capsys.readouterr().out


@pytest.mark.parametrize(
    "error, at, code",
    [
        (RunFailed("the loss is not finite"), 0, command_line.STOPPED),  # stopped before a seed has finished
        (NotSaved("the state of a stop is not saved"), 2, command_line.FAILED),  # not the result of the last seed
        (StorageError(errno.ENOSPC, "No space left on device"), 1, command_line.FAILED),
        (jax.errors.JaxRuntimeError("INTERNAL: device lost"), 1, command_line.FAILED),
    ],
)
def test_what_belongs_to_the_machine_is_no_result(monkeypatch, tmp_path, error, at, code):
    """A launcher starts the same command again."""
    started = []

    def run(config, workdir, **options):
        started.append(config.seed)
        if config.seed == at:
            raise error
        return train.Summary(100, True, {"eval": {}, "baseline": {}}, tmp_path)

    monkeypatch.setattr(train, "run", run)
    result = lambda: train.run_seeds(Config(), tmp_path, 3, should_stop=lambda: at == 0)  # noqa: E731
    try:
        assert command_line.exit_code_of(lambda: train.report_result(*result(), Config(), [])) == code
    except jax.errors.JaxRuntimeError:  # Python ends with 1, and with the traceback of a defect
        assert code == command_line.FAILED
    assert started == list(range(at + 1))


def test_combinations_that_take_other_layers_are_not_other_data():
    """The fingerprint of `init_from` is that of the layers that a run starts with."""
    one, other = (
        Config(init_from="base", init_layers=layers, model=EncoderConfig(layers=1)) for layers in ((0,), (1,))
    )
    assert each._reads(one) != each._reads(other)
    assert each._reads(one) == each._reads(dataclasses.replace(one, seed=1))


@pytest.mark.slow
def test_seeds_read_the_same_data_and_release_their_state(flags, tmp_path, capsys):
    """A corpus that has changed between two seeds would make one mean of two experiments."""
    corpus = runs.write_corpus(tmp_path / "corpus.txt")
    own = [*flags, f"--config.data.corpus={corpus}", "--config.stages.0.steps=8", "--config.eval.every=8"]
    hooks = [f"--config.runtime.hooks=('{__name__}:LiveBytes','{__name__}:Diverging')"]
    MEASURED.clear()
    assert runs.call(*own, *hooks, f"--workdir={tmp_path / 'run'}", "--seeds=3") == 0
    assert MEASURED[0] == MEASURED[1] == MEASURED[2] > 0
    corpus.write_text(corpus.read_text() + "\n\nOne more document. It has two sentences.\n")
    capsys.readouterr()
    assert runs.call(*own, *hooks, f"--workdir={tmp_path / 'run'}", "--seeds=4") == 2
    assert "does not read what" in capsys.readouterr().err
    assert not (tmp_path / "run" / "seed=3" / "checkpoints").exists()
