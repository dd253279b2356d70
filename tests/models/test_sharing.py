"""Layers that share their weights, and how deep a stack of them is."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError
from tests import batches

# All widths differ, so that an array's shape identifies it.
CONFIG = dataclasses.replace(batches.ENCODER, layers=4, width=24, heads=2, feedforward=40, max_positions=16)
CORE = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")
SHARED = {"attention": {"attention", "attention_norm"}, "feedforward": {"intermediate", "output", "output_norm"}}
SHARED |= {"none": set(), "all": SHARED["attention"] | SHARED["feedforward"]}
CHOICES = [("attention", 2), ("feedforward", 1), ("all", 1), ("all", 2)]


def sharing(kind: str, groups: int, **others) -> EncoderConfig:
    return dataclasses.replace(CONFIG, sharing=kind, sharing_groups=groups, **others)


@functools.cache
def params_of(config: EncoderConfig) -> dict:
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return batches.filled(shapes["params"])


def unshared(params: dict) -> dict:
    """Repeat each row of the stack for every layer that uses it."""

    def repeat(leaf):
        return np.repeat(leaf, CONFIG.layers // len(leaf), axis=0)

    return params | {"layers": jax.tree.map(repeat, params["layers"])}


def number(config: EncoderConfig, params: dict, batch: dict, taps: dict | None = None, **arguments):
    """Return a number in which every visible hidden state counts differently."""
    variables = {"params": params, "taps": taps or {}}
    encoded = Encoder(config).apply(variables, *(batch[name] for name in CORE), **arguments)
    seen = 1.0 if "read_BK" in arguments else batch["examples_BT"][..., None]
    return jnp.sum(jnp.sin(3 * encoded.hidden * seen)) + jnp.sum(encoded.pooled_BND**2)


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(config, params, batch, **arguments):
    return jax.value_and_grad(lambda params: number(config, params, batch, **arguments))(params)


def close(actual, expected, tolerance=2e-5):
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest), actual, expected
    )


def summed(gradient: dict, like: dict) -> dict:
    """Return the gradients of the layers' copies, summed over the layers that share a parameter."""

    def sums(leaf, rows):
        return leaf.reshape(len(rows), -1, *leaf.shape[1:]).sum(axis=1)

    return gradient | {"layers": jax.tree.map(sums, gradient["layers"], like["layers"])}


@pytest.mark.parametrize("kind, groups", CHOICES)
def test_shared_parameters_are_stacked_once_per_group(kind, groups):
    for name, params in params_of(sharing(kind, groups))["layers"].items():
        rows = {len(leaf) for leaf in jax.tree.leaves(params)}
        assert rows == {groups if name in SHARED[kind] else CONFIG.layers}


@pytest.mark.parametrize("kind, groups", CHOICES[1::2])
def test_shared_layers_are_equal_layers_and_their_gradients_are_summed(kind, groups):
    config, batch = sharing(kind, groups), batches.make(3)
    params = params_of(config)
    value, gradient = value_and_gradient(config, params, batch)
    expected, of_copies = value_and_gradient(CONFIG, unshared(params), batch)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    close(gradient, summed(of_copies, params))


@pytest.mark.parametrize(
    "kind, groups, execution", [("all", 1, Execution(unroll=True)), ("attention", 2, Execution(remat="dots"))], ids=str
)
def test_the_execution_of_shared_layers_changes_nothing(kind, groups, execution):
    config, batch, key = sharing(kind, groups, dropout=0.1, attention_dropout=0.1), batches.make(3), jax.random.key(3)
    other = dataclasses.replace(config, execution=execution)
    params = params_of(config)
    close(value_and_gradient(other, params, batch, key=key), value_and_gradient(config, params, batch, key=key))


@pytest.mark.parametrize("kind, groups", [("all", 1), ("attention", 2)])
def test_taps_reach_shared_layers_one_by_one(kind, groups):
    config, batch = sharing(kind, groups), batches.make(3)
    params, read_BK = params_of(config), batch["mlm_positions_BK"]
    head_mask_LH = np.ones((4, 2), np.float32)
    head_mask_LH[1, 0] = head_mask_LH[3, 1] = 0.0
    arguments = {"read_BK": read_BK, "taps": {"head_mask": head_mask_LH}}
    value, gradient = value_and_gradient(config, params, batch, **arguments)
    expected, of_copies = value_and_gradient(CONFIG, unshared(params), batch, **arguments)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    close(gradient, summed(of_copies, params))

    @functools.partial(jax.jit, static_argnums=0)
    def captured(config, params):
        core = (batch[name] for name in CORE)
        return Encoder(config).apply({"params": params}, *core, mutable=["captured"])[1]["captured"]

    values = captured(config, params)
    assert values["hidden"].shape == (5, 3, 16, 24) and values["attention"].shape == (4, 3, 2, 16, 16)
    assert values["context"].shape == (4, 3, 16, 2, 12) and values["feedforward"].shape == (4, 3, 16, 40)
    close(values, captured(CONFIG, unshared(params)))


