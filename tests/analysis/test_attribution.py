"""Rollout against a loop, integrated gradients against their axioms, heads on replaced states."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.analysis import attribution
from bertjax.analysis.subject import captured
from bertjax.models import replacing
from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.heads import MaskedLMHead
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec, Model
from tests import batches

CONFIG, BATCH = batches.ENCODER, batches.make(3)
# The first row has two examples.
BATCH["examples_BT"][0] = np.where(np.arange(16) < 5, 1, 2 * (BATCH["examples_BT"][0] > 0))
BATCH["positions_BT"][0] = np.where(np.arange(16) < 5, np.arange(16), np.maximum(np.arange(16) - 5, 0))
BATCH["summary_positions_BN"] = np.array([[0, 5], [0, 0], [0, 0]], np.int32)
MODEL = Model(CONFIG, {"mlm": HeadSpec(MaskedLMHead), "label": HeadSpec(Dense, {"features": 3})})


def masked_lm(model, batch, key=None):
    hidden_BKD = model.encode(batch, key, batch["mlm_positions_BK"]).hidden
    return model.head("mlm", hidden_BKD, model.word_VE)


def classes(model, batch, key=None):
    nothing_more_BK = jnp.zeros((len(batch["tokens_BT"]), 0), jnp.int32)
    return model.head("label", model.encode(batch, key, nothing_more_BK).pooled_BND)


def both(model, batch):
    return masked_lm(model, batch), classes(model, batch)


@functools.cache
def params_of(config=CONFIG):
    model = MODEL.clone(config=config)
    return batches.filled(jax.eval_shape(lambda: model.init(jax.random.key(0), BATCH, method=both))["params"])


@functools.partial(jax.jit, static_argnames="config")
def embedded(params, batch, config=CONFIG):
    return attribution.embedded(config, params, batch)


@functools.partial(jax.jit, static_argnames="config")
def predictions(params, batch, embedded_BTE=None, config=CONFIG):
    """Logits of `classes`, with these embeddings in place of those of the tokens if they are given."""
    with contextlib.nullcontext() if embedded_BTE is None else replacing.with_embeddings(embedded_BTE):
        return MODEL.clone(config=config).apply({"params": params}, batch, method=classes)


def test_rollout_is_that_of_a_loop_over_layers_tokens_and_heads():
    layers, heads, length = 3, 2, 5
    attention_LHTT = np.random.default_rng(0).dirichlet(np.ones(length), (layers, heads, length))
    shares = np.eye(length)
    for layer in range(layers):
        mixed = np.zeros((length, length))
        for query in range(length):
            weights = [sum(attention_LHTT[layer, h, query, t] for h in range(heads)) / heads for t in range(length)]
            weights[query] += 1.0
            for token, weight in enumerate(weights):
                mixed[query] += weight / sum(weights) * shares[token]
        shares = mixed
        np.testing.assert_allclose(attribution.rollout(attention_LHTT)[layer], shares, atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def test_a_linear_model_has_its_weights_times_the_inputs_in_one_panel():
    rng = np.random.default_rng(0)
    inputs_BTE, baseline_BTE, weights_TE = (rng.normal(size=s).astype(np.float32) for s in ((2, 6, 4),) * 2 + ((6, 4),))
    examples_BT = np.array([[1, 1, 1, 2, 2, 0], [1] * 6])

    def predict(x_BTE, weights_TE):
        products_BT = jnp.sum(x_BTE * weights_TE, axis=-1)
        return jnp.stack([jnp.sum(products_BT * (examples_BT == n), axis=1) for n in (1, 2)], axis=1)

    result = attribution.integrated_gradients(predict, inputs_BTE, baseline_BTE, examples_BT, 2, weights_TE)
    expected_BT = np.sum((inputs_BTE - baseline_BTE) * weights_TE, axis=-1) * (examples_BT > 0)
    np.testing.assert_allclose(result.tokens_BT, expected_BT, atol=1e-5)
    assert result.panels == 1 and result.is_complete and result.gap_BN.max() < 1e-5


def test_panels_are_halved_until_the_sum_is_the_difference_and_a_jump_is_reported():
    inputs_BTE, baseline_BTE, examples_BT = np.ones((1, 1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1), int)

    def steep(x_BTE):  # rises from 0 to 1 at 0.3, within a thousandth of the line
        return jax.nn.sigmoid((x_BTE.sum(axis=(1, 2)) - 0.3) * 500.0)[:, None]

    result = attribution.integrated_gradients(steep, inputs_BTE, baseline_BTE, examples_BT, 1)
    assert result.panels > 1 and result.is_complete

    def jump(x_BTE):
        return jnp.where(x_BTE.sum(axis=(1, 2)) > 0.3, 1.0, 0.0)[:, None]

    result = attribution.integrated_gradients(jump, inputs_BTE, baseline_BTE, examples_BT, 1)
    assert result.panels == attribution.PANELS and not result.is_complete
    np.testing.assert_allclose(result.gap_BN, 1.0)


def predicted(inputs_BTE, params, batch):
    """The log-probability of class 1 of each example; 0 for an empty slot."""
    with replacing.with_embeddings(inputs_BTE):
        logits_BNC = MODEL.apply({"params": params}, batch, method=classes)
    exists_BN = (batch["examples_BT"][:, None] == jnp.arange(1, 3)[:, None]).any(axis=-1)
    return jnp.where(exists_BN, jax.nn.log_softmax(logits_BNC)[..., 1], 0.0)


def test_attributions_of_packed_examples_are_complete_and_independent():
    params = jax.tree.map(np.copy, params_of())
    params["heads"]["label"]["kernel"] *= 300.0  # predictions that differ by a nat
    inputs_BTE = embedded(params, BATCH)
    masked = BATCH | {"tokens_BT": np.where(np.arange(16) % 5, 3, BATCH["tokens_BT"])}  # [CLS] of each example stays
    baseline_BTE = embedded(params, masked)
    result = attribution.integrated_gradients(
        predicted, inputs_BTE, baseline_BTE, BATCH["examples_BT"], 2, params, BATCH
    )
    print(f"gaps {result.gap_BN}, differences {result.prediction_BN - result.baseline_BN}, panels {result.panels}")
    assert result.is_complete and result.gap_BN.max() < 0.01
    assert np.abs(result.prediction_BN - result.baseline_BN)[[0, 0, 1, 2], [0, 1, 0, 0]].min() > 0.02
    own_BNC = predictions(params, BATCH)
    np.testing.assert_allclose(result.prediction_BN[0], jax.nn.log_softmax(own_BNC)[0, :, 1], atol=1e-4)
    np.testing.assert_allclose(result.tokens_BT[:, [0, 5, 10, 15]], 0.0, atol=1e-6)  # equal to the baseline
    assert not result.tokens_BT[BATCH["examples_BT"] == 0].any()
    # The second example of the first row, alone in the row.
    length = int((BATCH["examples_BT"][0] == 2).sum())
    alone = BATCH | {"examples_BT": np.where(np.arange(3)[:, None], BATCH["examples_BT"], 0)}
    alone["examples_BT"][0, :length] = 1
    alone["summary_positions_BN"] = np.zeros((3, 2), np.int32)
    moved = [np.array(each) for each in (inputs_BTE, baseline_BTE)]
    for each in moved:
        each[0] = np.roll(each[0], -5, axis=0)
    separate = attribution.integrated_gradients(predicted, *moved, alone["examples_BT"], 2, params, alone)
    expected_T = result.tokens_BT[0, 5 : 5 + length]
    np.testing.assert_allclose(separate.tokens_BT[0, :length], expected_T, atol=0.01 * np.abs(expected_T).sum())


ALBERT = {"sharing": "all", "embeddings": BertEmbeddings(8)}
MOBILE = {"embeddings": MobileBertEmbeddings(8), "block": MobileBertBlock(inner_width=8)}


@pytest.mark.parametrize(
    "function, settings", [(masked_lm, {}), (masked_lm, ALBERT), (classes, ALBERT), (classes, batches.ROTARY)]
)
def test_heads_on_the_states_of_the_last_layer_predict_what_the_model_predicts(function, settings):
    config = dataclasses.replace(CONFIG, **settings)
    model, params = MODEL.clone(config=config), params_of(config)

    @jax.jit
    def by_layer(params):
        hidden_LBTD = captured(config, params, BATCH, ("hidden",))["hidden"]
        with replacing.with_hidden(hidden_LBTD[-1]):
            last = model.apply({"params": params}, BATCH, method=function)
        with replacing.with_hidden(hidden_LBTD[0]):
            first = model.apply({"params": params}, BATCH, method=function)
        return first, last, model.apply({"params": params}, BATCH, method=function)

    first, last, own = by_layer(params)
    np.testing.assert_allclose(last, own, atol=1e-5)
    assert np.abs(first - own)[own > -1e30].max() > 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("settings", [ALBERT, MOBILE], ids=["albert", "mobile"])
def test_a_replaced_embedding_is_all_that_the_model_reads(settings):
    config = dataclasses.replace(CONFIG, **settings)
    params = params_of(config)
    other = BATCH | {"tokens_BT": BATCH["tokens_BT"][:, ::-1]}
    replaced = predictions(params, other, embedded(params, BATCH, config), config)
    np.testing.assert_allclose(replaced, predictions(params, BATCH, config=config), atol=1e-6)
    assert np.abs(replaced - predictions(params, other, config=config)).max() > 1e-4
