"""Teachers of encoders with a query stream: states of predicted tokens alone are not compared with those of all."""

import dataclasses
from pathlib import Path

import jax
import pytest

from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.hidden import HiddenStates
from bertjax.objectives.distill.losses.logits import SoftLogits
from bertjax.objectives.distill.losses.output import OutputCosine
from bertjax.objectives.distill.losses.token_logits import TokenLogits
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.permutation import PermutationLM
from bertjax.runtime.errors import UserError
from tests import batches

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