@pytest.mark.parametrize("groups, remat, read", [(1, "none", True), (2, "dots", False), (1, "full", True)])
def test_no_shared_weight_is_copied_for_each_layer(groups, remat, read):
    """Neither forward nor backward has an array of all layers' kernels, in any dtype."""
    execution, batch = Execution(dtype="bfloat16", remat=remat), batches.make(3)
    taps = {"read_BK": batch["mlm_positions_BK"]} if read else {}
    kernel = re.compile(r"\w+\[[34],(24,24|24,40|40,24)\]")

    def traced(config):
        gradient = jax.grad(lambda params: number(config, params, batch, **taps))
        return kernel.findall(str(jax.make_jaxpr(gradient)(params_of(config))))

    assert traced(dataclasses.replace(CONFIG, execution=execution))
    assert not traced(sharing("all", groups, execution=execution))


def test_shared_weights_are_gathered_when_they_are_used():
    """A strategy that gathers the weights of one layer at a time gathers shared weights, too."""
    batch = batches.make(3)
    doubled = Execution(gather_layer=lambda params: jax.tree.map(lambda leaf: 2 * leaf, params))
    for kind, groups in (("all", 1), ("attention", 2)):
        config = sharing(kind, groups)
        params = params_of(config)
        twice = params | {"layers": jax.tree.map(lambda leaf: 2 * leaf, params["layers"])}
        value, gradient = value_and_gradient(dataclasses.replace(config, execution=doubled), params, batch)
        expected, of_twice = value_and_gradient(config, twice, batch)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        close(gradient["layers"], jax.tree.map(lambda leaf: 2 * leaf, of_twice["layers"]))


def test_gradients_of_many_shared_layers_are_summed_in_float32():
    """In bfloat16 the 24th summand of a sum would lose half of its bits."""
    config = sharing("all", 1, layers=24, execution=Execution(dtype="bfloat16"))
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params_of(config))
    batch = batches.make(3)
    text = str(jax.make_jaxpr(jax.grad(lambda params: number(config, params, batch)))(rounded))
    assert "f32[24,40]" in text  # the carry of the sum; the products themselves are bfloat16
    assert "bf16[24,40]" in text


def test_depth_costs_no_parameters():
    deep, shallow = (params_of(sharing("all", 1, layers=layers)) for layers in (12, 2))
    assert jax.tree.map(np.shape, deep) == jax.tree.map(np.shape, shallow)
    batch = batches.make(2)
    output = jax.jit(number, static_argnums=0)
    assert not np.allclose(*(output(sharing("all", 1, layers=layers), deep, batch) for layers in (12, 2)))


def test_shared_layers_start_as_the_first_layers_of_a_stack():
    tokens_BT = jnp.zeros((1, 4), jnp.int32)
    plain, shared = (
        jax.jit(Encoder(config).init)(jax.random.key(0), tokens_BT)["params"] for config in (CONFIG, sharing("all", 2))
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:2], b), plain["layers"], shared["layers"])


# Table 1 of Lan et al. (2020), in millions, and what it comes to: embeddings of 30,000 pieces, 512 positions and two
# segments, their projection, one layer and the pooler, no heads. The paper does not define its count; its number for
# the largest is 5% above this one, whatever is counted.
@pytest.mark.parametrize(
    "preset, millions, parameters",
    [
        ("albert_base", 12, 11_683_584),
        ("albert_large", 18, 17_683_968),
        ("albert_xlarge", 60, 58_724_864),
        ("albert_xxlarge", 235, 222_595_584),
    ],
)
def test_albert_has_the_published_number_of_parameters(preset, millions, parameters):
    config = dataclasses.replace(PRESETS[preset], vocab_size=30_000)
    width, embedded = config.width, 128
    embeddings = (30_000 + 512 + 2) * embedded + 2 * embedded + embedded * width + width
    layer = 4 * (width + 1) * width + (width + 1) * 4 * width + (4 * width + 1) * width + 4 * width
    assert parameters == embeddings + layer + (width + 1) * width
    assert abs(parameters / 1e6 - millions) < max(1.5, 0.06 * millions)
    params = jax.eval_shape(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    assert vocabulary.count_parameters(params, config) == parameters


@pytest.mark.parametrize("preset, parameters", [("roberta_base", 124_644_864), ("roberta_large", 355_358_720)])
def test_roberta_has_the_parameters_of_the_released_models(preset, parameters):
    """With 50,265 pieces, 514 rows of positions and a pooler; transformers also has a segment table of one row."""
    config = dataclasses.replace(PRESETS[preset], vocab_size=50_265)
    params = jax.eval_shape(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    assert vocabulary.count_parameters(params, config) == parameters


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"sharing": "all", "sharing_groups": 5}, "model.sharing_groups=5 does not divide model.layers=12; choose a"),
        ({"sharing_groups": 2}, "model.sharing_groups=2 has no effect with model.sharing=none; set model.sharing to "),
    ],
)
def test_invalid_stacks(fields, message):
    with pytest.raises(UserError, match=f"^{message}"):
        EncoderConfig(**fields)
