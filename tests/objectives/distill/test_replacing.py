"""BERT-of-Theseus: what replaces what, how often, and what has a gradient."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

from bertjax.data.batch import Draw
from bertjax.models import cut
from bertjax.models.blocks.mobilebert import MobileBertBlock
from bertjax.models.blocks.modern import ModernBlock
from bertjax.objectives.distill import replacing
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.hidden import HiddenStates, OutputCosine
from bertjax.objectives.distill.losses.logits import SoftLogits, TokenLogits
from bertjax.objectives.distill.replacing import RATE, SEED, Replacing
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.permutation import PermutationLM
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


def test_no_module_replaced_is_the_predecessor_and_its_layers_have_no_gradient():
    params, predecessor = params_of(SUCCESSOR), bound().bound_teacher.params["encoder"]
    whole = params | {"encoder": params["encoder"] | {"layers": predecessor["layers"]}}
    np.testing.assert_allclose(loss(params, 0.0), whole_loss(whole), rtol=1e-6)
    gradient = jax.grad(loss)(params, 0.0)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["encoder"]["layers"]))
    assert np.any(gradient["heads"]["classification"]["kernel"])


@pytest.mark.slow
def test_a_module_is_layers_of_the_predecessor_in_a_row():
    """With the second module replaced, the model has layers 0 and 1 of the predecessor and layer 1 of the successor."""
    own, other = params_of(SUCCESSOR)["encoder"]["layers"], params_of(PREDECESSOR, 0.2)["encoder"]["layers"]
    layers, mask_L = replacing.mixed(own, other, np.array([False, True]))
    np.testing.assert_array_equal(mask_L, [1, 1, 1, 0])
    for mixed, of_own, of_other in zip(*map(jax.tree.leaves, (layers, own, other)), strict=True):
        np.testing.assert_array_equal(mixed[:3], [of_other[0], of_other[1], of_own[1]])
    three, _ = cut.layers({"layers": jax.tree.map(np.asarray, layers)}, PREDECESSOR, [0, 1, 2])
    params = params_of(SUCCESSOR)
    config = dataclasses.replace(PREDECESSOR, layers=3)
    model = PLAIN.model(config)
    expected = PLAIN.terms(model, params | {"encoder": params["encoder"] | three}, None, BATCH, None, True)[0]
    is_second = [seed for seed in range(50) if tuple(_replaced(seed, 0.5)) == (False, True)]
    np.testing.assert_allclose(loss(params, 0.5, is_second[0]), expected["classification"], rtol=1e-5)


def _replaced(seed, rate):
    return np.asarray(jax.random.uniform(jax.random.key(np.uint32(seed)), (SUCCESSOR.layers,)) < rate)


def test_the_share_of_replaced_modules_is_the_rate_and_modules_are_independent():
    seeds = [Replacing(PLAIN).draw(Draw(5, np.zeros(1), step), 1)[SEED][0] for step in range(2000)]
    draws = np.asarray(jax.vmap(lambda seed: jax.random.uniform(jax.random.key(seed), (2,)))(np.array(seeds))) < 0.3
    counts = np.bincount(draws @ [2, 1], minlength=4)
    assert stats.chisquare(counts, 2000 * np.array([0.49, 0.21, 0.21, 0.09])).pvalue > 0.01


def test_the_rate_rises_linearly_and_every_row_has_the_draw_of_its_step():
    objective = Replacing(PLAIN, first=0.4, steps=10)
    assert [objective.rate(step) for step in (0, 5, 10, 99)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert Replacing(PLAIN, steps=0).rate(0) == 1.0
    first, again, next_step = (objective.draw(Draw(0, np.zeros(1), step), 3) for step in (4, 4, 5))
    np.testing.assert_array_equal(first[SEED], again[SEED])
    assert len(set(first[SEED])) == 1 and first[SEED][0] != next_step[SEED][0]
    assert first[RATE] == pytest.approx([0.64] * 3)


def test_an_evaluation_is_that_of_the_successor_alone():
    params = params_of(SUCCESSOR)
    terms, _ = bound().terms(PLAIN.model(SUCCESSOR), params, None, BATCH, None, False)
    np.testing.assert_allclose(terms["classification"], plain_loss(params), rtol=1e-6)


@pytest.mark.parametrize(
    "changes, settings, complaint",
    [
        ({"layers": 3}, {}, "has 3 layers, which 2 cannot replace in equal modules; set model.layers to half of them"),
        ({"layers": 2}, {}, "has 2 layers, which 2 cannot replace"),
        ({"width": 32}, {}, "has model.width=32 and the successor 16; they may differ in model.layers only"),
        (
            {"block": MobileBertBlock(inner_width=16)},
            {},
            "has model.block.kind=mobilebert and the successor bert; they may differ in model.layers only",
        ),
        ({}, {"reads": "mix"}, "objective.kind=replacing and objective.objective.reads=mix do not go together"),
    ],
)
def test_models_that_cannot_be_mixed(changes, settings, complaint):
    objective = bound(dataclasses.replace(PREDECESSOR, **changes), **settings)
    with pytest.raises(UserError, match=complaint):
        objective.frozen_params(SUCCESSOR)


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


@pytest.mark.parametrize("loss", [OutputCosine(), HiddenStates(), TokenLogits()])
def test_states_of_an_objective_that_predicts_from_it_are_not_compared(loss):
    objective = distilled(PermutationLM(), states=loss)
    with pytest.raises(UserError, match="^PermutationLM predicts from a second stream, .*; use kind=logits$"):
        objective.flops_parts(STUDENT)
    assert distilled(PermutationLM(), soft=SoftLogits()).teacher_config(STUDENT).layers == TEACHER.layers


def test_a_masked_lm_does_not_read_it():
    objective, batch = distilled(MaskedLM(), cosine=OutputCosine(), soft=TokenLogits()), batches.make(rows=2)
    params = batches.filled(batches.param_shapes(objective, STUDENT), scale=0.2)
    model, frozen = objective.model(STUDENT), objective.frozen_params(STUDENT)
    sums, _ = jax.jit(lambda params: objective.terms(model, params, frozen, batch, None, False))(params)
    assert sums["cosine"] > 0 and sums["soft"] > 0
    with pytest.raises(UserError, match="read hidden do not support; use kind=logits or output, or token_logits"):
        distilled(MaskedLM(), states=HiddenStates()).teacher_config(STUDENT)
