"""Several tasks in one run: turns, heads, resuming."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.config.config import from_dict
from bertjax.training import step
from bertjax.training.setup import Setup, compile_chunk, init_state, make_setups, make_step
from tests import batches, runs

pytestmark = pytest.mark.slow

ENCODER = {"layers": 1, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16}
MIXED = {
    "nsp": {"objective": {"kind": "bert"}},
    "order": {"objective": {"kind": "sentence_order"}, "examples": {"kind": "sentence_order"}, "weight": 2.0},
}


def setup(**optimizer) -> Setup:
    config = from_dict(
        {
            "model": ENCODER,
            "tasks": MIXED,
            "optimizer": {"warmup_steps": 0} | optimizer,
            "stages": [{"steps": 9, "seq_len": 16, "batch": 8}],
            "runtime": {"mesh": {"data": 1, "fsdp": 1}},
        }
    )
    return make_setups(config, batches.ENCODER.vocab_size, jax.devices()[:1])[0]


def batch_of(task: str) -> dict:
    batch = batches.make()
    if task == "order":
        batch = {name.replace("nsp_", "sop_"): values for name, values in batch.items()}
    return {name: values[None] for name, values in batch.items()}


def moved(before: dict, after: dict) -> set[str]:
    """Return the roots of params, or of moments, below which a leaf changed."""

    def leaves(state):
        flat, _ = jax.tree_util.tree_flatten_with_path({key: state[key] for key in ("params", "opt_state")})
        return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in flat}

    old, new = leaves(before), leaves(after)
    return {
        root
        for path in old
        for root in ("encoder/", "heads/mlm/", "heads/nsp/", "heads/sop/")
        if root in path and not np.array_equal(old[path], new[path])
    }


def test_a_step_leaves_the_heads_of_other_tasks_and_their_moments_unchanged():
    """Even once those have moments, which would move them on: first the task that has `sop`, then the other."""
    mixed = setup()
    begun = init_state(mixed)
    assert set(begun["params"]["heads"]) == {"mlm", "nsp", "sop"}
    states = [jax.device_get(begun)]
    for task in ("order", "nsp"):
        state, metrics = compile_chunk(mixed, task, 0)(jax.device_put(states[-1]), None, batch_of(task))
        states.append(jax.device_get(state))
        assert f"{task}/mlm_loss" in metrics and "learning_rate" in metrics
    assert moved(states[0], states[1]) == {"encoder/", "heads/mlm/", "heads/sop/"}
    assert moved(states[1], states[2]) == {"encoder/", "heads/mlm/", "heads/nsp/"}


def test_a_mixture_resumes_bit_for_bit_and_is_scored_by_task(flags, tmp_path, caplog):
    mixed = [
        *flags,
        f"--config.tasks={MIXED}",
        "--config.stages=[{'steps': 4, 'seq_len': 32, 'batch': 8, 'tasks': ['nsp']},"
        "{'steps': 8, 'seq_len': 32, 'batch': 8}]",
        "--config.eval.every=6",
    ]
    assert runs.call(*mixed, f"--workdir={tmp_path / 'whole'}") == 0
    runs.train_here(mixed, tmp_path / "parted", at_edge=lambda step: True if step == 7 else None)
    assert runs.call(*mixed, f"--workdir={tmp_path / 'parted'}") == 0
    assert "resumed at step 7 of 12" in caplog.text
    assert runs.weights(tmp_path / "parted") == runs.weights(tmp_path / "whole")

    records = runs.records(tmp_path / "whole" / "metrics.jsonl")
    turns = ["order" if "train/order/sop_loss" in record else "nsp" for record in records]
    assert turns == ["nsp"] * 4 + ["order", "nsp", "order", "order", "nsp", "order", "order", "nsp"]
    assert {"eval/heldout/nsp/nsp_accuracy", "eval/heldout/order/sop_accuracy"} <= records[-1].keys()

    scored = runs.score_export(tmp_path / "whole")["eval"]
    assert scored["order/sop_loss"] == pytest.approx(records[-1]["eval/heldout/order/sop_loss"], rel=1e-6)


@pytest.mark.parametrize("turns", ["n" * 30 + "o" * 6, "nnnno" * 6], ids=["late", "rare"])
def test_a_parameter_is_updated_as_in_a_run_of_its_own_steps(turns, monkeypatch):
    """With a constant gradient each corrected update of Adam is the gradient's sign times the rate, in any mixture."""

    def constant(parts, params, frozen, batch, step):
        gradient = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.5), params)
        return gradient, {"mlm": jnp.ones(())}, {}, {}, {}

    monkeypatch.setattr(step, "gradients", constant)
    mixed = setup(weight_decay=0.0, clip_norm=0.0)
    tasks = {name[0]: make_step(mixed, name) for name in MIXED}
    own = {"n": "heads/nsp/classifier/kernel", "o": "heads/sop/classifier/kernel"}
    train = {turn: jax.jit(functools.partial(step.train_step, parts)) for turn, parts in tasks.items()}
    state = init_state(mixed)
    for turn in turns:
        before = flatten_dict(state["params"], sep="/")
        state, metrics = train[turn](state, None, {})
        after = flatten_dict(state["params"], sep="/")
        for path in ("encoder/embeddings/norm/scale", "heads/mlm/word_bias", *own.values()):
            is_trained = path not in own.values() or path == own[turn]
            expected = metrics["learning_rate"] if is_trained else 0.0
            np.testing.assert_allclose(before[path] - after[path], expected, rtol=2e-2, err_msg=f"{turn} {path}")
