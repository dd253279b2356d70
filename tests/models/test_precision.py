"""Every matrix product of an encoder in float32 is one of float32 on any device, read from the lowered programs."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.analysis.part import Part, Result
from bertjax.analysis.running import run_parts
from bertjax.analysis.subject import Subject
from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.execution import float32_products
from bertjax.models.layers import Dense
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.tagging import Tagging
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training.evaluation import eval_step
from bertjax.training.state import new_state
from bertjax.training.step import train_chunk
from tests import batches
from tests.training import trainer

ENCODERS = {
    "ALBERT": {"embeddings": BertEmbeddings(8), "sharing": "all"},
    "ModernBERT": batches.LOCAL,
    "MobileBERT": {"block": MobileBertBlock(inner_width=8, feedforwards=2), "embeddings": MobileBertEmbeddings(8)},
    "XLNet": batches.RELATIVE,
    "DeBERTa": batches.DISENTANGLED,
    "fixed heads": {"block": BertBlock(("next",))},
    "LSTM": batches.LSTM,
}


def float32_precisions(function, *arguments) -> list[str]:
    """Return the precision attribute of each product of float32 arrays, empty if there is none."""
    text = jax.jit(function).lower(*arguments).as_text()
    products = re.findall(r"stablehlo\.dot_general .*", text)
    assert products
    of_float32 = [line for line in products if not re.search(r": \(tensor<[^>]*bf16>", line)]
    return [match.group(1) if (match := re.search(r"precision = \[(.*?)\]", line)) else "" for line in of_float32]


def loss_of(objective, encoder: EncoderConfig):
    """Return a function from params to the gradient of all terms, and shapes of its params."""
    batch = batches.make(2) | {"labels_BN": np.zeros((2, 1), np.int32), "weights_BN": np.ones((2, 1), np.float32)}
    batch["tags_BT"] = np.zeros((2, 16), np.int32)
    model, key = objective.model(encoder), jax.random.key(0)

    def loss(params):
        sums = objective.terms(model, params, None, batch, jax.random.split(key, 2), True)[0]
        return sum(sums.values())

    return jax.grad(loss), batches.param_shapes(objective, encoder, batch)


def executed(dtype: str, **choices) -> EncoderConfig:
    return dataclasses.replace(batches.ENCODER, dropout=0.1, execution=Execution(dtype), **choices)


@pytest.mark.parametrize("name", ENCODERS)
def test_products_of_every_family_are_float32(name):
    gradient, shapes = loss_of(MaskedLM(), executed("float32", **ENCODERS[name]))
    assert set(float32_precisions(gradient, shapes)) == {"HIGHEST, HIGHEST"}


@pytest.mark.parametrize("objective", [Electra(), Tagging(classes=("a", "b")), Classification(classes=("a", "b"))])
def test_products_of_heads_are_float32(objective):
    gradient, shapes = loss_of(objective, executed("float32"))
    assert set(float32_precisions(gradient, shapes)) == {"HIGHEST, HIGHEST"}


def test_bfloat16_stays_as_it_is():
    """One pass, but for heads on examples, which compute in float32."""
    gradient, shapes = loss_of(MaskedLM(), executed("bfloat16"))
    assert "HIGHEST, HIGHEST" not in float32_precisions(gradient, shapes)
    hidden = jnp.ones((2, 3, 16), jnp.bfloat16)
    head = Dense(executed("bfloat16"), 2, dtype="float32")
    params = jax.eval_shape(head.init, jax.random.key(0), hidden)
    assert float32_precisions(lambda params: head.apply(params, hidden), params) == ["HIGHEST, HIGHEST"]


@float32_products()
def decorated(x):
    return float32_precisions(lambda x: x @ x, x)


def test_the_context_reaches_products_of_others():
    x = jnp.ones((2, 2))
    assert decorated(x) == ["HIGHEST, HIGHEST"] and decorated(x) == ["HIGHEST, HIGHEST"]
    with float32_products("bfloat16"):
        assert float32_precisions(lambda x: x @ x, x) != ["HIGHEST, HIGHEST"]


class Multiplying(BERT):
    """An objective with a product of its own, which asks for no precision."""

    def terms(self, *arguments):
        sums, *others = super().terms(*arguments)
        states = arguments[3]["mlm_weights_BK"]
        return {name: total + jnp.sum(states @ states.T) * 0 for name, total in sums.items()}, *others


def test_a_run_computes_products_of_objectives_in_its_dtype():
    step = trainer.make_step()
    loss = dataclasses.replace(step.loss, objective=Multiplying())
    step, batch = dataclasses.replace(step, loss=loss), batches.make()
    create = new_state(lambda key: loss.objective.init(loss.model, key, batch), step.optimizer)
    state = jax.eval_shape(create, jax.random.key(0))
    chunk = {name: array[None] for name, array in batch.items()}
    for function, *arguments in (
        (functools.partial(train_chunk, step), state, None, chunk),
        (functools.partial(eval_step, loss), state["params"], None, batch),
    ):
        assert set(float32_precisions(function, *arguments)) == {"HIGHEST, HIGHEST"}


class Reading(Part):
    """A part of the analysis with a product of its own."""

    name, title = "reading", "Reading"

    def run(self, subjects, materials, progress=None):
        x = jnp.ones((2, 2))
        return Result({"precisions": float32_precisions(lambda x: x @ x, x)})


def test_analysis_computes_products_in_float32():
    (outcome,) = run_parts([Reading()], [Subject("bare", None)], [])
    assert outcome.result.numbers == {"precisions": ["HIGHEST, HIGHEST"]}
