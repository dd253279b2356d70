"""Real tokens/s of training a very small BERT on CPU: bertjax's own step against transformers, and each trick's gain.

    python -m benchmarks.train_step --torch-python=OTHER_VENV/bin/python
    python -m benchmarks.train_step --ladder
    python -m benchmarks.train_step --share

Every arm is a process of its own that trains the same model on the same batch (`benchmarks/arms/setting.py`). The arms
take turns, `--rounds` times, each with `--steps` timed steps, so that other load on the machine affects all of them.
A ratio is always taken within one round.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.arms.setting import Setting
from bertjax.runtime.command_line import exit_code_of
from bertjax.runtime.errors import RunFailed, UserError

_REPOSITORY = Path(__file__).resolve().parents[1]
_OURS = "bertjax"
# The arms that need no other package.
_MODULES = ("ours", "products")


@dataclasses.dataclass(frozen=True)
class Arm:
    """The command of an arm.

    Attributes:
      module: module in `benchmarks.arms`.
      flags: command-line arguments after the setting.
      environment: changed environment variables.
    """

    module: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


# bertjax sets these at its start (runtime/platform.py) unless the user has set them.
LADDER = {
    _OURS: Arm("ours"),
    "without huge pages": Arm("ours", environment={"GLIBC_TUNABLES": ""}),
    "without 512-bit vectors": Arm("ours", environment={"XLA_FLAGS": "--xla_cpu_prefer_vector_width=256"}),
    "without merged axes in dense layers": Arm("ours", ("--without=merged-axes",)),
    "without erf in GELU (erfc)": Arm("ours", ("--without=erf-gelu",)),
    "without last layer at read positions": Arm("ours", ("--without=read-positions",)),
    "without dropout by a hash (threefry)": Arm("ours", ("--without=hashed-dropout",)),
    "without unrolled layers (scanned)": Arm("ours", ("--scanned",)),
    "without loss by comparisons (gathers)": Arm("ours", ("--without=comparing-loss",)),
}
# The step of configs/tiny.py:adamw, two examples a row.
FRONT_DOOR = Setting(
    max_positions=32, batch=48, seq_len=32, examples=2, predicted=8, dropout=0.0, attention_dropout=0.0
)
SHARE = {_OURS: Arm("ours"), "matrix products alone": Arm("products")}
PEERS = {
    _OURS: Arm("ours"),
    "pytorch-eager-f32": Arm("pytorch"),
    "pytorch-eager-bf16": Arm("pytorch", ("--bf16",)),
    "pytorch-compiled-f32": Arm("pytorch", ("--compiled",)),
    "pytorch-compiled-bf16": Arm("pytorch", ("--compiled", "--bf16")),
    "pytorch-compiled-f32-predicted": Arm("pytorch", ("--compiled", "--predicted")),
    "pytorch-compiled-bf16-predicted": Arm("pytorch", ("--compiled", "--bf16", "--predicted")),
    "flax-f32": Arm("flax_bert"),
}


class Worker:
    """An arm's process."""

    def __init__(self, name: str, arm: Arm, python: str, setting: Setting):
        """Start the process, which sends its first answer when it is warm."""
        self.name = name
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.arms.{arm.module}", json.dumps(dataclasses.asdict(setting)), *arm.flags],
            cwd=_REPOSITORY,
            env=os.environ | arm.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self, steps: int | None = None) -> dict:
        """Return the next answer, after requesting timed steps if a number is given.

        Raises:
          RunFailed: the process ended.
        """
        if steps is not None:
            print(steps, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RunFailed(f"arm {self.name} ended with code {self._process.wait()}; its output is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def measure(workers: list[Worker], setting: Setting, steps: int, rounds: int) -> dict[str, list[float]]:
    """Return the real tokens/s of each arm, one number per round."""
    rates = {worker.name: [] for worker in workers}
    for done in range(1, rounds + 1):
        for worker in workers:
            rates[worker.name].append(steps * setting.tokens / worker.answer(steps)["seconds"])
        print(f"round {done} of {rounds}: " + ", ".join(f"{rate[-1]:,.0f}" for rate in rates.values()), file=sys.stderr)
    return rates


def compare(rates: dict[str, list[float]]) -> dict[str, dict]:
    """Return tokens/s of each arm (median, best round) and bertjax's ratio to it (median, lowest, highest round)."""
    results = {}
    for name, arm in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates[_OURS], arm, strict=True)]
        results[name] = {
            "tokens_per_second": {"median": statistics.median(arm), "best": max(arm), "rounds": arm},
            "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
        }
    return results


