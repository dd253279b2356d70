"""Weights that are pruned while they are trained: the schedule, the masks, the gradients of scores, the zeros."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.config.opening import SavedModel
from bertjax.runtime.errors import UserError
from bertjax.training.compression import PruningConfig, add_scores, describe_zeros, is_pruned, is_score, pruned
from bertjax.training.lora import LoraConfig
from bertjax.training.model_params import ModelParams
from bertjax.training.step import gradients
from tests import batches, runs
from tests.training.trainer import make_step

KINDS = ["movement", "magnitude"]
QUERY = "encoder/layers/attention/query/kernel"
STEPS = 100


def adapts_none(path: str) -> bool:
    return False


@functools.cache
def params_of() -> dict:
    objective = make_step().loss.objective
    return jax.tree.map(jnp.asarray, batches.filled(batches.param_shapes(objective, batches.ENCODER)))


@functools.cache
def with_scores() -> dict:
    """Params with scores that are not 0, and differ."""
    params = add_scores(PruningConfig("movement"), params_of(), (), adapts_none)
    draw = np.random.default_rng(0)
    scores = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), jnp.float32), params["scores"])
    return params | {"scores": scores}


def flat(params: dict) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf) for path, leaf in flatten_dict(params, sep="/").items()}


@pytest.mark.parametrize(
    "step, remaining",
    # 0.15 + 0.85 * (1 - (step - 10) / 70)^3, section 5 of the paper, by hand
    [(0, 1.0), (10, 1.0), (24, 0.15 + 0.85 * 0.512), (45, 0.15 + 0.85 * 0.125), (66, 0.1568), (80, 0.15), (100, 0.15)],
)
def test_the_share_of_weights_falls_by_a_cubic_schedule(step, remaining):
    assert PruningConfig("movement").remaining_at(step, STEPS) == pytest.approx(remaining, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 30, STEPS])
def test_the_highest_scores_of_each_layer_remain(kind, step):
    """Beside a sort in numpy."""
    config, params = PruningConfig(kind), with_scores() if kind == "movement" else params_of()
    before, after = flat(params), flat(pruned(config, params, step, STEPS))
    assert after.keys() == {path for path in before if not is_score(path)}
    for path, leaf in after.items():
        if not is_pruned(path):
            np.testing.assert_array_equal(leaf, before[path])
            continue
        scores = before[f"scores/{path}"] if kind == "movement" else np.abs(before[path])
        for layer, (kernel, score) in enumerate(zip(before[path], scores, strict=True)):
            count = round(float(config.remaining_at(step, STEPS)) * score.size)
            lowest = np.sort(score, axis=None)[score.size - count]
            np.testing.assert_array_equal(leaf[layer], np.where(score >= lowest, kernel, 0.0))
    assert np.mean(after[QUERY] != 0) == pytest.approx(float(config.remaining_at(step, STEPS)), abs=2e-3)


def test_the_gradient_of_scores_is_that_of_the_pruned_weights_times_the_weights():
    """On one matrix by hand: L = sum(C * W'^2) / 2, so dL/dW' = C * W'; dW = dW' * mask, dS = dW' * W.

    A finite difference of the loss in the mask itself gives dS: the mask is 1 or 0 in the loss, and S passes for it.
    """
    weights = np.array([[[2.0, -1.0], [0.5, 4.0]]], np.float32)
    scores = np.array([[[0.3, -0.2], [0.9, -0.7]]], np.float32)
    factors = np.array([[[1.0, 10.0], [3.0, 7.0]]], np.float32)
    mask, config = np.array([[[1, 0], [1, 0]]], np.float32), PruningConfig("movement", 0.5, 0.0, 1.0)

    def loss(weights, scores):
        params = {"encoder": {"layers": {"a": {"kernel": weights}}}}
        params |= {"scores": {"encoder": {"layers": {"a": {"kernel": scores}}}}}
        return jnp.sum(factors * (pruned(config, params, 1, 1)["encoder"]["layers"]["a"]["kernel"] + 1.0) ** 2) / 2

    of_weights, of_scores = jax.grad(loss, (0, 1))(weights, scores)
    upstream = factors * (mask * weights + 1.0)
    np.testing.assert_allclose(of_weights, upstream * mask, rtol=1e-6)
    np.testing.assert_allclose(of_scores, upstream * weights, rtol=1e-6)

    def with_mask(mask):
        return np.sum(factors.astype(np.float64) * (mask * weights + 1.0) ** 2) / 2

    for place in np.ndindex(mask.shape):
        step = np.zeros(mask.shape)
        step[place] = 1e-4
        difference = (with_mask(mask + step) - with_mask(mask - step)) / 2e-4
        assert of_scores[place] == pytest.approx(difference, rel=1e-5)


@pytest.mark.slow
def test_gradients_of_a_step_are_those_of_the_pruned_model():
    config, batch = ModelParams(pruning=PruningConfig("movement"), steps=STEPS), batches.make()
    trained = dataclasses.replace(make_step(), model_params=config)
    gradient, *_ = jax.jit(functools.partial(gradients, trained))(with_scores(), None, batch, 60)
    plain = config(with_scores(), 60)
    expected, *_ = jax.jit(functools.partial(gradients, make_step()))(plain, None, batch, 60)
    gradient, expected, plain, before = map(flat, (gradient, expected, plain, with_scores()))
    for path, leaf in expected.items():
        masked = leaf * (plain[path] != 0) if is_pruned(path) else leaf
        np.testing.assert_allclose(gradient[path], masked, rtol=1e-4, atol=1e-5, err_msg=path)
        if is_pruned(path):
            np.testing.assert_allclose(gradient[f"scores/{path}"], leaf * before[path], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "frozen, complaint",
    [
        ("^encoder/", "optimizer.frozen=['^encoder/'] would freeze encoder/layers/"),
        ("scores/.*value", "optimizer.frozen=['scores/.*value'] would freeze scores/encoder/layers/attention/value/"),
    ],
)
def test_scores_without_a_gradient_are_refused(frozen, complaint):
    with pytest.raises(UserError) as error:
        add_scores(PruningConfig("movement"), params_of(), (frozen,), adapts_none)
    assert str(error.value).startswith(complaint) and "set pruning.kind=magnitude" in str(error.value)
    adapts = LoraConfig(rank=4, kernels=".").adapts
    assert "scores" in add_scores(PruningConfig("movement"), params_of(), ("^encoder/",), adapts)
    assert add_scores(PruningConfig("magnitude"), params_of(), (frozen,), adapts_none) is params_of()


def test_sizes_are_those_of_the_kernels_of_the_layers():
    after = pruned(PruningConfig("magnitude", 0.25), params_of(), STEPS, STEPS)
    weights = 3 * (4 * 16 * 16 + 2 * 16 * 32)
    assert describe_zeros(after) == (
        f"75.0% of {weights:,} weights in the kernels of the layers are 0: {4 * weights / 1e6:.1f} MB as stored, "
        f"{(weights / 8 + weights) / 1e6:.1f} MB with a bit for each weight and the others as float32"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_pruned_run_resumes_and_is_exported_with_zeros(kind, flags, tmp_path, capsys):
    """Bit for bit as a run that never stopped; the checkpoint and the export score as the run did."""
    flags = [*flags, f"--config.pruning.kind={kind}", "--config.pruning.remaining=0.2"]
    flags += ["--config.eval.every=30", "--config.runtime.keep_best=4"]
    assert runs.call(*flags, f"--workdir={tmp_path / 'run'}") == 0
    assert "80.0% of " in capsys.readouterr().out
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept & {30, 60, 90} == {90}  # the first two have weights that were pruned later
    stopped = runs.train_here(flags, tmp_path / "again", lambda step: True if step == 40 else None)
    assert stopped.step == 40 and runs.call(*flags, f"--workdir={tmp_path / 'again'}") == 0
    assert runs.weights(tmp_path / "again") == runs.weights(tmp_path / "run")

    exported = flat(SavedModel(tmp_path / "run" / "export").export.params)
    assert not any(is_score(path) for path in exported)
    for path in filter(is_pruned, exported):
        assert np.mean(exported[path] == 0, axis=(1, 2)) == pytest.approx(0.8, abs=2e-3), path
    checkpoint = flat(SavedModel(tmp_path / "run").export.params)
    assert checkpoint.keys() == exported.keys()
    for path in filter(is_pruned, exported):
        np.testing.assert_array_equal(checkpoint[path], exported[path], err_msg=path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    scores = runs.score_export(tmp_path / "run")["eval"]
    assert scores["mlm_loss"] == pytest.approx(summary["eval"]["mlm_loss"], rel=1e-5)
