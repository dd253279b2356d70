"""Every matrix product of an encoder in float32 is one of float32 on any device, read from the lowered programs."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.config import EncoderConfig, Execution
from bertjax.objectives.finetuning.labels import Classification, Tagging
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.mlm import MaskedLM
from tests import batches

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


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_products_of_every_family_are_float32(name):
    gradient, shapes = loss_of(MaskedLM(), executed("float32", **ENCODERS[name]))
    assert set(float32_precisions(gradient, shapes)) == {"HIGHEST, HIGHEST"}


@pytest.mark.parametrize("objective", [Electra(), Tagging(classes=("a", "b")), Classification(classes=("a", "b"))])
def test_products_of_heads_are_float32(objective):
    gradient, shapes = loss_of(objective, executed("float32"))
    assert set(float32_precisions(gradient, shapes)) == {"HIGHEST, HIGHEST"}
