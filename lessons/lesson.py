"""What the lessons share: the path to bertjax, two sizes, pictures, grading, and one small trained model.

A lesson imports this file from its own folder, so it also runs where bertjax is not installed.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import matplotlib.figure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Last in the path: an installed bertjax is used if there is one.
sys.path += [str(HERE), str(ROOT)]

# `LESSONS=smoke` runs everything once on very small models, to show that it runs. Its numbers mean nothing.
SMOKE = os.environ.get("LESSONS") == "smoke"
RUNS = Path("runs") / "lessons"

T = TypeVar("T")


def size(full: T, smoke: T) -> T:
    """Return the first value, or the second with `LESSONS=smoke`."""
    return smoke if SMOKE else full


def picture(figure: matplotlib.figure.Figure, name: str) -> None:
    """Store a figure as `runs/lessons/NAME.png` and print its path; a notebook also shows it below the cell."""
    RUNS.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(RUNS / f"{name}.png", dpi=120)
    print(f"picture: {RUNS / name}.png")


def grade(function: Callable) -> None:
    """Run the tests of one exercise, and print for each if it passed or what is wrong.

    `pytest lessons/test_N.py` runs the same tests on the saved file of the lesson.
    """
    name = function.__name__
    tests = [
        test
        for path in sorted(HERE.glob("test_*.py"))
        for test in vars(importlib.import_module(path.stem)).values()
        if inspect.isfunction(test) and test.__name__.startswith("test_") and name in inspect.signature(test).parameters
    ]
    for test in tests:
        title = test.__name__.removeprefix("test_").replace("_", " ")
        try:
            test(function)
        except NotImplementedError:
            print(f"{name}: not written yet")
            return
        except Exception as error:  # whatever the student's code raises
            print(f"{name}: WRONG: {title}: {type(error).__name__}: {error}")
        else:
            print(f"{name}: right: {title}")


def trained() -> str:
    """Return the path of a small trained BERT; train it first if it does not exist. Lessons 4 to 6 share it.

    It is `configs/tiny.py` with fewer steps: 3 layers of width 256 with 4 heads, on the embedded English corpus.
    """
    from bertjax.cli import train
    from bertjax.config import config_file

    steps = size(1200, 20)
    settings = [f"stages.0.steps={steps}", f"optimizer.warmup_steps={steps // 5}", f"eval.every={steps}"]
    if SMOKE:
        settings += ["data.tokenizer.vocab_size=1000", "model.layers=2", "model.width=64", "model.feedforward=128"]
        settings += ["eval.rows=64"]
    workdir = RUNS / f"tiny-{steps}"
    if not (workdir / "export" / "bertjax.json").exists():
        train.run(config_file.load(str(ROOT / "configs" / "tiny.py"), settings), workdir)
    return str(workdir / "export")
