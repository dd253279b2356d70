"""The training step: golden values, micro-batches, dispatches, and steps that are not finite."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config.config import Task, from_dict
from bertjax.data.labeled.choices import Choices
from bertjax.data.labeled.texts import SiamesePairs
from bertjax.models.bert import BertLayer
from bertjax.models.encoder import Encoder
from bertjax.models.visibility import LayerInputs, Visibility
from bertjax.objectives.finetuning.embeddings import EmbeddingRegression
from bertjax.objectives.finetuning.multiple_choice import MultipleChoice
from bertjax.training.run.record import read_checkpoint
from bertjax.training.setup import Setup, compile_chunk, init_state, make_setups
from bertjax.training.shapes import batch_shapes
from bertjax.training.state import grow
from bertjax.training.step import gradients
from tests import batches, runs
from tests.training.trainer import Trainer, make_step

# All steps without dropout allow two non-finite steps in a row, so that one program computes them.
PLAIN = {"max_skipped": 2}


def equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def with_nan(batch: dict) -> dict:
    weights_BK = batch["mlm_weights_BK"].copy()
    weights_BK[0, 0] = np.nan
    return batch | {"mlm_weights_BK": weights_BK}


def test_golden_steps():
    """From fixed weights: the second losses change with every formula of the step."""
    batch, plain = batches.make(), make_step(**PLAIN)
    trainer = Trainer(plain)
    shapes = batches.param_shapes(plain.loss.objective, plain.loss.model.config, batch)
    trainer.state["params"] = batches.filled(shapes)
    metrics = trainer.train(batch, batch)
    for name, golden in GOLDEN.items():
        np.testing.assert_allclose(metrics[name], golden, rtol=1e-4, err_msg=name)


GOLDEN = {
    "mlm_loss": [6.15291, 5.89268],
    "nsp_loss": [0.695176, 0.66923],
    "gradient_norm": [15.0356, 6.54821],
    "update_norm": [0.18883, 0.297303],
    "parameter_norm": [23.8464, 23.8336],
}


def test_micro_batches_change_neither_the_gradient_nor_dropout():
    """Each row draws its own dropout: four micro-batches have the losses and the gradient of a whole batch."""
    batch, whole = batches.make(), make_step(dropout=0.3)
    params = batches.filled(batches.param_shapes(whole.loss.objective, whole.loss.model.config, batch))

    def gradients_with(micro_tokens):
        split = make_step(dropout=0.3, micro_tokens=micro_tokens)
        return jax.jit(functools.partial(gradients, split))(params, None, batch, jnp.int32(0))

    (gradient, losses, *rest), (expected, expected_losses, *expected_rest) = gradients_with(32), gradients_with(0)
    assert losses.keys() == expected_losses.keys() == {"mlm", "nsp"}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), losses, expected_losses)
    # By the norm of each array: single elements are sums whose terms cancel, and kernels of JAX 0.12 round differently.
    # The keys' biases shift all logits of a query alike, so their gradient is rounding alone.
    size = optax.tree.norm(expected)
    for actual, whole_leaf in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(actual - whole_leaf) <= 1e-5 * np.linalg.norm(whole_leaf) + 1e-8 * size
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), rest, expected_rest)


def test_a_dispatch_of_many_steps_equals_single_steps():
    steps = [batches.make(seed=seed) for seed in range(4)]
    at_once, one_by_one = Trainer(make_step(dropout=0.1)), Trainer(make_step(dropout=0.1))
    metrics, singles = at_once.train(*steps, steps_per_call=4), one_by_one.train(*steps)
    for name in singles:
        np.testing.assert_allclose(metrics[name], singles[name], rtol=1e-6, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), at_once.params, one_by_one.params)
    assert at_once.state["step"] == one_by_one.state["step"] == 4


def test_a_step_that_is_not_finite_is_counted_and_changes_nothing():
    good = batches.make()
    trainer = Trainer(make_step(**PLAIN))
    trainer.train(good)
    before = jax.device_get(trainer.state)
    metrics = trainer.train(with_nan(good))
    after = jax.device_get(trainer.state)
    equal((after["params"], after["opt_state"]), (before["params"], before["opt_state"]))
    assert after["step"] == before["step"] + 1 and after["skipped"] == metrics["skipped"][0] == 1
    assert np.isnan(metrics["mlm_loss"][0])

    assert trainer.train(good)["skipped"][0] == 0
    assert np.abs(trainer.params["encoder"]["pooler"]["bias"] - before["params"]["encoder"]["pooler"]["bias"]).max() > 0


def test_after_too_many_of_them_in_a_row_the_state_is_frozen():
    good = batches.make()
    trainer = Trainer(make_step(**PLAIN))
    before = trainer.params
    metrics = trainer.train(*[with_nan(good)] * 3, good, good)
    assert [*metrics["skipped"]] == [1, 2, 3, 3, 3]
    equal(trainer.params, before)
    assert trainer.state["step"] == 5


def test_an_update_that_is_not_finite_is_not_applied():
    """A finite loss and gradient are not enough: an optimizer from outside may divide by zero."""
    step = make_step(**PLAIN)
    broken = optax.GradientTransformation(
        step.optimizer.init, lambda gradient, state, params: (jax.tree.map(lambda leaf: leaf / 0.0, gradient), state)
    )
    trainer = Trainer(dataclasses.replace(step, optimizer=broken))
    before = trainer.params
    metrics = trainer.train(batches.make())
    assert np.isfinite(metrics["gradient_norm"][0]) and metrics["skipped"][0] == 1 and metrics["update_norm"][0] == 0
    equal(trainer.params, before)


def test_an_infinite_gradient_is_as_bad_as_an_infinite_loss():
    """A classifier of huge weights has a finite loss, and a gradient whose squares overflow."""
    trainer = Trainer(make_step(**PLAIN))
    params = trainer.params
    kernel = params["heads"]["nsp"]["classifier"]["kernel"]
    signs = np.where(np.arange(kernel.size).reshape(kernel.shape) % 2, 1, -1)
    params["heads"]["nsp"]["classifier"]["kernel"] = np.float32(1e21) * signs.astype(np.float32)
    trainer.state["params"] = params
    metrics = trainer.train(batches.make())
    assert np.isfinite(metrics["nsp_loss"][0]) and metrics["gradient_norm"][0] == np.inf
    assert metrics["skipped"][0] == 1
    equal(trainer.params, params)


LAYERS = "encoder/layers/"


@pytest.fixture(scope="module")
def setups() -> tuple[Setup, Setup]:
    config = from_dict(
        {
            "model": {"layers": 4, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16, "dropout": 0.0},
            "optimizer": {"warmup_steps": 0},
            "stages": [{"steps": 5, "seq_len": 16, "batch": 8, "layers": 2}, {"steps": 5, "seq_len": 16, "batch": 8}],
            "runtime": {"mesh": {"data": 1, "fsdp": 1}},
        }
    )
    return make_setups(config, batches.ENCODER.vocab_size, jax.devices()[:1])


@pytest.fixture(scope="module")
def shallow(setups) -> dict:
    """The state after a step of the first stage."""
    batch = {name: values[None] for name, values in batches.make().items()}
    return jax.device_get(compile_chunk(setups[0], "bert", 0)(init_state(setups[0]), None, batch)[0])


def flat(state: dict) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.slow
def test_the_upper_half_is_a_copy_of_the_lower_one_with_its_moments(setups, shallow):
    before, after = flat(shallow), flat(grow(shallow, setups[1].shapes))
    assert before.keys() == after.keys()
    stacked = [path for path in before if LAYERS in path]
    assert any(path.startswith("opt_state") for path in stacked)
    for path in before:
        if path in stacked:
            assert len(after[path]) == 4 == 2 * len(before[path])
            np.testing.assert_array_equal(after[path], np.concatenate([before[path]] * 2))
        else:
            np.testing.assert_array_equal(after[path], before[path])


@pytest.mark.slow
def test_right_after_doubling_the_stack_computes_the_shallow_one_twice(setups, shallow):
    """Not what a fresh model would: by hand, layer after layer."""
    params, batch = shallow["params"]["encoder"], batches.make()
    deep = grow(shallow, setups[1].shapes)["params"]["encoder"]
    encoded = jax.jit(Encoder(setups[1].encoder).apply)(
        {"params": deep}, batch["tokens_BT"], batch["segments_BT"], batch["positions_BT"], batch["examples_BT"]
    )

    config = setups[0].encoder
    apply = jax.jit(BertLayer(config).apply)
    embed = Encoder(config).bind({"params": params}).embeddings
    hidden_BTD = embed(batch["tokens_BT"], batch["positions_BT"], batch["segments_BT"], None)
    for _ in range(2):
        for number in range(2):
            layer = jax.tree.map(lambda leaf, number=number: leaf[number], params["layers"])
            visibility = Visibility(jnp.asarray(batch["examples_BT"]))
            hidden_BTD = apply({"params": layer}, LayerInputs(hidden_BTD, visibility))
    np.testing.assert_allclose(encoded.hidden, hidden_BTD, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("moments", ["copy", "reset"])
def test_a_growing_run_resumes_bit_for_bit_within_and_between_stages(flags, tmp_path, moments):
    growing = [
        *flags,
        "--config.stages=[{'steps': 6, 'seq_len': 32, 'batch': 8, 'layers': 1},"
        "{'steps': 6, 'seq_len': 32, 'batch': 8}]",
        f"--config.optimizer.grow_moments={moments}",
        *("--config.eval.every=6", "--config.runtime.keep=9"),
    ]
    assert runs.call(*growing, f"--workdir={tmp_path / 'whole'}") == 0
    # Moments are reset between the stages only.
    for stop in (4, 6, 9) if moments == "copy" else (6,):
        parted = tmp_path / str(stop)
        runs.train_here(growing, parted, at_edge=lambda step, stop=stop: True if step == stop else None)
        # At the end of a stage the model is the one that was scored: it grows before the next step.
        assert read_checkpoint(parted, str(stop)).encoder.layers == (1 if stop <= 6 else 2)
        assert runs.call(*growing, f"--workdir={parted}") == 0
        assert runs.weights(parted) == runs.weights(tmp_path / "whole")
    losses = [loss for _, loss, _ in runs.losses(tmp_path / "whole")]
    assert abs(losses[6] - losses[5]) < 1.0  # training continues from what was learned


THREE = MultipleChoice(("0", "1", "2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, slots",
    [
        (Task(EmbeddingRegression(), SiamesePairs(), row_examples=1), 2),
        (Task(EmbeddingRegression(), SiamesePairs(), row_examples=5), 4),
        (Task(THREE, Choices(), row_examples=2), 3),
        (Task(THREE, Choices()), 6),  # one for 16 tokens are eight
    ],
)
def test_a_row_holds_whole_groups(task, slots):
    shapes = batch_shapes(task, vocab_size=50, seq_len=128, rows=4)
    assert shapes["example_ids_BN"].shape == (4, slots)
    weights = shapes.get("weights_BP", shapes.get("weights_BN"))
    assert weights.shape == (4, slots // 2 if "weights_BP" in shapes else slots)
