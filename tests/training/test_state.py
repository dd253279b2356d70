"""Progressive stacking: the doubled model, and runs that continue with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.config import from_dict
from bertjax.models.bert import BertLayer
from bertjax.models.encoder import Encoder
from bertjax.models.visibility import Visibility
from bertjax.training.program import Program
from bertjax.training.run.record import read_checkpoint
from bertjax.training.state import grow
from tests import batches, runs

LAYERS = "encoder/layers/"


@pytest.fixture(scope="module")
def program() -> Program:
    config = from_dict(
        {
            "model": {"layers": 4, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16, "dropout": 0.0},
            "optimizer": {"warmup_steps": 0},
            "stages": [{"steps": 5, "seq_len": 16, "batch": 8, "layers": 2}, {"steps": 5, "seq_len": 16, "batch": 8}],
            "runtime": {"mesh": {"data": 1, "fsdp": 1}},
        }
    )
    return Program(config, batches.ENCODER.vocab_size, tuple(jax.devices()[:1]))


@pytest.fixture(scope="module")
def shallow(program) -> dict:
    """The state after a step of the first stage."""
    first = program.at(0)
    batch = {name: values[None] for name, values in batches.make().items()}
    return jax.device_get(first.task.chunk(first.init_state(), None, batch)[0])


def flat(state: dict) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.slow
def test_the_upper_half_is_a_copy_of_the_lower_one_with_its_moments(program, shallow):
    before, after = flat(shallow), flat(grow(shallow, program.at(1).abstract_state))
    assert before.keys() == after.keys()
    stacked = [path for path in before if LAYERS in path]
    assert any(path.startswith("opt_state") for path in stacked)
    for path in before:
        if path in stacked:
            assert len(after[path]) == 4 == 2 * len(before[path])
            np.testing.assert_array_equal(after[path], np.concatenate([before[path]] * 2))
        else:
            np.testing.assert_array_equal(after[path], before[path])


def test_right_after_doubling_the_stack_computes_the_shallow_one_twice(program, shallow):
    """Not what a fresh model would: by hand, layer after layer."""
    params, batch = shallow["params"]["encoder"], batches.make()
    deep = grow(shallow, program.at(1).abstract_state)["params"]["encoder"]
    encoded = jax.jit(Encoder(program.at(1).encoder).apply)(
        {"params": deep}, batch["tokens_BT"], batch["segments_BT"], batch["positions_BT"], batch["examples_BT"]
    )

    config = program.at(0).encoder
    apply = jax.jit(BertLayer(config).apply)
    embed = Encoder(config).bind({"params": params}).embeddings
    hidden_BTD = embed(batch["tokens_BT"], batch["positions_BT"], batch["segments_BT"], None)
    for _ in range(2):
        for number in range(2):
            layer = jax.tree.map(lambda leaf, number=number: leaf[number], params["layers"])
            visibility = Visibility(jnp.asarray(batch["examples_BT"]))
            hidden_BTD = apply({"params": layer}, hidden_BTD, visibility)
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
