"""bertjax: the same `train_chunk` that training jits and runs, optionally without one of its tricks."""

import argparse
import functools
import json
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.arms import without, worker
from benchmarks.arms.setting import Setting
from bertjax.config.config import Config, Task
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.presets import PRESETS
from bertjax.objectives.base import Objective
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime import platform
from bertjax.training.config import RuntimeConfig, Stage
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.setup import init_state, make_setups, make_step
from bertjax.training.step import train_chunk


def encoder(setting: Setting, unroll: bool) -> EncoderConfig:
    """Return the encoder configuration of a setting."""
    execution = Execution(unroll=unroll)
    if setting.preset:
        return PRESETS[setting.preset].replace({"vocab_size": setting.vocab_size, "execution": execution})
    return EncoderConfig(
        vocab_size=setting.vocab_size,
        layers=setting.layers,
        width=setting.width,
        heads=setting.heads,
        feedforward=setting.feedforward,
        max_positions=setting.max_positions,
        dropout=setting.dropout,
        attention_dropout=setting.attention_dropout,
        execution=execution,
    )


def objective(setting: Setting) -> Objective:
    """Return what a setting trains."""
    return MaskedLM() if setting.preset else BERT()


def batch(setting: Setting) -> dict[str, np.ndarray]:
    """Return the setting's inputs as a batch of bertjax, with int32 ids and float32 weights."""
    inputs = setting.inputs()
    tokens_BT, predicted_BK = inputs["tokens_BT"], inputs["predicted_BK"]
    columns, slots = np.arange(setting.seq_len), np.arange(setting.examples)
    examples_BN = (setting.batch, setting.examples)
    ids = {
        "tokens_BT": tokens_BT,
        "segments_BT": inputs["segments_BT"],
        "positions_BT": np.broadcast_to(columns % setting.length, tokens_BT.shape),
        "examples_BT": np.broadcast_to(1 + columns // setting.length, tokens_BT.shape),
        "example_ids_BN": np.arange(setting.batch * setting.examples).reshape(examples_BN),
        "summary_positions_BN": np.broadcast_to(slots * setting.length, examples_BN),
        "mlm_positions_BK": predicted_BK,
        "mlm_labels_BK": inputs["labels_BK"],
        "mlm_dropped_B": np.zeros(setting.batch),
        "nsp_labels_BN": inputs["is_random_BN"],
    }
    return {name: array.astype(np.int32) for name, array in ids.items()} | {
        "mlm_weights_BK": np.ones(predicted_BK.shape, np.float32),
        "nsp_weights_BN": np.ones(examples_BN, np.float32),
    }


def build(setting: Setting, unroll: bool = True, attention: str = "auto") -> Callable[[], float]:
    """Return a function that trains one step on the setting's batch and returns the loss."""
    config = Config(
        model=encoder(setting, unroll),
        tasks={"task": Task(objective(setting))},
        # The schedule is so long that the learning rate stays at the setting's value.
        optimizer=OptimizerConfig(
            learning_rate=setting.learning_rate,
            warmup_steps=0,
            weight_decay=setting.weight_decay,
            clip_norm=setting.clip_norm,
        ),
        stages=(Stage(10**6, setting.seq_len, setting.batch),),
        runtime=RuntimeConfig(unroll=unroll, attention=attention),
    )
    [setup] = make_setups(config, setting.vocab_size, jax.devices()[:1])
    chunk = jax.device_put({name: array[None] for name, array in batch(setting).items()})
    state = init_state(setup)
    run_chunk = jax.jit(functools.partial(train_chunk, make_step(setup, config.task_name)), donate_argnums=0)

    def step() -> float:
        nonlocal state
        state, metrics = run_chunk(state, None, chunk)
        jax.block_until_ready(state)
        return float(sum(metrics[name][0] for name in ("mlm_loss", "nsp_loss") if name in metrics))

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", type=json.loads)
    parser.add_argument("--without", choices=without.TRICKS)
    parser.add_argument("--scanned", action="store_true", help="the loop over layers")
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--attention", default="auto", help="as runtime.attention")
    args = parser.parse_args()
    platform.restart_with_huge_pages(args.platform)
    platform.configure(args.platform)
    if args.without:
        without.remove(args.without)
    setting, packages = Setting(**args.setting), ("jax", "jaxlib", "flax", "optax")
    worker.serve(lambda: build(setting, not args.scanned, args.attention), packages)


if __name__ == "__main__":
    main()
