"""LoRA and quantization: functions of the params."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from bertjax.cli import compress, train
from bertjax.config import config_file, export
from bertjax.config.opening import SavedModel
from bertjax.models import int8
from bertjax.runtime.errors import UserError
from bertjax.training.compression import QuantizationConfig, rounded
from bertjax.training.lora import LoraConfig, add_factors, merge
from bertjax.training.model_params import ModelParams
from bertjax.training.optim.freezing import Freezing
from bertjax.training.results import rescore
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.workdir import Workdir
from bertjax.training.step import gradients
from tests import batches, labeled_files, runs
from tests.training.trainer import make_step

CONFIG = LoraConfig(rank=4, alpha=6.0, kernels="query|intermediate")
FROZEN = ("^encoder/(?!pooler/)",)
QUERY = "encoder/layers/attention/query/kernel"


def params_of() -> dict:
    objective = make_step().loss.objective
    return jax.tree.map(jnp.asarray, batches.filled(batches.param_shapes(objective, batches.ENCODER)))


def with_factors(seed: int = 0) -> dict:
    """Params with factors that are not 0."""
    params = add_factors(CONFIG, params_of(), jax.random.key(0), FROZEN)
    draw = np.random.default_rng(seed)
    lora = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), jnp.float32), params["lora"])
    return params | {"lora": lora}


def test_new_factors_do_not_change_the_model():
    params = params_of()
    adapted = add_factors(CONFIG, params, jax.random.key(0), FROZEN)
    flat = flatten_dict(adapted["lora"], sep="/")
    assert {path: leaf.shape for path, leaf in flat.items()} == {
        f"{QUERY}/a": (3, 16, 4),
        f"{QUERY}/b": (3, 4, 16),
        "encoder/layers/intermediate/kernel/a": (3, 16, 4),
        "encoder/layers/intermediate/kernel/b": (3, 4, 32),
    }
    np.testing.assert_allclose(np.std(flat[f"{QUERY}/a"]), (3 * 16) ** -0.5, rtol=0.15)
    jax.tree.map(np.testing.assert_array_equal, merge(CONFIG, adapted), params)


def test_a_merged_kernel_computes_what_kernel_and_factors_compute():
    """x W + alpha / rank * (x A) B of each layer, in float64."""
    params = with_factors()
    merged, inputs = merge(CONFIG, params), np.random.default_rng(1).normal(size=(5, 16))
    flat = {path: np.asarray(leaf, np.float64) for path, leaf in flatten_dict(params, sep="/").items()}
    for layer in range(3):
        a, b = (flat[f"lora/{QUERY}/{name}"][layer] for name in "ab")
        expected = inputs @ flat[QUERY][layer] + 6.0 / 4 * (inputs @ a) @ b
        kernel = np.asarray(merged["encoder"]["layers"]["attention"]["query"]["kernel"][layer], np.float64)
        np.testing.assert_allclose(inputs @ kernel, expected, atol=1e-5)


@pytest.mark.slow
def test_gradients_of_factors_follow_from_those_of_the_kernel():
    """dA = alpha / rank * dW B^T and dB = alpha / rank * A^T dW; frozen params have a gradient of 0."""
    params, batch = with_factors(), batches.make()
    adapted = dataclasses.replace(make_step(), model_params=ModelParams(CONFIG, freezing=Freezing(FROZEN)))
    gradient, *_ = jax.jit(functools.partial(gradients, adapted))(params, None, batch, 0)
    full, *_ = jax.jit(functools.partial(gradients, make_step()))(merge(CONFIG, params), None, batch, 0)
    factors, kernel = gradient["lora"]["encoder"]["layers"], full["encoder"]["layers"]["intermediate"]["kernel"]
    a, b = (params["lora"]["encoder"]["layers"]["intermediate"]["kernel"][name] for name in "ab")
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(factors["intermediate"]["kernel"]["a"], 1.5 * np.einsum("lio,lro->lir", kernel, b))
    close(factors["intermediate"]["kernel"]["b"], 1.5 * np.einsum("lir,lio->lro", a, kernel))
    assert jnp.abs(factors["attention"]["query"]["kernel"]["a"]).max() > 0.0
    pooler = gradient["encoder"].pop("pooler")
    assert all(not jnp.any(leaf) for leaf in jax.tree.leaves(gradient["encoder"]))
    jax.tree.map(functools.partial(close, rtol=1e-3), pooler, full["encoder"]["pooler"])


@pytest.mark.parametrize(
    "config, frozen, message",
    [
        (
            dataclasses.replace(CONFIG, kernels="qery"),
            FROZEN,
            "lora.kernels='qery' matches no kernel; choose among encoder/layers/attention/",
        ),
        (
            CONFIG,
            ("embeddings/", "intermediate"),
            f"optimizer.frozen=['embeddings/', 'intermediate'] would train {QUERY}, which lora adapts; add '{QUERY}$'",
        ),
        (CONFIG, ("encoder/",), f"optimizer.frozen=['encoder/'] would freeze lora/{QUERY}/a, which lora trains; "),
    ],
)
def test_kernels_that_do_not_fit_are_refused(config, frozen, message):
    with pytest.raises(UserError) as error:
        add_factors(config, params_of(), jax.random.key(0), frozen)
    assert str(error.value).startswith(message)


SETTINGS = """
def get_config():
    return {
        "model": {"preset": "init_from"},
        "tasks": {"good": {"objective": {"kind": "classification"}, "examples": {"kind": "labeled_text"}}},
        "optimizer": {"learning_rate": 5e-3, "warmup_share": 0.1},
        "lora": {"rank": 4, "kernels": "attention/|intermediate"},
        "stages": [{"epochs": 6.0, "seq_len": 32, "examples": 16}],
        "eval": {"every": 0, "rows": 0, "samples": 0},
        "runtime": {"save_every": 10, "keep": 9},
    }
