"""What the logs, the heartbeat and the comparison of replicas cost a run on CPU, each timed by itself.

    python -m benchmarks.run_overhead --step-seconds=0.25 --json=overhead.jsonl

Each part is called `--calls` times as the loop calls it at every step of `configs/tiny.py` with `runtime.log_every=1`;
the thread that writes the logs has its CPU seconds counted too, since it shares the interpreter with the loop. Two
devices compare their copies of the whole state once a save. The sum is divided by the seconds of one step.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.runtime.command_line import exit_code_of
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.make_mesh import make_mesh
from bertjax.training.run.fingerprints import check_replicas
from bertjax.training.run.heartbeat import Heartbeat
from bertjax.training.run.metrics import MetricsLog, Totals
from bertjax.training.run.workdir import Workdir
from bertjax.training.run.writer import LogWriter

_METRICS = {
    **{f"{term}_{kind}": 1 / 3 for term in ("mlm", "nsp") for kind in ("loss", "accuracy")},
    **{name: 1 / 7 for name in ("learning_rate", "gradient_norm", "update_norm", "parameter_norm", "skipped")},
    **{name: 4096.0 for name in ("tokens", "token_pairs", "predictions", "examples", "rows")},
}


def seconds_per_call(action: Callable[[int], object], calls: int) -> float:
    """Return the mean seconds of `action(0)`, `action(1)`, ..."""
    started = time.perf_counter()
    for call in range(calls):
        action(call)
    return (time.perf_counter() - started) / calls


def measure(calls: int, parameters: int, save_every: int) -> dict[str, float]:
    """Return the seconds of each part for one step."""
    with tempfile.TemporaryDirectory() as folder, LogWriter() as writer:
        workdir = Workdir.at(folder)
        heartbeat = Heartbeat(workdir.heartbeat, calls)
        writer.add(heartbeat)
        log = MetricsLog(workdir, Totals(), 0, writer)
        parts = {
            "heartbeat": seconds_per_call(lambda step: heartbeat.beat(step, "training"), calls),
            "writer, in the loop": seconds_per_call(lambda step: log.write(step, _METRICS), calls),
        }
        before = time.process_time()
        log.close()  # this thread only waits, so the process computes in the thread of the writer
        parts["writer, in its thread"] = (time.process_time() - before) / calls
    replicated = NamedSharding(make_mesh(MeshConfig(data=2, fsdp=1), jax.devices()), P())
    # Parameters and two moments of Adam, in leaves of 64 rows.
    state = jax.device_put({name: jnp.ones((64, parameters // 64)) for name in ("params", "mu", "nu")}, replicated)
    check_replicas(state, 0)
    each = seconds_per_call(lambda call: check_replicas(state, call), max(calls // 50, 1))
    return parts | {"replica check": each / save_every}


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000, help="calls of each part")
    parser.add_argument("--step-seconds", type=float, required=True, help="seconds of a step of configs/tiny.py here")
    parser.add_argument("--parameters", type=int, default=4_500_000, help="parameters of the model")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between two checkpoints")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    args = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    parts = measure(args.calls, args.parameters, args.save_every)
    for name, seconds in parts.items():
        print(f"{name:<24}{seconds * 1e6:10.1f} us a step   {seconds / args.step_seconds:8.4%}")
    total = sum(parts.values())
    print(f"{'together':<24}{total * 1e6:10.1f} us a step   {total / args.step_seconds:8.4%}")
    if args.json:
        record = {name: value for name, value in vars(args).items() if name != "json"}
        record |= {"machine": platform.machine(), "cores": os.cpu_count(), "seconds": parts}
        record["share"] = total / args.step_seconds
        with open(args.json, "a") as file:
            file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
