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
from bertjax.objectives.host import Host
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from bertjax.training.setup import Setup, init_frozen
from bertjax.training.trace_checks import _warn_of_flops, checked_setups
from tests import batches


def own(**attributes) -> MaskedLM:
    """An objective of a class that changes masked language modeling."""
    return type("Own", (MaskedLM,), attributes)()


def with_terms(change) -> dict:
    """A method that changes what `terms_of` returns."""
    return {"terms_of": lambda self, logits, batch: change(*MaskedLM.terms_of(self, logits, batch))}


def with_left(term, weight) -> MaskedLM:
    """With a second term."""
    added = with_terms(lambda terms, metrics: (terms | {"left": term}, metrics))
    return own(**added, weights=lambda self, batch: MaskedLM.weights(self, batch) | weight)


ONE = jnp.float32(1)
NO_WEIGHT = with_left(ONE, {})
VECTOR = with_left(jnp.zeros(3), {"left": ONE})
VECTOR_WEIGHT = with_left(ONE, {"left": jnp.ones(3)})
TERMS_ALONE = own(**with_terms(lambda terms, metrics: terms))
METRIC_ALONE = own(**with_terms(lambda terms, metrics: (terms, metrics | {"share": ONE})))
TAKEN = own(**with_terms(lambda terms, metrics: (terms, metrics | {"examples": (ONE, ONE)})))
WRONG_AXIS = own(features=lambda *arguments: MaskedLM.features(*arguments) | {"left_BT": np.zeros(7, np.int32)})
COEFFICIENT = own(loss_weights=lambda self, terms, step: {"mlmm": 2.0})
# Its own terms read what its logits return, and the inherited outputs do not.
PAIR = own(
    logits=lambda *arguments: (MaskedLM.logits(*arguments), 0),
    terms_of=lambda self, logits, batch: MaskedLM.terms_of(self, logits[0], batch),
)
SECOND_HEAD = own(heads=lambda self, config: MaskedLM.heads(self, config) | {"second": HeadSpec(MaskedLMHead)})
ENCODER = {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16, "dropout": 0.0}


def check(objective, *changes: dict) -> tuple[Setup, ...]:
    stages = [{"steps": 9, "seq_len": 16, "batch": 8} | change for change in changes or [{}]]
    config = from_dict({"model": ENCODER, "stages": stages, "optimizer": {"warmup_steps": 0}})
    tasks = {"mine": dataclasses.replace(config.task, objective=objective, examples=FullSentences())}
    config = dataclasses.replace(config, tasks=tasks)
    return checked_setups(config, batches.ENCODER.vocab_size, jax.devices()[:1])


@pytest.mark.parametrize(
    "objective, message",
    [
        (NO_WEIGHT, "has the term 'left', and weights() returns 'mlm'; add 'left' to weights()"),
        (VECTOR, "the term 'left' has the shape [3]; sum it to a scalar"),
        (VECTOR_WEIGHT, "the weight of 'left' has the shape [3]; sum it to a scalar"),
        (TERMS_ALONE, "terms_of() must return two dicts, {term: sum} and {metric: (sum, weight)}"),
        (METRIC_ALONE, "the metric 'share' has no weight; return {'share': (sum, weight)}"),
        (WRONG_AXIS, "features() of Own returns 'left_BT' of the shape [7] for 1 row"),
        (TAKEN, "has the metric 'examples', which every step has already; rename it"),
        (COEFFICIENT, "has a loss weight of 'mlmm', and its terms are 'mlm'"),
        (
            own(best_metric=""),
            "names no best_metric, and the best checkpoint is chosen by it; set it to a score or to one of",
        ),
        (
            own(best_metric="mml_loss"),
            "best_metric='mml_loss' is the loss of no term, and the best checkpoint is chosen by it",
        ),
        (own(fingerprints=Host.fingerprints), "defines bind() without fingerprints, so that a changed resource would"),
        (own(question="mml"), "has question='mml', and extends the kinds 'mlm'; choose one"),
        (own(flops_parts=lambda self, config: 1 / 0), "test_objective_check.py:"),
        (PAIR, "Own': outputs(), which every evaluation calls, fails: TypeError: tuple indices"),
    ],
)
def test_mistakes_are_one_line(objective, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check(objective)


def test_frozen_params_are_those_of_each_stage_and_equal_arrays_are_on_the_devices_once():
    shared = np.ones(3, np.float32)
    objective = own(frozen_params=lambda self, config: {"heads": {"all": shared, "own": np.ones(config.layers)}})
    setups = check(objective, {"layers": 1}, {})
    first, second = (of_tasks["mine"]["heads"] for of_tasks in init_frozen(setups).values())
    assert (first["own"].shape, second["own"].shape) == ((1,), (2,)) and first["all"] is second["all"]


def test_a_right_objective_passes(caplog):
    check(MaskedLM())
    assert not caplog.records


def test_heads_whose_flops_are_not_counted_are_a_warning(caplog):
    check(SECOND_HEAD)
    assert "has its own heads() and the flops_parts() of MaskedLM, so " in caplog.text
    _warn_of_flops("tasks.mine.objective.kind='mylab:Bare'", type("Bare", (Objective,), {"heads": dict})())
    assert "Bare' has its own heads() and defines no flops_parts(), so the FLOPs of a step may lack its" in caplog.text
