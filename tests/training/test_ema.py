"""The moving average of the params: its numbers, stages, resuming, and the export beside that of the last weights."""

import json
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import bertjax
from bertjax.config.config import from_dict
from bertjax.training.optim.ema import averaged
from bertjax.training.setup import Setup, compile_chunk, init_state, make_setups
from tests import batches, runs

pytestmark = pytest.mark.slow

DECAY = 0.2
SETTINGS = {
    "model": {"layers": 4, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16, "dropout": 0.0},
    "optimizer": {"warmup_steps": 0, "learning_rate": 1e-2, "ema_decay": DECAY},
    "runtime": {"mesh": {"data": 1, "fsdp": 1}, "max_skipped": 3},
}
GROWING = [{"steps": 10, "seq_len": 16, "batch": 8, "layers": 2}, {"steps": 10, "seq_len": 16, "batch": 8}]
PATH = "encoder/layers/intermediate/kernel"


def setup_of(stages: Sequence[dict] = GROWING[1:], devices: Sequence[jax.Device] = (), **settings) -> Setup:
    merged = {name: SETTINGS.get(name, {}) | settings.get(name, {}) for name in SETTINGS | settings}
    config = from_dict(merged | {"stages": list(stages)})
    return make_setups(config, batches.ENCODER.vocab_size, devices or jax.devices()[:1])[0]


def trained(setup: Setup, bad_step: int | None = None) -> tuple[list[dict], list[dict]]:
    """Return (states, params of the steps that were applied) from the start to step 6 of the first stage."""
    train, states, params = compile_chunk(setup, "bert", 0), [init_state(setup)], []
    for step in range(6):
        params.append(jax.device_get(states[-1]["params"]))
        batch = batches.make(seed=step)
        if step == bad_step:
            params.pop()
            batch["mlm_weights_BK"] = batch["mlm_weights_BK"] * np.nan
        before = jax.tree.map(lambda leaf: leaf.copy(), states[-1])  # the step reuses the memory of the state
        state, _ = train(states[-1], None, {name: values[None] for name, values in batch.items()})
        states[-1:] = [before, state]
    return states, [*params, jax.device_get(states[-1]["params"])]


def averages_by_hand(params: Sequence[dict]) -> dict[str, np.ndarray]:
    """`tf.train.ExponentialMovingAverage` with `num_updates`, in float64, from the initial params on."""
    first, *rest = [flatten_dict(each, sep="/") for each in params]
    shadow = {path: np.asarray(leaf, np.float64) for path, leaf in first.items()}
    for updates, each in enumerate(rest):
        decay = min(DECAY, (1 + updates) / (10 + updates))
        shadow = {path: decay * shadow[path] + (1 - decay) * leaf for path, leaf in each.items()}
    return shadow


def average_of(state: dict) -> dict[str, np.ndarray]:
    return flatten_dict(jax.device_get(averaged(DECAY, state)["params"]), sep="/")


def assert_close(actual: dict, expected: dict) -> None:
    assert actual.keys() == expected.keys()
    for path, leaf in actual.items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-5, atol=1e-7, err_msg=path)


def test_it_is_that_of_tensorflow_and_changes_no_step():
    """Five steps are applied, the fourth is not finite; two of them have the decay of the warm-up."""
    states, params = trained(setup_of(), bad_step=3)
    assert len(params) == 6 and int(states[4]["skipped"]) == 1
    assert_close(average_of(states[-1]), averages_by_hand(params))
    for path, leaf in average_of(states[0]).items():  # nothing to average yet
        np.testing.assert_array_equal(leaf, flatten_dict(params[0], sep="/")[path])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(states[3]["opt_state"]), states[4]["opt_state"])
    assert (average_of(states[-1])[PATH] != flatten_dict(params[-1], sep="/")[PATH]).any()
    [_, plain] = trained(setup_of(optimizer={"ema_decay": 0.0}), bad_step=3)
    jax.tree.map(np.testing.assert_array_equal, params, plain)


def test_params_that_a_stage_freezes_count_as_they_are():
    states, params = trained(setup_of([GROWING[1] | {"frozen_layers": 2}, GROWING[1]]))
    assert_close(average_of(states[-1]), averages_by_hand(params))


def test_a_growing_run_evaluates_exports_and_resumes_it(flags, tmp_path, capsys):
    averaging = [
        *flags,
        "--config.stages=[{'steps': 6, 'seq_len': 32, 'batch': 8, 'layers': 1},"
        "{'steps': 6, 'seq_len': 32, 'batch': 8}]",
        *("--config.optimizer.ema_decay=0.6", "--config.eval.every=6"),
    ]
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert runs.call(*averaging, f"--workdir={whole}") == 0
    output = capsys.readouterr().out

    summary = json.loads((whole / "summary.json").read_text())
    last, average = summary["eval"]["mlm_loss"], summary["eval_ema"]["mlm_loss"]
    assert f"average   {whole}/export_ema has mlm_loss {average:.4f}, and {last:.4f} in export: " in output
    better = "export_ema" if average < last else "export"
    assert f"predict {whole}/{better} " in output.replace("python -m bertjax ", "")
    [line] = [each for each in runs.records(whole / "metrics.jsonl") if each["step"] == 12]
    assert (line["eval/heldout/mlm_loss"], line["eval_ema/heldout/mlm_loss"]) == (last, average) and last != average

    own, other = (bertjax.load(whole / name).params for name in ("export_ema", "export"))
    kernels = [params["layers"]["intermediate"]["kernel"] for params in (own, other)]
    assert (kernels[0] != kernels[1]).all()
    manifest = json.loads((whole / "export_ema" / "bertjax.json").read_text())
    assert manifest["numbers"]["eval"]["mlm_loss"] == average and "eval_ema" not in manifest["numbers"]

    for stop in (4, 9):  # one of each stage
        runs.train_here(averaging, parted, at_edge=lambda step, stop=stop: True if step == stop else None)
    assert runs.call(*averaging, f"--workdir={parted}") == 0
    for name in ("export", "export_ema"):
        assert (parted / name / "model.safetensors").read_bytes() == (whole / name / "model.safetensors").read_bytes()
