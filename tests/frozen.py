"""Frozen results of recipes, so that a change cannot alter a number unnoticed: they must match bit for bit.

`frozen.json` holds, for each recipe made small, a hash of its first batches, a hash of its final parameters and the
figures of `summary.json`. After an intended change of the numbers, freeze again and mention it in the commit:

    python -m tests.frozen albert_base electra_small

(`distilbert` needs `runs/tiny-smoke`, the run of `configs/tiny.py:smoke`.)

Compiled code differs between kinds of CPU, so the parameters of a recipe are compared only on the kind of CPU that
froze it, which is stored with them.
"""

import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bertjax.config.config_file import load
from bertjax.data.pipeline import LocalBatches
from bertjax.training.resolve import open_feeds
from bertjax.training.setup import make_timetable
from tests import runs

FILE = Path(__file__).parent / "frozen.json"
CONFIGS = Path(__file__).parents[1] / "configs"
FLAGS = {"tiny": ["--config.stages.0.steps=200", "--config.optimizer.warmup_steps=30"]}
STEPS = 3  # whose batches are hashed


def arguments(name: str) -> list[str]:
    """Return the flags of a frozen run: `tiny:adamw` for 200 steps, every other recipe as its variant `smoke`."""
    variant = ":adamw" if name in FLAGS else ":smoke"
    return [f"--config={CONFIGS / name.removesuffix('-smoke')}.py{variant}", *FLAGS.get(name, [])]


def batches(name: str, store: Path) -> str:
    """Return a hash of the first batches of a recipe whose token store is in a folder, or is made there."""
    path, *overrides = (flag.partition("=")[2] if i == 0 else flag for i, flag in enumerate(arguments(name)))
    config = load(path, [*(flag.removeprefix("--config.") for flag in overrides), f"data.store={store}"])
    feeds = open_feeds(config)
    timetable = make_timetable(feeds.config)
    make, digest = LocalBatches(timetable.at, feeds.train, (0,), 1), hashlib.sha256()
    for step in range(STEPS):
        for key, array in sorted(make(step).items()):
            digest.update(f"{key} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def parameters(export: Path) -> str:
    """Return a hash of the names and bits of all parameters of an export."""
    digest = hashlib.sha256()
    for path, leaf in sorted(load_file(export / "model.safetensors").items()):
        digest.update(f"{path}:{hashlib.sha256(np.ascontiguousarray(leaf).tobytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def figures(workdir: Path) -> dict[str, Any]:
    """Return the figures of a finished run that do not depend on time."""
    summary = json.loads((workdir / "summary.json").read_text())
    return {name: summary[name] for name in ("steps", "tokens", "eval", "baseline")}


def cpu() -> str:
    """Return the kind of this machine's CPU: its name and the vector instructions that compilers choose by."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", text)
    vectors = sorted(set(re.findall(r"\b(?:avx\w*|fma|amx\w*)\b", text)))
    return " ".join([model.group(1) if model else "unknown", *vectors])


def freeze(name: str) -> dict[str, Any]:
    """Run a recipe and return what is frozen of it."""
    with tempfile.TemporaryDirectory() as folder:
        store, workdir = Path(folder) / "stores", Path(folder) / "run"
        # Compiled as users compile: the tests' flags would give other last bits.
        run = runs.start(*arguments(name), f"--config.data.store={store}", f"--workdir={workdir}", XLA_FLAGS="")
        done = runs.finish(run)
        if done.returncode:
            raise SystemExit(done.stderr)
        made = {"batches": batches(name, store), "parameters": parameters(workdir / "export"), **figures(workdir)}
        return {"cpu": cpu(), **made}


if __name__ == "__main__":
    frozen = json.loads(FILE.read_text())
    for name in sys.argv[1:]:
        frozen["recipes"][name] = freeze(name)
    FILE.write_text(json.dumps(frozen, indent=1, sort_keys=True) + "\n")
