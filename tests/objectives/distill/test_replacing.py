"""BERT-of-Theseus: what replaces what, how often, and what has a gradient."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.models.blocks.modern import ModernBlock
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.layers import HiddenStates, OutputCosine
from bertjax.objectives.distill.losses.logits import TokenLogits
from bertjax.objectives.distill.replacing import RATE, SEED, Replacing
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.finetuning.labels import Classification
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from tests import batches

SUCCESSOR = dataclasses.replace(batches.ENCODER, layers=2)
PREDECESSOR = dataclasses.replace(batches.ENCODER, layers=4)
BATCH = batches.make(4) | {"labels_BN": np.arange(4, dtype=np.int32)[:, None] % 3, "weights_BN": np.ones((4, 1), "f4")}
PLAIN = Classification(classes=("a", "b", "c"))


def params_of(config, scale: float = 0.3):
    return batches.filled(batches.param_shapes(PLAIN, config, BATCH), scale)


def bound(config=PREDECESSOR, **settings):
    teacher = Teacher(config, params_of(config, 0.2), "a tokenizer", Path("a/teacher"), {})
    return Replacing(dataclasses.replace(PLAIN, **settings), "a/teacher").bind_teacher(teacher)


@jax.jit
def loss(params, rate, seed=0):
    objective, model = bound(), PLAIN.model(SUCCESSOR)
    batch = BATCH | {RATE: np.full(4, 1.0, "f4") * rate, SEED: np.full(4, 1, np.uint32) * seed}
    terms, _ = objective.terms(model, params, objective.frozen_params(SUCCESSOR), batch, None, True)
    return terms["classification"]


@jax.jit
def plain_loss(params):
    return PLAIN.terms(PLAIN.model(SUCCESSOR), params, None, BATCH, None, True)[0]["classification"]


@jax.jit
def whole_loss(params):
    return PLAIN.terms(PLAIN.model(PREDECESSOR), params, None, BATCH, None, True)[0]["classification"]


@pytest.mark.slow
def test_all_modules_replaced_is_fine_tuning_of_the_successor():
    params = params_of(SUCCESSOR)
    np.testing.assert_allclose(loss(params, 1.0), plain_loss(params), rtol=1e-6)
    gradients = jax.grad(loss)(params, 1.0), jax.grad(plain_loss)(params)
    jax.tree.map(lambda own, other: np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6), *gradients)


@pytest.mark.slow
def test_no_module_replaced_is_the_predecessor_and_its_layers_have_no_gradient():
    params, predecessor = params_of(SUCCESSOR), bound().bound_teacher.params["encoder"]
    whole = params | {"encoder": params["encoder"] | {"layers": predecessor["layers"]}}
    np.testing.assert_allclose(loss(params, 0.0), whole_loss(whole), rtol=1e-6)
    gradient = jax.grad(loss)(params, 0.0)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["encoder"]["layers"]))
    assert np.any(gradient["heads"]["classification"]["kernel"])


@pytest.mark.slow
def test_an_evaluation_is_that_of_the_successor_alone():
    params = params_of(SUCCESSOR)
    terms, _ = bound().terms(PLAIN.model(SUCCESSOR), params, None, BATCH, None, False)
    np.testing.assert_allclose(terms["classification"], plain_loss(params), rtol=1e-6)


def test_layers_keep_the_pattern_of_local_and_global_ones():
    """Modules of two layers: layer 1 of the successor trains in place 2, and 2 in place 4."""

    def of(layers: int, every: int):
        local = ModernBlock(window=2, global_every=every)
        settings = {"layers": layers, "block": local, "embeddings.positions": "none", "embeddings.segments": 0}
        return batches.ENCODER.replace(settings)

    assert bound(of(6, every=3)).predecessor_config(of(3, every=3)).layers == 6
    with pytest.raises(
        UserError, match="layer 2 is global, and place 1 is for one that is local; choose a model.layers"
    ):
        bound(of(6, every=2)).predecessor_config(of(3, every=2))


TEACHER = dataclasses.replace(batches.ENCODER, **batches.RELATIVE)
STUDENT = dataclasses.replace(TEACHER, layers=1)


def distilled(objective, **losses) -> Distilled:
    params = batches.filled(batches.param_shapes(MaskedLM(), TEACHER))
    return Distilled(objective, "a", losses).bind_teacher(Teacher(TEACHER, params, "a tokenizer", Path("a")))


def test_a_masked_lm_does_not_read_it():
    objective, batch = distilled(MaskedLM(), cosine=OutputCosine(), soft=TokenLogits()), batches.make(rows=2)
    params = batches.filled(batches.param_shapes(objective, STUDENT), scale=0.2)
    model, frozen = objective.model(STUDENT), objective.frozen_params(STUDENT)
    sums, _ = jax.jit(lambda params: objective.terms(model, params, frozen, batch, None, False))(params)
    assert sums["cosine"] > 0 and sums["soft"] > 0
    with pytest.raises(UserError, match="kind=xlnet with a second stream; use kind=logits, output or token_logits"):
        distilled(MaskedLM(), states=HiddenStates()).teacher_config(STUDENT)
