"""Preempt a real run under `tpu_pod.sh babysit` many times, and compare it with one that nothing disturbed.

python -m tests.launch.preemptions 100 >benchmarks/results/preemptions.log
"""

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests import runs
from tests.launch.conftest import Pod
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
STEPS = 600


def moments(count: int, seed: int) -> list[tuple[str, float]]:
    """Return the events for real_training.py: half of them after at most 6 steps, the others soon after a start."""
    draw = random.Random(seed)
    kinds = ["steps"] * (count - count // 2 - count // 6) + ["warned"] * (count // 6) + ["seconds"] * (count // 2)
    draw.shuffle(kinds)
    return [(kind, round(draw.uniform(0.0, 6.0), 2) if kind == "seconds" else draw.randint(1, 6)) for kind in kinds]


class RealPod(Pod):
    """A pod of one worker that installs and runs the bertjax of this checkout."""

    def __init__(self, folder: Path, flags: list[str]):
        self.arguments = [flag for flag in flags if not flag.startswith("--config=")]
        super().__init__(folder, training="real_training.py", workers=1)

    def copy_code(self) -> None:
        shutil.copytree(ROOT / "bertjax", self.repository / "bertjax", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(runs.CONFIG, self.repository / "configs" / "small.py")

    def settings(self, *_: str, **settings: str) -> None:
        super().settings(*self.arguments, **{**settings, "CONFIG": "configs/small.py"})


def preempt(folder: Path, flags: list[str], events: list[tuple[str, float]]) -> tuple[RealPod, int, str]:
    """Run `babysit` until its end. Returns the pod, the exit code and what babysit printed."""
    pod = RealPod(folder, flags)
    pod.preempt(events)
    process = pod.start("babysit", POLL="0.3", LOG_SECONDS="2")
    try:
        _, errors = process.communicate(timeout=LIMIT_SECONDS + 120 * len(events))
    finally:
        process.kill()
        pod.close()
    return pod, process.returncode, errors


def main(count: int) -> int:
    """Print a line for each preemption and a summary; return 0 if the bits are equal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = runs.write_corpus(folder / "corpus.txt")
        flags = [f"--config={runs.CONFIG}", f"--config.data.corpus={corpus}"]
        flags += [f"--config.data.store={folder / 'stores'}"]
        flags += [f"--config.stages=[{{'steps': {STEPS}, 'seq_len': 32, 'batch': 8}}]"]
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "programs"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        done = runs.finish(runs.start(*flags, f"--workdir={folder / 'undisturbed'}"))
        assert done.returncode == 0, done.stderr
        start = time.monotonic()
        (folder / "pod").mkdir()
        pod, code, errors = preempt(folder / "pod", flags, moments(count, seed=0))
        seconds = time.monotonic() - start
        preempted = pod.preempted()
        for number, line in enumerate(preempted, 1):
            print(f"preemption {number:3d}: {line}")
        starts = runs.records(pod.bucket / "starts.jsonl")
        same = code == 0 and runs.weights(pod.bucket) == runs.weights(folder / "undisturbed")
        losses = code == 0 and runs.losses(pod.bucket) == runs.losses(folder / "undisturbed")
        if code:
            print("\n".join(errors.splitlines()[-30:]))
        print(
            f"babysit ended with {code} after {len(preempted)} preemptions, {len(pod.attempts())} attempts of which "
            f"{len(starts)} began to train, {len(pod.calls('create'))} TPUs, and {seconds:.0f} s"
        )
        print(f"weights equal bit for bit: {same}; losses of all {STEPS} steps equal: {losses}")
        return 0 if same and losses else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
