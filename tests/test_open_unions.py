"""Embeddings, a masking and a schedule of a user, in one run."""

import dataclasses
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.config.config import from_dict, to_dict
from bertjax.config.opening import SavedModel
from bertjax.data.masking import Choice, Masking, token_shares
from bertjax.data.random import uniform
from bertjax.models.bert import BertEmbeddingLayer, BertEmbeddings
from bertjax.runtime.errors import Untrusted
from bertjax.training.schedules import Schedule
from tests import runs


@dataclasses.dataclass(frozen=True)
class Scaled(BertEmbeddings):
    """BERT's, with words multiplied by a learned number."""

    start: float = 2.0

    def layer(self, config):
        return ScaledLayer(config, parent=None)


class ScaledLayer(BertEmbeddingLayer):
    def setup(self):
        super().setup()
        self.factor = self.param("factor", lambda key: jnp.full((1,), self.config.embeddings.start))

    def words(self, tokens_BT, examples_BT):
        return self.factor * super().words(tokens_BT, examples_BT)


@dataclasses.dataclass(frozen=True)
class OwnRates(Masking):
    """Each example has a rate of its own, uniform up to twice `rate`, as in masked diffusion."""

    def choose(self, placed, draw):
        ragged = placed.ragged
        rates = 2 * self.rate * uniform(draw.seed, "own_rates", draw.epochs, ragged.ids, np.zeros_like(ragged.ids))
        shares = token_shares(ragged, draw, "mask/choose")
        tokens = np.flatnonzero((shares < ragged.spread(rates)) & ~ragged.special)
        return Choice(tokens, tokens)

    def most_predicted(self, seq_len, row_examples):
        return min(seq_len, 2 * self.rate * seq_len)


@dataclasses.dataclass(frozen=True)
class Steps(Schedule):
    """The peak, divided by a factor at each third of the run."""

    factor: float = 10.0

    def share(self, step, warmup_steps, steps):
        return self.factor ** -(3 * step // steps)


KINDS = {
    "model.embeddings": f"{__name__}:Scaled",
    "tasks.bert.objective.masking": f"{__name__}:OwnRates",
    "optimizer.schedule": f"{__name__}:Steps",
}


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    """The workdir of a short run."""
    settings = [*(f"{setting}.kind={kind}" for setting, kind in KINDS.items()), "tasks.bert.objective.masking.rate=0.3"]
    settings += ["model.embeddings.start=1.5", "optimizer.schedule.factor=2.0", "stages.0.steps=6", "eval.every=6"]
    workdir = tmp_path_factory.mktemp("own") / "run"
    assert runs.call(*flags, *(f"--config.{setting}" for setting in settings), f"--workdir={workdir}") == 0
    return workdir


def test_a_run_with_them_is_recorded_and_opened(trained):
    config = SavedModel(trained).config
    assert config.foreign_kinds == tuple(dict.fromkeys([KINDS["model.embeddings"], *KINDS.values()]))
    assert from_dict(to_dict(config)) == config
    [start] = runs.records(trained / "starts.jsonl")
    assert list(start["modules"]) == [__name__]
    rates = [record["train/learning_rate"] for record in runs.records(trained / "metrics.jsonl")]
    np.testing.assert_allclose(np.divide(rates, rates[0]), [1, 1, 0.5, 0.5, 0.25, 0.25], rtol=1e-6)
    assert bertjax.load(trained / "export").params["embeddings"]["factor"].shape == (1,)


def test_only_the_encoder_needs_their_module(trained, monkeypatch):
    settings = json.loads((trained / "export" / "bertjax.json").read_text())["config"]
    monkeypatch.delitem(sys.modules, __name__)
    with pytest.raises(Untrusted, match=f"^model.embeddings.kind='{KINDS['model.embeddings']}' asks to import"):
        bertjax.load(trained / "export")
    del settings["model"]["embeddings"]
    with pytest.raises(Untrusted, match="^masking.kind="):
        from_dict(settings)
