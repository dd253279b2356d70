"""Weights that are rounded in training: to what int8 stores, with the gradient of the rounded weights."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.cli import compress, evaluate
from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.models import int8, layers
from bertjax.training.model_params import ModelParams
from bertjax.training.quantization import QuantizationConfig, rounded
from bertjax.training.step import gradients
from tests import batches, runs
from tests.training.trainer import make_step

QUERY, WORD = "encoder/layers/attention/query/kernel", "encoder/embeddings/word"


@functools.cache
def params_of() -> dict:
    objective = make_step().loss.objective
    return jax.tree.map(jnp.asarray, batches.filled(batches.param_shapes(objective, batches.ENCODER)))


def flat(params: dict) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf) for path, leaf in flatten_dict(params, sep="/").items()}


def test_eight_bits_are_what_an_int8_export_stores():
    before, after = flat(params_of()), flat(rounded(QuantizationConfig(8), params_of()))
    stored = int8.dequantize(int8.quantize(before))
    again = int8.dequantize(int8.quantize(after))
    for path, leaf in after.items():
        np.testing.assert_allclose(leaf, stored[path], rtol=1e-5, atol=1e-7, err_msg=path)
        np.testing.assert_allclose(leaf, again[path], rtol=1e-5, atol=1e-7, err_msg=path)
    assert np.any(after[QUERY] != before[QUERY]) and np.any(after[WORD] != before[WORD])
    assert np.array_equal(after["encoder/embeddings/position"], before["encoder/embeddings/position"])


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_channel_has_few_values_and_errors_of_half_a_step(bits):
    before, after = flat(params_of())[QUERY], flat(rounded(QuantizationConfig(bits), params_of()))[QUERY]
    steps = np.abs(before).max(axis=-2, keepdims=True) / (2 ** (bits - 1) - 1)
    assert np.all(np.abs(after - before) <= steps / 2 * (1 + 1e-5))
    for layer in after:
        assert max(len(np.unique(column.round(6))) for column in layer.T) <= 2**bits - 1


@pytest.mark.parametrize("bits", range(2, 9))
def test_an_int8_export_stores_any_bits_without_error(bits):
    after = flat(rounded(QuantizationConfig(bits), params_of()))
    stored = int8.dequantize(int8.quantize(after))
    for path, leaf in after.items():
        np.testing.assert_allclose(stored[path], leaf, rtol=1e-5, atol=1e-7, err_msg=path)


def test_layers_have_bits_of_their_own():
    """The others keep `bits`."""
    config = QuantizationConfig(8, layer_bits=(2, 8, 4))
    mixed = flat(rounded(config, params_of()))
    for layer, bits in enumerate(config.layer_bits):
        expected = flat(rounded(QuantizationConfig(bits), params_of()))
        np.testing.assert_array_equal(mixed[QUERY][layer], expected[QUERY][layer])
    np.testing.assert_array_equal(mixed[WORD], flat(rounded(QuantizationConfig(8), params_of()))[WORD])


def test_the_gradient_is_that_of_the_rounded_weights():
    config, batch = QuantizationConfig(3), batches.make()
    trained = dataclasses.replace(make_step(), model_params=ModelParams(quantization=config))
    gradient, *_ = jax.jit(functools.partial(gradients, trained))(params_of(), None, batch, 0)
    expected, *_ = jax.jit(functools.partial(gradients, make_step()))(rounded(config, params_of()), None, batch, 0)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradient, expected)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_inputs_are_rounded_token_by_token_with_the_gradient_of_the_floats(count):
    rows = np.random.default_rng(0).normal(0, [[0.1], [3.0], [0.0]], (3, 16)).astype(np.float32)
    levels = 2 ** (count - 1) - 1
    largest = np.abs(rows).max(axis=1, keepdims=True)
    expected = np.round(rows / np.where(largest, largest, 1) * levels) / levels * largest
    np.testing.assert_allclose(layers.rounded(jnp.asarray(rows), count), expected, rtol=1e-5, atol=1e-7)
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(layers.rounded(x, count))))(jnp.asarray(rows))
    np.testing.assert_allclose(gradient, np.cos(expected), rtol=1e-5, atol=1e-6)


def test_every_dense_layer_reads_rounded_inputs():
    """With few bits all states change; with eight, little; an example does not depend on those beside it."""
    batch, objective = batches.make(), make_step().loss.objective

    def pooled(activation_bits, batch):
        model = objective.model(dataclasses.replace(batches.ENCODER, activation_bits=activation_bits))
        return np.asarray(objective.apply(model, params_of(), batch, method=lambda m, b, _: m.encode(b).pooled_BND))

    floats, eight, two = (pooled(count, batch) for count in (0, 8, 2))
    assert 0 < np.abs(eight - floats).max() < 0.1 * np.abs(two - floats).max()
    alone = {name: values[:1] for name, values in batch.items()}
    np.testing.assert_allclose(pooled(8, alone), eight[:1], atol=1e-5)


@pytest.mark.slow
def test_a_run_of_few_bits_is_exported_as_it_was_evaluated(tmp_path, flags):
    """In float and in int8, and from its checkpoint."""
    settings = "--config.quantization.bits=8", "--config.model.activation_bits=8"
    assert runs.call(*flags, *settings, f"--workdir={tmp_path / 'run'}") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    compress.run(tmp_path / "run" / "export", tmp_path / "int8", quantized=True)
    [corpus] = [flag.partition("=")[2] for flag in flags if "corpus=" in flag]
    for name in (tmp_path / "run" / "export", tmp_path / "int8", tmp_path / "run"):
        scores = evaluate.score(SavedModel(name), SavedModel(tmp_path / "run").config, corpus)["eval"]
        assert scores["mlm_loss"] == pytest.approx(summary["eval"]["mlm_loss"], rel=1e-5), name
    words = export.read(tmp_path / "run" / "export").params["encoder"]["embeddings"]["word"]
    assert max(len(np.unique(np.round(row / np.abs(row).max() * 127, 3))) for row in words if row.any()) <= 255
