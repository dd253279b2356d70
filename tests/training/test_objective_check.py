"""Errors of an objective come before a corpus is prepared, and name the term and the user's line."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.config import from_dict
from bertjax.data.formats.runs import FullSentences
from bertjax.models.heads import MaskedLMHead
from bertjax.models.model import HeadSpec
from bertjax.objectives.base import Objective
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from bertjax.training.objective_check import _warn_of_flops
from bertjax.training.program import Program
from tests import batches


@dataclasses.dataclass(frozen=True)
class NoWeight(MaskedLM):
    def terms_of(self, logits, batch):
        terms, metrics = super().terms_of(logits, batch)
        return terms | {"left": jnp.float32(0)}, metrics


@dataclasses.dataclass(frozen=True)
class Vector(NoWeight):
    def weights(self, batch):
        return super().weights(batch) | {"left": jnp.float32(1)}

    def terms_of(self, logits, batch):
        terms, metrics = super().terms_of(logits, batch)
        return terms | {"left": jnp.zeros(3)}, metrics


@dataclasses.dataclass(frozen=True)
class VectorWeight(Vector):
    def weights(self, batch):
        return super().weights(batch) | {"left": jnp.ones(3)}

    def terms_of(self, logits, batch):
        return NoWeight.terms_of(self, logits, batch)


@dataclasses.dataclass(frozen=True)
class TermsAlone(MaskedLM):
    def terms_of(self, logits, batch):
        return super().terms_of(logits, batch)[0]


@dataclasses.dataclass(frozen=True)
class MetricAlone(MaskedLM):
    def terms_of(self, logits, batch):
        terms, metrics = super().terms_of(logits, batch)
        return terms, metrics | {"share": jnp.float32(0)}


@dataclasses.dataclass(frozen=True)
class WrongAxis(MaskedLM):
    def features(self, examples, draw):
        return super().features(examples, draw) | {"left_BT": np.zeros(7, np.int32)}


@dataclasses.dataclass(frozen=True)
class Coefficient(MaskedLM):
    def loss_weights(self, terms, step):
        return {"mlmm": 2.0}


@dataclasses.dataclass(frozen=True)
class Taken(MaskedLM):
    def terms_of(self, logits, batch):
        terms, metrics = super().terms_of(logits, batch)
        return terms, metrics | {"examples": (jnp.float32(0), jnp.float32(1))}


@dataclasses.dataclass(frozen=True)
class Pair(MaskedLM):
    """Its own terms read what its logits return, and the inherited outputs do not."""

    def logits(self, model, batch, key=None):
        return super().logits(model, batch, key), 0

    def terms_of(self, logits, batch):
        return super().terms_of(logits[0], batch)


@dataclasses.dataclass(frozen=True)
class SecondHead(MaskedLM):
    def heads(self, config):
        return super().heads(config) | {"second": HeadSpec(MaskedLMHead)}


@dataclasses.dataclass(frozen=True)
class Unranked(MaskedLM):
    best_metric = ""


@dataclasses.dataclass(frozen=True)
class RankedByNoTerm(MaskedLM):
    best_metric = "mml_loss"


ENCODER = {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16, "dropout": 0.0}


def check(objective):
    stages = [{"steps": 9, "seq_len": 16, "batch": 8}]
    config = from_dict({"model": ENCODER, "stages": stages, "optimizer": {"warmup_steps": 0}})
    tasks = {"mine": dataclasses.replace(config.task, objective=objective, examples=FullSentences())}
    config = dataclasses.replace(config, tasks=tasks)
    Program(config, batches.ENCODER.vocab_size, tuple(jax.devices()[:1])).check()


@pytest.mark.parametrize(
    "objective, message",
    [
        (NoWeight(), "has the term 'left', and weights() returns 'mlm'; add 'left' to weights()"),
        (Vector(), "the term 'left' has the shape [3]; sum it to a scalar"),
        (VectorWeight(), "the weight of 'left' has the shape [3]; sum it to a scalar"),
        (TermsAlone(), "terms_of() must return two dicts, {term: sum} and {metric: (sum, weight)}"),
        (MetricAlone(), "the metric 'share' has no weight; return {'share': (sum, weight)}"),
        (WrongAxis(), "features() of WrongAxis returns 'left_BT' of the shape [7] for 1 row"),
        (Taken(), "has the metric 'examples', which every step has already; rename it"),
        (Coefficient(), "has a loss weight of 'mlmm', and its terms are 'mlm'"),
        (Unranked(), "names no best_metric, and the best checkpoint is chosen by it; set it to a score or to one of"),
        (RankedByNoTerm(), "best_metric='mml_loss' is the loss of no term, and the best checkpoint is chosen by it"),
        (
            Pair(),
            "Pair': outputs(), which every evaluation calls, fails: TypeError: tuple indices",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_mistakes_are_one_line(objective, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check(objective)


def test_a_right_objective_passes(caplog):
    check(MaskedLM())
    assert not caplog.records


def test_heads_whose_flops_are_not_counted_are_a_warning(caplog):
    check(SecondHead())
    assert "has its own heads() and the flops_parts() of MaskedLM, so " in caplog.text
    _warn_of_flops("tasks.mine.objective.kind='mylab:Bare'", type("Bare", (Objective,), {"heads": dict})())
    assert "Bare' has its own heads() and defines no flops_parts(), so the FLOPs of a step may lack its" in caplog.text
