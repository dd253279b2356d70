"""The teacher loss on parameters: against numpy, what its projections are, and models that it cannot compare."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.models.bert import BertEmbeddings
from bertjax.models.vocabulary import encoder_shapes
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.parameters import Parameters
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from tests import batches

STUDENT = dataclasses.replace(batches.ENCODER, layers=2, feedforward=20)
TEACHER = dataclasses.replace(STUDENT, layers=4, width=24, heads=3, feedforward=48, max_positions=20, vocab_size=150)
# The teacher's ids of the student's 100 pieces.
SECOND = np.random.default_rng(0).permutation(150)[:100]
BATCH = batches.make(rows=3)  # another number than that of the layers that are compared
SIZES = {"inputs_16_24": (16, 24), "inputs_20_48": (20, 48), "outputs_16_24": (16, 24), "outputs_20_48": (20, 48)}


def bound(loss, config=TEACHER, second=SECOND):
    objective = Distilled(MaskedLM(), "a/teacher", {"projections": loss})
    params = batches.filled(batches.param_shapes(MaskedLM(), config, BATCH))
    extra = {} if second is None else {"second_ids": second, "second_fingerprint": "small"}
    return objective.bind_teacher(Teacher(config, params, "large", Path("a/teacher"), **extra))


def params_of(objective, config=STUDENT):
    return batches.filled(batches.param_shapes(objective, config, BATCH), scale=0.2)


def loss_of(objective, params, config=STUDENT):
    @jax.jit
    def loss(params, frozen):
        sums, _ = objective.terms(objective.model(config), params, frozen, BATCH, None, False)
        return sums["projections"] / objective.weights(BATCH)["projections"]

    return loss(params, objective.frozen_params(config))


def leaf(tree, path):
    for name in path.split("/"):
        tree = tree[name]
    return np.asarray(tree, np.float64)


def expected(direction, params, teacher, pairs):
    """The mean over parameters of the mean squared difference, by loops in numpy."""
    projections = {name: np.asarray(value, np.float64) for name, value in params["projections"]["projections"].items()}
    distances = []

    def compare(own, other, is_kernel):
        rows, columns = np.eye(own.shape[0]), np.eye(own.shape[-1])
        if is_kernel and own.shape[0] != other.shape[0]:
            rows = projections[f"inputs_{own.shape[0]}_{other.shape[0]}"]
        if own.shape[-1] != other.shape[-1]:
            columns = projections[f"outputs_{own.shape[-1]}_{other.shape[-1]}"]
        if direction == "up":
            difference = (rows.T @ own @ columns if is_kernel else own @ columns) - other
        else:
            difference = (rows @ other @ columns.T if is_kernel else other @ columns.T) - own
        distances.append(np.mean(difference**2))

    for path in encoder_shapes(STUDENT):
        if path.startswith("layers/"):
            for own, other in pairs:
                mine = leaf(params["encoder"], path)[own - 1]
                compare(mine, leaf(teacher["encoder"], path)[other - 1], path.endswith("kernel"))
        elif path.startswith("embeddings/"):
            mine, target = leaf(params["encoder"], path), leaf(teacher["encoder"], path)
            if path.endswith("/word"):
                mine, target = mine[:100], target[SECOND]
            if path.endswith("/position"):
                target = target[: len(mine)]
            compare(mine, target, False)
    return np.mean(distances)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("layer_map, pairs", [("uniform", ((1, 2), (2, 4))), ("pairs", ((2, 1),))])
def test_it_is_the_mean_squared_difference_of_projected_parameters(direction, layer_map, pairs):
    settings = {} if layer_map == "uniform" else {"pairs_of_layers": ((0, 0), *pairs)}
    objective = bound(Parameters(direction=direction, **settings))
    params = params_of(objective)
    assert jax.tree.map(np.shape, params["projections"]) == {"projections": SIZES}
    value = expected(direction, params, objective.bound_teacher.params, pairs)
    assert float(loss_of(objective, params)) == pytest.approx(value, rel=1e-5)


def test_a_student_that_is_its_teacher_has_no_projections_and_no_loss():
    objective = bound(Parameters(), STUDENT, second=None)
    params = objective.bound_teacher.params
    assert "projections" not in params_of(objective)
    assert float(loss_of(objective, params)) == 0.0


def test_projections_start_orthogonal_and_gradients_reach_both():
    objective = bound(Parameters())
    made = Parameters().init(jax.random.key(0), STUDENT, TEACHER)
    for values in made.values():
        np.testing.assert_allclose(values @ values.T, np.eye(len(values)), atol=1e-5)
    params = params_of(objective)
    gradient = jax.jit(jax.grad(lambda params: loss_of(objective, params)))(params)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["projections"]))
    assert np.abs(gradient["encoder"]["layers"]["output"]["kernel"]).max() > 0


def test_the_teacher_does_not_run():
    """Its layers are in no product with a batch, and its FLOPs are not counted."""
    objective = bound(Parameters())
    assert not objective.reads_text and objective.flops_parts(STUDENT) == MaskedLM().flops_parts(STUDENT)
    assert set(objective.frozen_params(STUDENT)["teacher"]) == {"encoder"}
    params = params_of(objective)
    program = str(jax.make_jaxpr(lambda params: loss_of(objective, params))(params))
    rows, seq_len = BATCH["tokens_BT"].shape
    assert f"f32[{rows},{seq_len},16]" in program and f"f32[{rows},{seq_len},24]" not in program


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda: Parameters(direction="left"), "direction='left' of the teacher loss 'parameters' is unknown"),
        (
            lambda: Parameters(pairs_of_layers=((0, 1),)).pairs(STUDENT, TEACHER),
            r"has \[0, 1\], which compares embeddings with a layer; pair 0 with 0",
        ),
        (
            lambda: Parameters().pairs(dataclasses.replace(STUDENT, layers=3), TEACHER),
            "the student has 3 layers and the teacher 4; set layer_map=last",
        ),
        (
            lambda: Parameters().check(dataclasses.replace(STUDENT, **batches.ROTARY), TEACHER),
            "do not have the same parameters .*attention/key/bias.* use the same settings of model",
        ),
        (
            lambda: Parameters().check(dataclasses.replace(STUDENT, sharing="all"), TEACHER),
            "the student has model.sharing=all, and not parameters for each layer",
        ),
        (
            lambda: Parameters().check(STUDENT, dataclasses.replace(TEACHER, **batches.RELATIVE)),
            "the teacher has model.block.kind=xlnet",
        ),
        (
            lambda: Parameters().check(
                STUDENT, dataclasses.replace(TEACHER, embeddings=BertEmbeddings(position_offset=2))
            ),
            "has embeddings.position_offset=2 and the student 0, .*; set model.embeddings.position_offset=2",
        ),
    ],
)
def test_what_it_cannot_compare_is_refused(make, complaint):
    with pytest.raises(UserError, match=complaint):
        make()