def print_table(results: dict[str, dict], losses: dict[str, float]) -> None:
    """Print the results, one arm per line."""
    width = max(map(len, results))
    print(f"\n{'':{width}}   tokens/s            bertjax / arm            first")
    print(f"{'arm':{width}}   median    best      median   (low-high)      loss")
    for name, result in results.items():
        rate, ratio = result["tokens_per_second"], result["ratio"]
        print(
            f"{name:{width}}  {rate['median']:7,.0f} {rate['best']:7,.0f}      {ratio['median']:6.2f}"
            f"   ({ratio['low']:.2f}-{ratio['high']:.2f})   {losses[name]:6.3f}"
        )


def machine() -> str:
    """Return the processor, the number of cores and the platform."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores, {platform.platform()}"


def threads() -> int:
    """Return the number of cores that this process may use: fewer than the machine has, if `taskset` limits it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def start(arms: dict[str, Arm], torch_python: str, setting: Setting) -> tuple[list[Worker], dict[str, dict]]:
    """Start one arm after the other, wait until each is warm, and print which are absent.

    Returns:
      The workers, and {arm: {"loss": loss of the first step, "versions": {package: version}}}.
    """
    workers, answers = [], {}
    for name, arm in arms.items():
        print(f"starting {name}", file=sys.stderr)
        worker = Worker(name, arm, sys.executable if arm.module in _MODULES else torch_python, setting)
        answer = worker.answer()
        if "absent" in answer:
            print(f"{name} is absent: {torch_python} lacks {answer['absent']}")
            worker.close()
        else:
            workers.append(worker)
            answers[name] = answer
    return workers, answers


def chosen(names: str | None, arms: dict[str, Arm]) -> dict[str, Arm]:
    """Return the named arms, and always bertjax.

    Raises:
      UserError: a name is unknown.
    """
    names = list(arms) if names is None else [_OURS, *names.split(",")]
    if unknown := [name for name in names if name not in arms]:
        raise UserError(f"--arms names {unknown[0]!r}, which is not an arm; choose from {', '.join(arms)}")
    return {name: arms[name] for name in names}


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of an arm in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--arms", help="arms to run, separated by commas; bertjax always runs")
    table = parser.add_mutually_exclusive_group()
    table.add_argument("--ladder", action="store_true", help="bertjax against itself with one trick removed")
    table.add_argument(
        "--share", action="store_true", help="the step of tiny.py:adamw against its matrix products alone"
    )
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with torch and transformers")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args(argv)
    for flag in ("steps", "rounds"):
        if getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} must be at least 1")

    setting = FRONT_DOOR if args.share else Setting()
    arms = chosen(args.arms, LADDER if args.ladder else SHARE if args.share else PEERS)
    print(f"machine: {machine()}\nsetting: {setting}")
    workers, answers = start(arms, args.torch_python, setting)
    for versions in dict.fromkeys(json.dumps(answer["versions"]) for answer in answers.values()):
        print(f"versions: {versions}")
    rates = measure(workers, setting, args.steps, args.rounds)
    for worker in workers:
        worker.close()

    results = compare(rates)
    print_table(results, {name: answer["loss"] for name, answer in answers.items()})
    print("\nTokens/s depend on the machine and its load; compare the ratios.")
    if args.share:
        print("The ratio is the share of its time in which the step would be done if it were all fast matrix products.")
    elif not args.ladder:
        print(
            "transformers computes the vocabulary product at all positions, bertjax and *-predicted at those predicted."
        )
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "arms": answers, "results": results}, indent=1))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
