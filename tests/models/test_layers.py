"""Layers, heads, dropout and drawing of classes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bertjax.models import dropout as module
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.dropout import attention_dropout, dropout, drops, inverse_of_kept_share
from bertjax.models.heads import MaskedLMHead, PairHead
from bertjax.models.layers import Dense, gelu, gelu_tanh, layer_norm
from bertjax.objectives.pretraining.electra import sample
from tests import batches


def test_gelu_is_the_erf_form():
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    expected = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x]
    np.testing.assert_allclose(gelu(x), expected, rtol=1e-5, atol=1e-6)


def test_the_approximation_of_gelu_is_close_to_it_and_is_that_of_jax():
    x = np.linspace(-6, 6, 1001, dtype=np.float32)
    np.testing.assert_allclose(gelu_tanh(x), jax.nn.gelu(x, approximate=True), rtol=1e-5, atol=1e-6)
    assert 1e-4 < np.abs(gelu_tanh(x) - gelu(x)).max() < 1e-3


def test_layer_norm_takes_its_statistics_in_float32():
    """bfloat16 has a step of 0.5 at 100: statistics taken in it would be far off."""
    x = (100 + np.arange(64) % 7).astype(jnp.bfloat16)[None]
    norm = layer_norm(EncoderConfig(execution=Execution(dtype="bfloat16")))
    output, variables = norm.init_with_output(jax.random.key(0), x)
    exact = (x - np.float64(x).mean()) / np.float64(x).std()
    np.testing.assert_allclose(np.float64(output), np.float64(exact), atol=0.01)
    assert output.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_dense_is_a_product_on_the_last_axis_and_starts_as_published():
    x = np.random.default_rng(0).normal(size=(2, 3, 200)).astype(np.float32)
    output, variables = Dense(EncoderConfig(), 300).init_with_output(jax.random.key(0), x)
    kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
    np.testing.assert_allclose(output, x @ np.asarray(kernel) + np.asarray(bias), rtol=1e-4, atol=1e-5)
    assert np.abs(bias).max() == 0
    # A normal distribution of deviation 0.02 before it is cut at two deviations, which leaves 0.8796 of it.
    assert abs(float(kernel.std()) / (0.02 * 0.8796) - 1) < 0.01 and 0.0399 < np.abs(kernel).max() <= 0.04


B, H, T, D = 4, 3, 64, 24
# Nothing below is rejected by chance in more than one of ten thousand tries, and the draws are always the same.
LEVEL = 1e-4


def row_keys(step: int, rows: int = B) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))


def seeds(step: int, rows: int = B) -> jax.Array:
    return module.seeds_of(row_keys(step, rows), rows, H)


def dropped(step: int, rate: float, rows: int = B, tokens: int = T) -> np.ndarray:
    """Return the decisions [B, H, T, T] of a step."""
    return np.asarray(attention_dropout(jnp.ones((rows, H, tokens, tokens)), rate, seeds(step, rows)) == 0.0)


def dropped_states(step: int, rate: float, rows: int = B, shape: tuple[int, ...] = (T, D)) -> np.ndarray:
    """Return the decisions about hidden states [B, ...] of a step."""
    return np.asarray(dropout(jnp.ones((rows, *shape)), rate, row_keys(step, rows)) == 0.0)


@pytest.fixture(params=["one group of keys", "four groups of keys"])
def groups(request, monkeypatch):
    if request.param.startswith("four"):
        monkeypatch.setattr(module, "LONGEST_GROUP", T // 2)
        monkeypatch.setattr(module, "GROUP", T // 4)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.25])
def test_the_share_of_zeros_is_that_of_the_rate_everywhere(rate):
    """Of each row, head, query, key and byte of a word, against the binomial distribution."""
    zeros = dropped(0, rate)
    parts = [zeros.sum(axis=tuple({0, 1, 2, 3} - {axis})) for axis in range(4)]
    parts.append(zeros.reshape(B, H, T, 4, T // 4).sum(axis=(0, 1, 2, 4)))
    have_share(parts, zeros.size, rate)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.25])
def test_the_share_of_zeros_in_hidden_states_is_that_of_the_rate_everywhere(rate):
    """Of each row, token, channel and byte of a word."""
    zeros = dropped_states(0, rate)
    parts = [zeros.sum(axis=tuple({0, 1, 2} - {axis})) for axis in range(3)]
    parts.append(zeros.reshape(B, 4, T // 4, D).sum(axis=(0, 2, 3)))
    have_share(parts, zeros.size, rate)


def have_share(parts: list[np.ndarray], size: int, rate: float):
    share = 1 - 1 / inverse_of_kept_share(rate)
    for found in parts:
        expected = size / len(found) * share
        statistic = np.sum((found - expected) ** 2 / (expected * (1 - share)))
        assert stats.chi2.sf(statistic, len(found)) > LEVEL


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_decisions_are_independent(rate):
    """Of heads, rows, steps, queries, keys, and of the bytes of a word: chi-squared of every 2 x 2 table."""
    zeros, next_step = dropped(0, rate), dropped(1, rate)
    pairs = {
        "heads": (zeros[:, :-1], zeros[:, 1:]),
        "rows": (zeros[:-1], zeros[1:]),
        "steps": (zeros, next_step),
        "queries": (zeros[:, :, :-1], zeros[:, :, 1:]),
        "every other query": (zeros[:, :, :-2], zeros[:, :, 2:]),
        "keys": (zeros[..., :-1], zeros[..., 1:]),
        "query and key exchanged": (zeros, zeros.swapaxes(2, 3)),
        **{f"bytes {byte} apart": (zeros[..., : -byte * T // 4], zeros[..., byte * T // 4 :]) for byte in (1, 2, 3)},
    }
    above = np.triu_indices(T, 1)  # each pair once
    pairs["query and key exchanged"] = tuple(zeros[..., *above] for zeros in pairs["query and key exchanged"])
    are_independent(pairs)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_decisions_about_hidden_states_are_independent(rate):
    zeros, next_step = dropped_states(0, rate), dropped_states(1, rate)
    pairs = {
        "rows": (zeros[:-1], zeros[1:]),
        "steps": (zeros, next_step),
        "tokens": (zeros[:, :-1], zeros[:, 1:]),
        "channels": (zeros[..., :-1], zeros[..., 1:]),
        **{f"bytes {byte} apart": (zeros[:, : -byte * T // 4], zeros[:, byte * T // 4 :]) for byte in (1, 2, 3)},
    }
    are_independent(pairs)


def are_independent(pairs: dict[str, tuple[np.ndarray, np.ndarray]]):
    for name, (one, other) in pairs.items():
        table = np.histogram2d(one.ravel(), other.ravel(), bins=2)[0]
        assert stats.chi2_contingency(table).pvalue > LEVEL, name


@pytest.mark.usefixtures("groups")
def test_no_two_rows_heads_or_steps_share_words():
    """Rows of bits that are equal or each other's complement would be found here, whatever their order."""
    for decisions, size in ((dropped, T * T), (dropped_states, T * D)):
        patterns = np.concatenate([decisions(step, 0.5).reshape(-1, size) for step in range(4)]).astype(np.float32)
        signs = patterns * 2 - 1
        correlations = np.abs(signs @ signs.T / size - np.eye(len(signs)))
        assert correlations.max() < 5 / math.sqrt(size)  # five standard deviations of a sum of so many signs


