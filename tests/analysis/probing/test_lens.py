"""The logit lens against the model itself, and against a loop over layers and masked tokens."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.analysis.probing.lens import lens
from bertjax.analysis.probing.states import hidden
from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.modern import ModernBlock
from tests.analysis.conftest import packed_rows


@pytest.fixture(scope="module")
def batch(pretrained, texts):
    encoded = texts.encoded(pretrained)
    return encoded.batch(packed_rows(encoded.ragged.lengths, 64)[:6], 64, with_objective=True)


@pytest.fixture(scope="module")
def sums(pretrained, batch):
    computed = jax.jit(lambda params, batch: lens(pretrained.objective, pretrained.encoder, params, batch))
    return jax.device_get(computed(pretrained.params, batch))


def test_the_last_layer_is_the_model_itself(pretrained, batch, sums):
    objective = pretrained.objective
    model = objective.model(pretrained.encoder)
    score = jax.jit(lambda params, batch: objective.terms(model, params, None, batch, None, train=False))
    terms, metrics = score(pretrained.params, batch)
    total = sums["loss"][1]
    assert total == np.sum(batch["mlm_weights_BK"]) > 10
    assert sums["loss"][0][-1] == pytest.approx(float(terms["mlm"]), rel=1e-5)
    assert sums["accuracy"][0][-1] == metrics["mlm_accuracy"][0]


def test_each_layer_is_read_by_the_head(pretrained, batch, sums):
    params = jax.device_get(pretrained.params)
    head, word_VE = params["heads"]["mlm"], params["encoder"]["embeddings"]["word"]
    hidden_LBTD = np.asarray(hidden(pretrained.encoder, pretrained.params, batch))
    size = pretrained.encoder.vocab_size
    log_rank, reciprocal = np.zeros((2, len(hidden_LBTD)))
    for layer, states_BTD in enumerate(hidden_LBTD):
        for row, k in zip(*np.nonzero(batch["mlm_weights_BK"])):
            state = states_BTD[row, batch["mlm_positions_BK"][row, k]]
            transformed = state @ head["transform"]["kernel"] + head["transform"]["bias"]
            transformed = np.asarray(jax.nn.gelu(transformed, approximate=False))
            normal = (transformed - transformed.mean()) / np.sqrt(transformed.var() + pretrained.encoder.norm_epsilon)
            logits = (normal * head["norm"]["scale"] + head["norm"]["bias"]) @ word_VE.T + head["word_bias"]
            rank = 1 + np.sum(logits[:size] > logits[batch["mlm_labels_BK"][row, k]])
            log_rank[layer] += np.log(rank)
            reciprocal[layer] += 1 / rank
    np.testing.assert_allclose(sums["log_rank"][0], log_rank, rtol=1e-4)
    np.testing.assert_allclose(sums["reciprocal_rank"][0], reciprocal, rtol=1e-4)


def test_a_norm_after_the_last_layer_is_applied_once(pretrained, batch, sums):
    """The last entry is still what the model computes."""
    block = ModernBlock(window=0, global_every=1, gated=False, biases=True)
    encoder = dataclasses.replace(pretrained.encoder, block=block, embeddings=BertEmbeddings(positions="none"))
    objective = pretrained.objective
    model = objective.model(encoder)
    params = pretrained.params
    params = params | {"encoder": params["encoder"] | {"final_norm": {"scale": np.full(32, 1.5), "bias": np.ones(32)}}}

    @jax.jit
    def both(params, batch):
        terms, _ = objective.terms(model, params, None, batch, None, train=False)
        return terms["mlm"], lens(objective, encoder, params, batch)["loss"][0]

    expected, computed = both(params, batch)
    assert computed[-1] == pytest.approx(float(expected), rel=1e-5)
    assert abs(computed[-2] - computed[-1]) > 1e-3
