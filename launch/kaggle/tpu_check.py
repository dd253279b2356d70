"""Check and time a training step on a TPU, for Kaggle (v5e-8), Colab and any TPU VM.

    python launch/kaggle/tpu_check.py --out=benchmarks/results/tpu_check.jsonl

1. One step of a small BERT in float32, on all chips and on the host's CPU, from the same weights and batch: the losses
   and the gradients must agree.
2. Training steps of BERT base and large at three shapes, in the precision that bertjax chooses (bfloat16 on a TPU):
   the time to compile, and the median time of a step.
3. One JSON line with all of it, printed and appended to `--out`.

`--platform=cpu` runs the same on CPU with very small models, to test this file. README.md beside it has the cells.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.arms import ours  # noqa: E402
from benchmarks.arms.setting import Setting  # noqa: E402
from bertjax.config.config import Config  # noqa: E402
from bertjax.runtime.command_line import exit_code_of  # noqa: E402
from bertjax.runtime.errors import UserError, reason, say  # noqa: E402
from bertjax.training.config import RuntimeConfig, Stage  # noqa: E402
from bertjax.training.optim.config import OptimizerConfig  # noqa: E402
from bertjax.training.run.versions import commit_of  # noqa: E402
from bertjax.training.setup import Setup, compile_chunk, init_state, make_setups, put  # noqa: E402

# Relative limits. In float32 with float32 products, both backends round each sum once, in another order.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 1e-3
_SMALL = Setting(layers=2, width=64, heads=2, feedforward=128, vocab_size=500, max_positions=64)
_BASE = Setting(layers=12, width=768, heads=12, feedforward=3072, vocab_size=30_522)
_LARGE = Setting(layers=24, width=1024, heads=16, feedforward=4096, vocab_size=30_522)
# (model, T, rows of a chip, N). The first two are what docs/results/compile_table.md forecasts for chips with 16 GB;
# large has half of its rows, so that one chip alone holds it too.
_SHAPES = {
    "base, 128 tokens": (_BASE, 128, 128, 1),
    "base, 512 tokens": (_BASE, 512, 32, 1),
    "large, 128 tokens": (_LARGE, 128, 64, 1),
}
_SMALL_SHAPES = {
    "small, 16 tokens": (_SMALL, 16, 4, 1),
    "small, 32 tokens": (_SMALL, 32, 2, 1),
    "small, 32 tokens, packed": (_SMALL, 32, 4, 2),
}


def shapes(chips: int, is_small: bool) -> dict[str, Setting]:
    """Return the timed settings by name, for all chips together."""
    return {
        name: dataclasses.replace(
            model, seq_len=tokens, batch=rows * chips, examples=examples, predicted=tokens * 5 // 32
        )
        for name, (model, tokens, rows, examples) in (_SMALL_SHAPES if is_small else _SHAPES).items()
    }


def setup_of(setting: Setting, dtype: str, devices: tuple[jax.Device, ...]) -> Setup:
    """Return what a setting trains with on some devices; layers are a scan, which compiles once for all."""
    config = Config(
        model=ours.encoder(setting, unroll=False),
        optimizer=OptimizerConfig(learning_rate=setting.learning_rate, warmup_steps=0, clip_norm=setting.clip_norm),
        stages=(Stage(10**6, setting.seq_len, setting.batch),),
        runtime=RuntimeConfig(unroll=False, dtype=dtype, remat="dots"),
    )
    return make_setups(config, setting.vocab_size, devices)[0]


def first_step(setup: Setup, setting: Setting, params: dict) -> tuple[float, dict]:
    """Return the loss of the first step, and Adam's first moment, a multiple of the clipped gradient, as arrays."""
    chunk = {name: array[None] for name, array in ours.batch(setting).items()}
    state = init_state(setup) | {"params": put(setup, params)}
    state, metrics = compile_chunk(setup, "bert", 0)(state, None, chunk)
    [mean] = [part.mu for part in state["opt_state"] if hasattr(part, "mu")]
    return float(metrics["mlm_loss"][0] + metrics["nsp_loss"][0]), jax.tree.map(np.asarray, mean)


