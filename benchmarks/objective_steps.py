"""Time of a training step of other objectives, compared with masked language modeling.

    python -m benchmarks.objective_steps
    python -m benchmarks.objective_steps --compile

All arms train the same encoder, except for its positions, on the same rows. The teacher of DistilBERT is as large, and
the student learns its soft targets at every token. The arms take turns in one process, so that other load on the
machine affects all of them. A ratio is taken within one round. `--compile` instead compares the compile times of BERT
and of ALBERT, which shares its layers, at the same depth and width.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

from bertjax.config.config import Config, Task
from bertjax.data.batch import Draw, core, place
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.models.blocks.xlnet import XLNetBlock, XLNetEmbeddings
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.presets import PRESETS
from bertjax.objectives.base import Objective
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.output import OutputCosine
from bertjax.objectives.distill.losses.token_logits import TokenLogits
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.permutation import PermutationLM
from bertjax.runtime import platform
from bertjax.runtime.command_line import exit_code_of
from bertjax.training.config import RuntimeConfig, Stage
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.program import Program
from bertjax.training.step import train_chunk

VOCABULARY = Vocabulary(8000, 0, 5, 4, 6, (0, 1, 2, 3, 4, 5, 6))
_LOSSES = {"soft": TokenLogits(temperature=2.0, factor=5.0), "cosine": OutputCosine()}
# The objective of each arm, and its additional encoder settings. The other arms are compared with the first.
ARMS: dict[str, tuple[Objective, dict]] = {
    "mlm": (MaskedLM(), {}),
    "electra, generator 1/4": (Electra(generator_share=0.25), {}),
    "permutation": (PermutationLM(), {"embeddings": XLNetEmbeddings(), "block": XLNetBlock()}),
    "distillation, all tokens": (Distilled(MaskedLM(), "teacher", _LOSSES, own_factor=2.0), {}),
}


def program(objective: Objective, encoder: EncoderConfig, batch: int, seq_len: int, unroll: bool) -> Program:
    """Return a program on rows of one example with an almost constant learning rate."""
    config = Config(
        model=encoder,
        tasks={"task": Task(objective=objective, row_examples=1)},
        optimizer=OptimizerConfig(warmup_steps=0),
        stages=(Stage(10**6, seq_len, batch),),
        runtime=RuntimeConfig(unroll=unroll),
    )
    return Program(config, VOCABULARY.size, (jax.devices()[0],))


def features(objective: Objective, batch: int, seq_len: int) -> dict[str, np.ndarray]:
    """Return the core batch and features of full rows of random tokens."""
    ids = np.arange(batch)
    tokens_BT = np.random.default_rng(0).integers(7, VOCABULARY.size, (batch, seq_len)).astype(np.int32)
    tokens_BT[:, 0], tokens_BT[:, -1] = VOCABULARY.cls_id, VOCABULARY.sep_id
    tokens = tokens_BT.reshape(-1)
    special = VOCABULARY.is_special[tokens]
    ragged = Ragged(tokens, 0 * tokens, special, seq_len * np.arange(batch + 1), {}, ids)
    placed = place(ragged, ids[:, None], seq_len, VOCABULARY)
    return core(placed) | objective.features(placed, Draw(0, 0 * ids))


def make_step(objective: Objective, encoder: EncoderConfig, batch: int, seq_len: int) -> Callable[[], None]:
    """Return a function that trains one step, always on the same batch."""
    frozen = None
    if isinstance(objective, Distilled):
        untrained = program(MaskedLM(), encoder, batch, seq_len, unroll=True).init_state()["params"]
        objective = objective.bind_teacher(Teacher(encoder, jax.device_get(untrained), tokenizer_fingerprint=""))
        frozen = jax.device_put(objective.frozen_params(encoder))
    made = program(objective, encoder, batch, seq_len, unroll=True)
    state = made.init_state()
    chunk = jax.device_put({name: array[None] for name, array in features(objective, batch, seq_len).items()})
    run = jax.jit(functools.partial(train_chunk, made.task.step), donate_argnums=0)

    def step() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(run(state, frozen, chunk))

    return step


def measure(encoder: EncoderConfig, batch: int, seq_len: int, steps: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per step of each arm, one number per round."""
    made = {}
    for name, (objective, own) in ARMS.items():
        print(f"compiling {name}", file=sys.stderr)
        made[name] = make_step(objective, dataclasses.replace(encoder, **own), batch, seq_len)
        made[name]()
    seconds = {name: [] for name in made}
    for done in range(1, rounds + 1):
        for name, step in made.items():
            start = time.perf_counter()
            for _ in range(steps):
                step()
            seconds[name].append((time.perf_counter() - start) / steps)
        print(
            f"round {done} of {rounds}: "
            + ", ".join(f"{rounds_of_arm[-1]:.3f} s" for rounds_of_arm in seconds.values()),
            file=sys.stderr,
        )
    return seconds


def compile_seconds(encoder: EncoderConfig, batch: int, seq_len: int, unroll: bool) -> float:
    """Return the seconds that compiling the step takes, without tracing."""
    made = program(MaskedLM(), encoder, batch, seq_len, unroll)
    chunk = made.task.abstract_batches(made.config.stages[0], 1)
    run = jax.jit(functools.partial(train_chunk, made.task.step), donate_argnums=0)
    lowered = run.lower(made.abstract_state, None, chunk)
    start = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - start


def compare_compilation(layers: int, rounds: int) -> None:
    """Print compile times of BERT and ALBERT, scanned and unrolled."""
    sizes = {"vocab_size": VOCABULARY.size, "layers": layers, "execution": Execution()}
    encoders = {name: dataclasses.replace(PRESETS[name], **sizes) for name in ("base", "albert_base")}
    print("| layers | BERT, s | ALBERT, s | ALBERT / BERT |\n|---|---|---|---|")
    for unroll in (False, True):
        pairs = [[compile_seconds(encoder, 8, 128, unroll) for encoder in encoders.values()] for _ in range(rounds)]
        bert, albert = map(statistics.median, zip(*pairs))
        ratios = [theirs / ours for ours, theirs in pairs]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {layers}, {'unrolled' if unroll else 'scanned'} | {bert:.1f} | {albert:.1f} | {ratio} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.objective_steps", description=__doc__.split("\n\n")[0])
    parser.add_argument("--preset", default="tiny", choices=sorted(PRESETS), help="preset of the encoder")
    parser.add_argument("--batch", type=int, default=32, help="rows per step")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens per row; a row is one example")
    parser.add_argument("--steps", type=int, default=5, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="compare compile times of BERT and ALBERT instead")
    parser.add_argument("--layers", type=int, default=12, help="encoder layers, with --compile")
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--json", default="", help="also write the seconds of every round to this file")
    args = parser.parse_args()
    platform.configure(args.platform)
    if args.compile:
        compare_compilation(args.layers, args.rounds)
        return 0
    encoder = dataclasses.replace(PRESETS[args.preset], vocab_size=VOCABULARY.size)
    seconds = measure(encoder, args.batch, args.seq_len, args.steps, args.rounds)
    first, *_ = seconds
    print(f"| objective | ms a step | times {first} |\n|---|---|---|")
    for name, rounds in seconds.items():
        ratios = [own / base for own, base in zip(rounds, seconds[first], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {1e3 * statistics.median(rounds):.0f} | {ratio} |")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(seconds, file)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
