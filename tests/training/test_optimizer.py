"""Optimizers: weight decay, published updates, multipliers, and frozen parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training.optim.by_path import by_depth
from bertjax.training.optim.config import Multiplier, OptimizerConfig
from bertjax.training.optim.optimizer import make_optimizer
from bertjax.training.param_paths import decay_mask, map_with_path
from tests import batches

CONFIG = OptimizerConfig(b1=0.8, b2=0.95, weight_decay=0.1, clip_norm=0.5)
LAMB = dataclasses.replace(CONFIG, kind="lamb")
# What a gradient is multiplied with at each step, on both sides of the clip norm.
SIZES = (3.0, 0.01, 1.0, 0.05)
LAYERS = 3


def bert_params() -> dict:
    return batches.param_shapes(BERT(), batches.ENCODER)


def stacked_params() -> dict:
    draw = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    dense = {"kernel": normal(LAYERS, 4, 3) * jnp.array([1.0, 5.0, 0.1])[:, None, None], "bias": normal(LAYERS, 3)}
    norm = {"scale": normal(LAYERS, 4), "bias": normal(LAYERS, 4)}
    return {
        "encoder": {"embeddings": {"word": normal(7, 4)}, "layers": {"dense": dense, "norm": norm}},
        "heads": {"kernel": jnp.zeros((4, 2)), "bias": normal(2)},
    }


def gradients_of(params: dict):
    """One a step, other ones for every leaf."""
    draw = np.random.default_rng(1)
    for size in SIZES:
        yield jax.tree.map(lambda leaf: jnp.asarray(size * draw.normal(size=leaf.shape), jnp.float32), params)  # noqa: B023


def moved(params: dict, updates: dict, rate: float) -> dict:
    """Params after a step, as `train_step` applies updates."""
    return optax.apply_updates(params, jax.tree.map(lambda update: -rate * update, updates))


def train(optimizer: optax.GradientTransformation, params: dict, rate: float = 0.1) -> list[dict]:
    """Params after each step."""
    state, seen = optimizer.init(params), []
    for gradient in gradients_of(params):
        updates, state = optimizer.update(gradient, state, params)
        params = moved(params, updates, rate)
        seen.append(params)
    return seen


def close(actual, expected, rtol=1e-5, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), actual, expected)


def test_weight_decay_excludes_biases_and_layer_norms():
    spared = []
    map_with_path(lambda path, decayed: decayed or spared.append(path), decay_mask(bert_params()))
    assert sorted(spared) == [
        "encoder/embeddings/norm/bias",
        "encoder/embeddings/norm/scale",
        "encoder/layers/attention/key/bias",
        "encoder/layers/attention/output/bias",
        "encoder/layers/attention/query/bias",
        "encoder/layers/attention/value/bias",
        "encoder/layers/attention_norm/bias",
        "encoder/layers/attention_norm/scale",
        "encoder/layers/intermediate/bias",
        "encoder/layers/output/bias",
        "encoder/layers/output_norm/bias",
        "encoder/layers/output_norm/scale",
        "encoder/pooler/bias",
        "heads/mlm/norm/bias",
        "heads/mlm/norm/scale",
        "heads/mlm/transform/bias",
        "heads/mlm/word_bias",
        "heads/nsp/classifier/bias",
    ]


@pytest.mark.parametrize("clip_norm", [0.5, 0.0])
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
@pytest.mark.parametrize("bias_correction, counts_by_leaf", [(True, False), (True, True), (False, False)])
def test_steps_follow_the_papers(kind, clip_norm, bias_correction, counts_by_leaf):
    """Loshchilov & Hutter (2019), algorithm 2, and You et al. (2020), algorithm 2, layer by layer, in float64.

    Without bias correction, the update is that of google-research/bert's optimization.py.
    """
    config = dataclasses.replace(CONFIG, kind=kind, clip_norm=clip_norm, bias_correction=bias_correction)
    params = stacked_params()
    expected = {name: leaf.astype(np.float64) for name, leaf in unstacked(params).items()}
    first, second = ({name: np.zeros_like(leaf) for name, leaf in expected.items()} for _ in range(2))
    steps = zip(train(make_optimizer(config, counts_by_leaf), params), gradients_of(params), strict=True)
    for step, (actual, gradient) in enumerate(steps, start=1):
        gradient = {name: leaf.astype(np.float64) for name, leaf in unstacked(gradient).items()}
        norm = np.sqrt(sum((leaf**2).sum() for leaf in gradient.values()))
        for name, leaf in gradient.items():
            clipped = leaf * (min(1.0, clip_norm / norm) if clip_norm else 1.0)
            first[name] = config.b1 * first[name] + (1 - config.b1) * clipped
            second[name] = config.b2 * second[name] + (1 - config.b2) * clipped**2
            unbiased = first[name], second[name]
            if bias_correction:
                unbiased = first[name] / (1 - config.b1**step), second[name] / (1 - config.b2**step)
            updates = unbiased[0] / (np.sqrt(unbiased[1]) + config.epsilon)
            if "kernel" in name or "word" in name:
                updates += config.weight_decay * expected[name]
                if kind == "lamb" and expected[name].any():
                    updates *= np.linalg.norm(expected[name]) / np.linalg.norm(updates)
            expected[name] = expected[name] - 0.1 * updates
        close(unstacked(actual), expected, rtol=1e-4, atol=1e-6)


def unstacked(params: dict) -> dict[str, np.ndarray]:
    """{path: array}, each layer by itself."""
    flat = {}

    def take(path, leaf):
        if "layers/" in path:
            flat.update({f"{path}/{index}": np.asarray(layer) for index, layer in enumerate(leaf)})
        else:
            flat[path] = np.asarray(leaf)

    map_with_path(take, params)
    return flat


def test_lamb_equals_optax_on_unstacked_layers():
    params = {name: leaf for name, leaf in stacked_params()["encoder"]["layers"]["dense"].items() if name == "kernel"}
    stacked = {"encoder": {"layers": params}}
    ours = make_optimizer(dataclasses.replace(LAMB, clip_norm=0.0))
    theirs = optax.lamb(0.1, b1=LAMB.b1, b2=LAMB.b2, eps=LAMB.epsilon, weight_decay=LAMB.weight_decay)
    layers = [params["kernel"][index] for index in range(LAYERS)]
    state = theirs.init(layers)
    for actual, gradient in zip(train(ours, stacked), gradients_of(stacked), strict=True):
        kernel = gradient["encoder"]["layers"]["kernel"]
        updates, state = theirs.update([kernel[index] for index in range(LAYERS)], state, layers)
        layers = optax.apply_updates(layers, updates)
        close([*actual["encoder"]["layers"]["kernel"]], layers)


@pytest.mark.parametrize("counts_by_leaf", [False, True])
def test_stable_adamw_is_the_published_one_for_each_layer(counts_by_leaf):
    """The numbers are of `StableAdamW(lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)` in torch-optimi 0.3.3,
    whose author trained ModernBERT with it. In the second step the gradient is a hundred times larger.
    """
    steps = [
        [[0.39501, -0.890005, 0.1475033], [2.0799975, 0.023752, -0.6425017]],
        [[0.3361812, -0.8276312, 0.090447], [2.1211016, -0.0324181, -0.5819004]],
        [[0.2720834, -0.758619, 0.0288065], [2.1606266, -0.09283, -0.5153453]],
    ]
    kernel, gradient = (
        jnp.array([[0.5, -1.0, 0.25], [2.0, 0.125, -0.75]]),
        jnp.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]]),
    )
    config = OptimizerConfig(kind="stable_adamw", b1=0.8, b2=0.95, epsilon=1e-6, weight_decay=0.1, clip_norm=0.0)
    # The second layer has other gradients: it must not change the updates of the first.
    params = {"encoder": {"layers": {"kernel": jnp.stack([kernel, kernel])}}, "heads": {"kernel": kernel}}
    optimizer = make_optimizer(config, counts_by_leaf)
    state = optimizer.init(params)
    for size, expected in zip((0.01, 1.0, 0.05), steps, strict=True):
        stack = size * jnp.stack([gradient, 3.0 + gradient])
        gradients = {"encoder": {"layers": {"kernel": stack}}, "heads": {"kernel": size * gradient}}
        updates, state = optimizer.update(gradients, state, params)
        params = moved(params, updates, 0.1)
        np.testing.assert_allclose(params["heads"]["kernel"], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(params["encoder"]["layers"]["kernel"][0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_the_first_matching_multiplier_scales_the_step(kind):
    """The first step alone: later ones start from other params."""
    config = dataclasses.replace(CONFIG, kind=kind)
    multipliers = (
        Multiplier("layers/dense/", factor=2.0, by_layer=(1.0, 0.5, 0.0)),
        Multiplier("encoder/", factor=0.1),
    )
    params = stacked_params()
    plain = train(make_optimizer(config), params)[0]
    scaled = train(make_optimizer(dataclasses.replace(config, multipliers=multipliers)), params)[0]
    plain, scaled = (jax.tree.map(lambda after, before: after - before, tree, params) for tree in (plain, scaled))
    by_layer = jnp.array([2.0, 1.0, 0.0])
    plain["encoder"]["embeddings"]["word"] *= 0.1
    plain["encoder"]["layers"]["norm"] = jax.tree.map(lambda leaf: 0.1 * leaf, plain["encoder"]["layers"]["norm"])
    dense = plain["encoder"]["layers"]["dense"]
    plain["encoder"]["layers"]["dense"] = {
        "kernel": dense["kernel"] * by_layer[:, None, None],
        "bias": dense["bias"] * by_layer[:, None],
    }
    close(scaled, plain)


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_frozen_parameters_have_no_moments_and_stay_bit_for_bit(kind):
    frozen = ("embeddings/", r"layers/\w+/bias$")
    params = stacked_params()
    optimizer = make_optimizer(dataclasses.replace(CONFIG, kind=kind, frozen=frozen))
    after = train(optimizer, params)[-1]
    moved = []
    map_with_path(lambda path, same: same or moved.append(path), jax.tree.map(jnp.array_equal, after, params))
    assert moved == ["encoder/layers/dense/kernel", "encoder/layers/norm/scale", "heads/bias", "heads/kernel"]

    moments = []
    map_with_path(lambda path, leaf: leaf.ndim and moments.append(path.split("/", 4)[-1]), optimizer.init(params))
    assert len(moments) == 8 and not any("embeddings" in path or "norm/bias" in path for path in moments)


def test_layer_decay_lowers_the_rate_from_the_heads_down():
    """After one step of the same gradient everywhere, each part has moved by its share."""
    decaying = dataclasses.replace(CONFIG, weight_decay=0.0, clip_norm=0.0, layer_decay=0.5)
    params = stacked_params()
    plain, slowed = (
        train(make_optimizer(config), params)[0]
        for config in (dataclasses.replace(decaying, layer_decay=1.0), decaying)
    )
    moved, slow = (jax.tree.map(lambda a, b: a - b, after, params) for after in (plain, slowed))
    shares = jax.tree.map(lambda a, b: np.asarray(b / a), moved, slow)
    np.testing.assert_allclose(shares["encoder"]["embeddings"]["word"], 0.5**4, rtol=1e-3)
    for index, share in enumerate((0.5**3, 0.5**2, 0.5)):
        np.testing.assert_allclose(shares["encoder"]["layers"]["dense"]["kernel"][index], share, rtol=1e-3)
    np.testing.assert_allclose(shares["heads"]["kernel"], 1.0, rtol=1e-3)


@pytest.mark.parametrize("layers, decay", [(12, 0.8), (24, 0.9)])
def test_electras_published_decay_gives_electras_rates(layers, decay):
    """decay^(n + 2 - depth), with depth 0 for embeddings, 1 to n for layers and n + 2 for the task: google-research/
    electra, `model/optimization.py`, `_get_layer_lrs`; 0.8 for its small and base, 0.9 for its large model."""
    depths = {"embeddings": 0, "task": layers + 2} | {f"layer_{index}": index + 1 for index in range(layers)}
    authors = {name: decay ** (layers + 2 - depth) for name, depth in depths.items()}
    params = {
        "encoder": {"embeddings": {"word": jnp.ones(2)}, "layers": {"dense": {"kernel": jnp.ones((layers, 2, 2))}}},
        "heads": {"classification": {"kernel": jnp.ones((2, 2))}},
    }
    rule = by_depth(decay, offset=2)
    ours, _ = rule.update(jax.tree.map(jnp.ones_like, params), rule.init(params), params)
    np.testing.assert_allclose(ours["encoder"]["embeddings"]["word"], authors["embeddings"], rtol=1e-5)
    np.testing.assert_allclose(ours["heads"]["classification"]["kernel"], authors["task"], rtol=1e-5)
    for index in range(layers):
        np.testing.assert_allclose(
            ours["encoder"]["layers"]["dense"]["kernel"][index], authors[f"layer_{index}"], rtol=1e-5
        )
    assert authors["layer_0"] < authors[f"layer_{layers - 1}"] == pytest.approx(decay**2)