def equality(devices: tuple[jax.Device, ...], is_small: bool) -> dict[str, Any]:
    """Compare one step without dropout on the devices with one on the CPU of the host."""
    sizes = {"batch": 8 * len(devices), "seq_len": 32, "predicted": 5, "dropout": 0.0, "attention_dropout": 0.0}
    setting = dataclasses.replace(_SMALL if is_small else Setting(), **sizes)
    host = setup_of(setting, "float32", (jax.devices("cpu")[0],))
    params = jax.tree.map(np.array, init_state(host)["params"])
    host_loss, host_mean = first_step(host, setting, params)
    loss, mean = first_step(setup_of(setting, "float32", devices), setting, params)

    def norm(tree: dict) -> float:
        return float(np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(tree))))

    result = {
        "loss": loss,
        "loss_cpu": host_loss,
        "loss_error": abs(loss - host_loss) / abs(host_loss),
        "loss_tolerance": LOSS_TOLERANCE,
        "gradient_error": norm(jax.tree.map(np.subtract, mean, host_mean)) / norm(host_mean),
        "gradient_tolerance": GRADIENT_TOLERANCE,
    }
    is_equal = result["loss_error"] < LOSS_TOLERANCE and result["gradient_error"] < GRADIENT_TOLERANCE
    return result | {"equal": is_equal}


def timed(setting: Setting, devices: tuple[jax.Device, ...], steps: int) -> dict[str, Any]:
    """Return the time to compile and of each step, in seconds, with dropout, and the losses at both ends."""
    setup = setup_of(setting, "auto", devices)
    train = compile_chunk(setup, "bert", 0)
    chunk = {name: array[None] for name, array in ours.batch(setting).items()}
    state, seconds, losses = init_state(setup), [], []
    for _ in range(steps + 1):
        start = time.perf_counter()
        state, metrics = train(state, None, chunk)
        losses.append(float(metrics["mlm_loss"][0] + metrics["nsp_loss"][0]))  # waits for the step
        seconds.append(time.perf_counter() - start)
    first, *seconds = seconds
    median = statistics.median(seconds)
    return {
        "first_step_seconds": first,
        "median_seconds": median,
        "slowest_seconds": max(seconds),
        "tokens_per_second": setting.tokens / median,
        "rows": setting.batch,
        "strategy": setup.layout.strategy,
        "dtype": str(setup.encoder.execution.dtype),
        "attention": setup.encoder.execution.attention,
        "loss_first": losses[0],
        "loss_last": losses[-1],
    }


def check(platform: str, steps: int) -> dict[str, Any]:
    """Return the record of all measurements, and print each when it is there.

    Raises:
      UserError: there is no such device.
    """
    # Both: the CPU of the host computes what the TPU is compared with.
    jax.config.update("jax_platforms", "cpu" if platform == "cpu" else f"{platform},cpu")
    try:
        jax.devices()
    except RuntimeError as error:
        raise UserError(
            f"JAX finds no TPU ({reason(error)}); choose one as the accelerator, install bertjax with '.[tpu]', or add "
            "--platform=cpu to test this script"
        ) from error
    devices, is_small = tuple(jax.devices()), platform == "cpu"
    record: dict[str, Any] = {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "jax": jax.__version__,
        "commit": commit_of(ROOT / "bertjax"),
        "equality": equality(devices, is_small),
        "steps": {},
    }
    say(f"{len(devices)} x {record['device']}: {json.dumps(record['equality'])}")
    for name, setting in shapes(len(devices), is_small).items():
        record["steps"][name] = timed(setting, devices, steps)
        say(f"{name}: {json.dumps(record['steps'][name])}")
    return record


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns 1 if the step on the device differs from that on CPU by more than the tolerances."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", choices=("tpu", "cpu"), default="tpu")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of a shape")
    parser.add_argument("--out", type=Path, help="file to append the JSON line to")
    args = parser.parse_args(argv)
    record = check(args.platform, args.steps)
    line = json.dumps(record)
    print(line)
    if args.out:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    return 0 if record["equality"]["equal"] else 1


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
