"""Every objective with masked language modeling gives a model that fills masks."""

import dataclasses

import jax
import pytest

from bertjax.config.config import Task, from_dict, to_dict
from bertjax.data.formats import FORMATS
from bertjax.inference.predictor import Predictor
from bertjax.models import vocabulary
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.logits import SoftLogits
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.span_boundary import SpanBoundary
from bertjax.objectives.pretraining.structbert import StructBERT
from bertjax.training.shapes import batch_shapes
from tests import batches

OBJECTIVES = {"span_boundary": SpanBoundary(), "structbert": StructBERT(), "electra": Electra(generator_share=0.5)}


@pytest.mark.parametrize("kind", [*OBJECTIVES, "distilled"])
def test_every_masked_lm_objective_fills_masks(model, kind):
    objective = OBJECTIVES.get(kind) or Distilled(MaskedLM(), "a/folder/that/is/gone", {"soft": SoftLogits()})
    examples = "sentence_structure" if kind == "structbert" else "full_sentences"
    task = Task(objective, FORMATS.class_of(examples)())
    params = model.params
    if kind in OBJECTIVES:
        module, batch = objective.model(model.encoder), batch_shapes(task, model.tokenizer.vocab_size, 80)
        shapes = jax.eval_shape(lambda key: objective.init(module, key, batch), jax.random.key(0))
        params = vocabulary.pad(vocabulary.cut(batches.filled(shapes), model.encoder), model.encoder)
    config = dataclasses.replace(from_dict(model.settings), tasks={kind: task})
    [prediction] = Predictor(model._replace(settings=to_dict(config), params=params)).fill(["ada [MASK] baf"])
    best = prediction["masks"][0]
    assert len(best) > 1 and best[0]["probability"] >= best[1]["probability"] > 0.0