def test_a_row_draws_the_same_in_any_part_of_the_batch():
    ones = jnp.ones((B, H, T, T))
    whole = attention_dropout(ones, 0.1, seeds(0))
    parts = [attention_dropout(ones[:1], 0.1, seeds(0)[row : row + 1]) for row in range(B)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    states = jnp.ones((B, T, D))
    parts = [dropout(states[:1], 0.1, row_keys(0)[row : row + 1]) for row in range(B)]
    np.testing.assert_array_equal(dropout(states, 0.1, row_keys(0)), np.concatenate(parts))


@pytest.mark.parametrize("tokens", [64, 50])
def test_a_query_draws_the_same_alone(tokens):
    """Rows whose length is no multiple of four, too."""
    columns_BQ = jnp.asarray([[3, 49, 0], [1, 1, 7]])
    ones = jnp.ones((2, H, tokens, tokens))
    whole = attention_dropout(ones, 0.1, seeds(0, 2))
    alone = attention_dropout(ones[:, :, :3], 0.1, seeds(0, 2), columns_BQ)
    np.testing.assert_array_equal(alone, jnp.take_along_axis(whole, columns_BQ[:, None, :, None], axis=2))


def test_decisions_are_frozen():
    """A resumed run must draw what the run before it would have drawn, with any version of bertjax."""
    decisions = np.packbits(dropped(0, 0.5, rows=1, tokens=16)[0, 0, :4])
    np.testing.assert_array_equal(decisions, [108, 89, 34, 190, 24, 68, 132, 108])
    decisions = np.packbits(dropped_states(0, 0.5, rows=1, shape=(8, 8)))
    np.testing.assert_array_equal(decisions, [61, 115, 222, 24, 54, 181, 163, 203])


@pytest.mark.parametrize("shape", [(1003,), (7, 20), (1, 30), (5, 2, 40)], ids=str)
def test_any_shape_of_a_row_is_dropped_everywhere(shape):
    """If four does not divide the second axis, the bytes left over in the last word are ignored."""
    zeros = np.concatenate([dropped_states(step, 0.5, shape=shape) for step in range(10)])
    assert zeros.shape == (10 * B, *shape) and zeros.any(axis=0).all() and not zeros.all(axis=0).any()


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_the_mean_is_kept(rate):
    threshold = round((1 - rate) * 256)
    share = threshold / 256
    states = dropout(jnp.ones((500, 1003)), rate, jax.random.key(0))
    for kept in map(np.asarray, (states, attention_dropout(jnp.ones((B, H, T, T)), rate, seeds(0)))):
        assert set(np.unique(kept)) == {0.0, np.float32(256 / threshold)}
        deviation = math.sqrt(share * (1 - share) / kept.size)
        assert abs((kept > 0).mean() - share) < 4 * deviation
        assert abs(kept.mean() - 1) < 4 * deviation / share


def test_the_dtype_is_kept_and_the_gradient_scaled():
    assert dropout(jnp.ones((7, 5), jnp.bfloat16), 0.1, jax.random.key(0)).dtype == jnp.bfloat16
    key, x = jax.random.key(2), jnp.ones((7, 5))
    np.testing.assert_array_equal(jax.grad(lambda x: dropout(x, 0.5, key).sum())(x), dropout(x, 0.5, key))


def test_without_a_key_nothing_is_dropped():
    ones = jnp.ones((1, H, 4, 4))
    for drop in (attention_dropout, dropout):
        assert drop(ones, 0.1, None) is ones and drop(ones, 0.0, row_keys(0, 1)) is ones


@pytest.mark.parametrize("rate", [0.0001, 0.0019, 1 / 512])
def test_a_rate_that_is_rounded_to_nothing_drops_nothing(rate):
    ones = jnp.ones((1, H, 4, 4))
    assert not drops(rate) and drops(0.002)
    for drop in (attention_dropout, dropout):
        np.testing.assert_array_equal(drop(ones, rate, row_keys(0, 1)), ones)


DRAWS = 20_000


@pytest.mark.parametrize("classes", [128, 384])
def test_classes_are_drawn_with_the_probabilities_of_their_softmax(classes):
    draw = np.random.default_rng(0)
    logits = 3.0 * draw.normal(size=classes).astype(np.float32)
    logits[draw.permutation(classes)[: classes // 2]] = np.finfo(np.float32).min
    probabilities = np.exp(np.float64(logits) - logits.max())
    probabilities /= probabilities.sum()
    drawn = jax.jit(sample)(jnp.broadcast_to(logits, (DRAWS, classes)), jax.random.key(1))
    counts = np.bincount(drawn, minlength=classes)
    assert counts[probabilities == 0].sum() == 0
    expected = DRAWS * probabilities
    likely = expected >= 5
    # Pearson's statistic: its mean is its degrees of freedom, its variance twice that.
    statistic = ((counts[likely] - expected[likely]) ** 2 / expected[likely]).sum()
    assert abs(statistic - likely.sum()) < 4 * np.sqrt(2 * likely.sum())


def test_a_class_of_probability_one_is_always_drawn():
    sure = np.full((3, 256), -1e9, np.float32)
    sure[np.arange(3), [0, 127, 255]] = 0.0
    for seed in range(20):
        np.testing.assert_array_equal(sample(jnp.array(sure), jax.random.key(seed)), [0, 127, 255])


@pytest.mark.slow
def test_rows_with_their_own_keys_draw_the_same_in_any_batch():
    logits = jnp.array(np.random.default_rng(0).normal(size=(6, 4, 128)).astype(np.float32))
    keys = jax.random.split(jax.random.key(0), 6)
    whole = sample(logits, keys)
    np.testing.assert_array_equal(sample(logits[2:4], keys[2:4]), whole[2:4])
    assert len(np.unique(whole)) > 12


CONFIG = batches.ENCODER
LOWEST = np.finfo(np.float32).min


@pytest.fixture(scope="module")
def hidden_BKD() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (2, 3, CONFIG.width))


@pytest.fixture(scope="module")
def word_VD() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (CONFIG.padded_vocab_size, CONFIG.width))


@pytest.mark.slow
def test_padded_tokens_have_the_lowest_logits_and_no_gradient(hidden_BKD, word_VD):
    head = MaskedLMHead(CONFIG)
    params = head.init(jax.random.key(2), hidden_BKD, word_VD)["params"]

    def loss(params, word_VD):
        logits_BKV = head.apply({"params": params}, hidden_BKD, word_VD)
        return jnp.sum(jax.nn.logsumexp(logits_BKV, axis=-1)), logits_BKV

    (of_params, of_words), logits_BKV = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, word_VD)
    np.testing.assert_array_equal(logits_BKV[..., 100:], np.full((2, 3, 28), LOWEST))
    assert np.abs(logits_BKV[..., :100]).max() < 1e3
    for gradient in (of_words, of_params["word_bias"]):
        assert np.abs(gradient[100:]).max() == 0 and np.abs(gradient[:100]).min() > 0


def test_logits_are_float32_whatever_the_compute_dtype(hidden_BKD, word_VD):
    config = dataclasses.replace(CONFIG, execution=Execution(dtype="bfloat16"))
    for head, inputs in ((MaskedLMHead(config), (hidden_BKD, word_VD)), (PairHead(config), (hidden_BKD,))):
        logits, variables = head.init_with_output(jax.random.key(0), *inputs)
        assert logits.dtype == jnp.float32
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_the_pair_head_has_the_configured_number_of_classes(hidden_BKD):
    assert PairHead(CONFIG, classes=5).init_with_output(jax.random.key(0), hidden_BKD)[0].shape == (2, 3, 5)
