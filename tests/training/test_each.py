"""Seeds of one command: one that fails is a result, all read the same data, and none leaves its state behind."""

import json

import jax
import pytest

from bertjax.cli import train
from bertjax.config.config import Config
from bertjax.runtime import command_line
from bertjax.runtime.errors import RunFailed
from bertjax.training.hooks.base import Hook
from tests import runs

MEASURED: list[int] = []


class LiveBytes(Hook):
    """Notes the bytes on the device when a run has its state."""

    def on_start(self, run):
        MEASURED.append(sum(array.nbytes for array in jax.live_arrays()))


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


def test_seeds_read_the_same_data_and_release_their_state(flags, tmp_path, capsys):
    """A corpus that has changed between two seeds would make one mean of two experiments."""
    corpus = runs.write_corpus(tmp_path / "corpus.txt")
    own = [*flags, f"--config.data.corpus={corpus}", "--config.stages.0.steps=8", "--config.eval.every=8"]
    own += [f"--workdir={tmp_path / 'run'}", f"--config.runtime.hooks=('{__name__}:LiveBytes',)"]
    MEASURED.clear()
    assert runs.call(*own, "--seeds=2") == 0
    assert MEASURED[0] == MEASURED[1] > 0
    corpus.write_text(corpus.read_text() + "\n\nOne more document. It has two sentences.\n")
    capsys.readouterr()
    assert runs.call(*own, "--seeds=3") == 2
    assert "does not read what" in capsys.readouterr().err
    assert not (tmp_path / "run" / "seed=2" / "checkpoints").exists()
