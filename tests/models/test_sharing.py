"""Layers that share their weights, and how deep a stack of them is."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from tests import batches
from tests.models.encoding import CORE, params_of

# All widths differ, so that an array's shape identifies it.
CONFIG = dataclasses.replace(batches.ENCODER, layers=4, width=24, heads=2, feedforward=40, max_positions=16)
SHARED = {"attention": {"attention", "attention_norm"}, "feedforward": {"intermediate", "output", "output_norm"}}
SHARED |= {"none": set(), "all": SHARED["attention"] | SHARED["feedforward"]}
CHOICES = [("attention", 2), ("feedforward", 1), ("all", 1), ("all", 2)]


def sharing(kind: str, groups: int, **others) -> EncoderConfig:
    return dataclasses.replace(CONFIG, sharing=kind, sharing_groups=groups, **others)


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


@pytest.mark.parametrize("kind, groups", CHOICES[1::2])
def test_shared_layers_are_equal_layers_and_their_gradients_are_summed(kind, groups):
    config, batch = sharing(kind, groups), batches.make(3)
    params = params_of(config)
    value, gradient = value_and_gradient(config, params, batch)
    expected, of_copies = value_and_gradient(CONFIG, unshared(params), batch)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    close(gradient, summed(of_copies, params))


@pytest.mark.slow
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


@pytest.mark.slow
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