"""


@pytest.fixture(scope="module")
def config(undisturbed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    (folder / "lora.py").write_text(SETTINGS)
    train_file, dev = labeled_files.write(folder)
    examples = "tasks.good.examples"
    overrides = [f"{examples}.train={train_file}", f"{examples}.heldout={dev}"]
    return config_file.load(str(folder / "lora.py"), [f"init_from={undisturbed / 'export'}", *overrides])


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("lora_run") / "run"
    assert train.run(config, workdir).finished
    return workdir


@pytest.mark.slow
def test_only_factors_pooler_and_heads_are_trained_and_have_moments(undisturbed, finished):
    checkpoints = Checkpoints(Workdir.at(finished).checkpoints)
    state = checkpoints.restore(checkpoints.steps()[-1]).tree
    params, before = flatten_dict(state["params"], sep="/"), load_file(undisturbed / "export" / "model.safetensors")
    encoder = {path: leaf for path, leaf in before.items() if path.startswith("encoder/")}
    changed = {path for path, leaf in encoder.items() if not np.array_equal(leaf, params[path][: len(leaf)])}
    assert changed == {"encoder/pooler/bias", "encoder/pooler/kernel"}
    kernels = ("query", "key", "value", "output")
    assert {path for path in params if path.startswith("lora/")} == {
        f"lora/encoder/layers/{module}/kernel/{name}"
        for module in (*(f"attention/{kernel}" for kernel in kernels), "intermediate")
        for name in "ab"
    }
    trained = sum(path.startswith(("lora/", "heads/", "encoder/pooler/")) for path in params)
    assert trained == 2 * 5 + 2 + 2
    assert sum(np.ndim(leaf) > 0 for leaf in jax.tree.leaves(state["opt_state"])) == 2 * trained


@pytest.mark.slow
def test_a_resumed_run_is_equal_bit_for_bit(config, finished, tmp_path):
    edges = iter(range(1, 1000))
    stopped = train.run(config, tmp_path, should_stop=lambda: next(edges) == 7)
    assert stopped.step == 7 and not stopped.finished
    assert train.run(config, tmp_path).finished
    assert runs.weights(tmp_path) == runs.weights(finished)


@pytest.mark.slow
def test_eight_devices_train_the_same_factors():
    results = runs.on_devices(8, "tests.training.lora_on_eight_devices")
    assert len(results) == 3 and max(results.values()) < 1e-5


QUANTIZATION_QUERY, WORD = "encoder/layers/attention/query/kernel", "encoder/embeddings/word"


@functools.cache
def params_of_of_quantization() -> dict:
    objective = make_step().loss.objective
    return jax.tree.map(jnp.asarray, batches.filled(batches.param_shapes(objective, batches.ENCODER)))


def flat(params: dict) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf) for path, leaf in flatten_dict(params, sep="/").items()}


def test_eight_bits_are_what_an_int8_export_stores():
    before, after = flat(params_of_of_quantization()), flat(rounded(QuantizationConfig(8), params_of_of_quantization()))
    stored = int8.dequantize(int8.quantize(before))
    again = int8.dequantize(int8.quantize(after))
    for path, leaf in after.items():
        np.testing.assert_allclose(leaf, stored[path], rtol=1e-5, atol=1e-7, err_msg=path)
        np.testing.assert_allclose(leaf, again[path], rtol=1e-5, atol=1e-7, err_msg=path)
    assert np.any(after[QUANTIZATION_QUERY] != before[QUANTIZATION_QUERY]) and np.any(after[WORD] != before[WORD])
    assert np.array_equal(after["encoder/embeddings/position"], before["encoder/embeddings/position"])


@pytest.mark.slow
def test_the_gradient_is_that_of_the_rounded_weights():
    config, batch = QuantizationConfig(3), batches.make()
    trained = dataclasses.replace(make_step(), model_params=ModelParams(quantization=config))
    gradient, *_ = jax.jit(functools.partial(gradients, trained))(params_of_of_quantization(), None, batch, 0)
    expected, *_ = jax.jit(functools.partial(gradients, make_step()))(
        rounded(config, params_of_of_quantization()), None, batch, 0
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradient, expected)


@pytest.mark.slow
def test_a_run_of_few_bits_is_exported_as_it_was_evaluated(tmp_path, flags):
    """In float and in int8, and from its checkpoint."""
    settings = "--config.quantization.bits=8", "--config.model.activation_bits=8"
    assert runs.call(*flags, *settings, f"--workdir={tmp_path / 'run'}") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    compress.run(tmp_path / "run" / "export", tmp_path / "int8", quantized=True)
    for name in (tmp_path / "run" / "export", tmp_path / "int8", tmp_path / "run"):
        scores = rescore.score(SavedModel(name), SavedModel(tmp_path / "run").config)["eval"]
        assert scores["mlm_loss"] == pytest.approx(summary["eval"]["mlm_loss"], rel=1e-5), name
    words = export.read(tmp_path / "run" / "export").params["encoder"]["embeddings"]["word"]
    assert max(len(np.unique(np.round(row / np.abs(row).max() * 127, 3))) for row in words if row.any()) <= 255
