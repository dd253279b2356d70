"""bertjax: the very `train_chunk` that training jits and runs, with one of its tricks removed if asked."""

import argparse
import functools
import json
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.arms import without, worker
from benchmarks.arms.setting import Setting
from bertjax.models.config import EncoderConfig, Execution
from bertjax.objectives.bert import BERT
from bertjax.training import platform
from bertjax.training.config import OptimizerConfig
from bertjax.training.optimizer import adamw
from bertjax.training.state import new_state
from bertjax.training.step import StepContext, train_chunk


def encoder(setting: Setting, unroll: bool) -> EncoderConfig:
    """The encoder of a setting."""
    return EncoderConfig(
        vocab_size=setting.vocab_size,
        layers=setting.layers,
        width=setting.width,
        heads=setting.heads,
        feedforward=setting.feedforward,
        max_positions=setting.max_positions,
        dropout=setting.dropout,
        attention_dropout=setting.dropout,
        execution=Execution(unroll=unroll),
    )


def batch(setting: Setting) -> dict[str, np.ndarray]:
    """The setting's inputs in the contract of batches; int32 ids, float32 weights."""
    inputs = setting.inputs()
    tokens_BT, predicted_BK = inputs["tokens_BT"], inputs["predicted_BK"]
    ids = {
        "tokens_BT": tokens_BT,
        "segments_BT": inputs["segments_BT"],
        "positions_BT": np.broadcast_to(np.arange(setting.seq_len), tokens_BT.shape),
        "examples_BT": np.ones_like(tokens_BT),
        "example_ids_BN": np.arange(setting.batch)[:, None],
        "summary_positions_BN": np.zeros((setting.batch, 1)),
        "mlm_positions_BK": predicted_BK,
        "mlm_labels_BK": inputs["labels_BK"],
        "mlm_dropped_B": np.zeros(setting.batch),
        "nsp_labels_BN": inputs["is_random_B"][:, None],
    }
    return {name: array.astype(np.int32) for name, array in ids.items()} | {
        "mlm_weights_BK": np.ones(predicted_BK.shape, np.float32),
        "nsp_weights_BN": np.ones((setting.batch, 1), np.float32),
    }


def build(setting: Setting, unroll: bool = True) -> Callable[[], float]:
    """A step on the setting's batch; returns its loss."""
    objective = BERT()
    module = objective.module(encoder(setting, unroll))
    optimizer = adamw(OptimizerConfig(weight_decay=setting.weight_decay, clip_norm=setting.clip_norm))
    context = StepContext(objective, module, optimizer, learning_rate=lambda step: setting.learning_rate, seed=0)
    chunk = jax.device_put({name: array[None] for name, array in batch(setting).items()})
    state = jax.jit(new_state(module, optimizer, batch(setting)))(jax.random.key(0))
    run_chunk = jax.jit(functools.partial(train_chunk, context), donate_argnums=0)

    def step() -> float:
        nonlocal state
        state, metrics = run_chunk(state, None, chunk)
        jax.block_until_ready(state)
        return float(metrics["mlm_loss"][0] + metrics["nsp_loss"][0])

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", type=json.loads)
    parser.add_argument("--without", choices=without.TRICKS)
    parser.add_argument("--scanned", action="store_true", help="the loop over layers")
    args = parser.parse_args()
    platform.restart_with_huge_pages("cpu")
    platform.configure("cpu")
    if args.without:
        without.remove(args.without)
    worker.serve(lambda: build(Setting(**args.setting), unroll=not args.scanned), ("jax", "jaxlib", "flax", "optax"))


if __name__ == "__main__":
    main()
