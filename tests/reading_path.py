"""How much of bertjax one has to read to follow a step of `tiny.py:adamw`: prints, as JSON, what tracing it enters.

    python -m tests.reading_path

`files` and `lines`: files of bertjax whose functions run, and all lines in them. `share`: of the statements in their
functions, those that run. `frames`: calls of bertjax from `train_step` to the softmax, both included.
"""

import ast
import functools
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import numpy as np

from bertjax.config import config_file
from bertjax.training.resolve import open_feeds
from bertjax.training.setup import init_state, make_setups, make_step
from bertjax.training.step import train_chunk
from tests import runs

ROOT = Path(__file__).parents[1]
PACKAGE = str(ROOT / "bertjax") + "/"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus = runs.write_corpus(Path(folder) / "corpus.txt")
        settings = [f"data.corpus={corpus}", f"data.store={folder}", "data.tokenizer.vocab_size=400"]
        feeds = open_feeds(config_file.load(f"{ROOT}/configs/tiny.py:adamw", settings))
        [setup] = make_setups(feeds.config, feeds.store.tokenizer.vocab_size)
        batch = feeds.feed("train", seq_len=32).batch(np.arange(48))
        state, parts = init_state(setup), make_step(setup, "bert")
        step = jax.jit(functools.partial(train_chunk, parts))
        lines, frames = traced(lambda: step.trace(state, None, {name: values[None] for name, values in batch.items()}))
    print(json.dumps(summary(lines) | {"frames": frames}))


def traced(trace: Any) -> tuple[dict[str, set[int]], int]:
    """Return {file: lines in functions that ran}, and the frames of the deepest softmax."""
    lines: dict[str, set[int]] = defaultdict(set)
    depths, softmax = [], jax.nn.softmax

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        ran = lines[code.co_filename]

        def on_line(frame: FrameType, event: str, arg: Any) -> Any:
            ran.add(frame.f_lineno)
            return on_line

        return on_line

    def counted(*args: Any, **settings: Any) -> jax.Array:
        depths.append(depth(sys._getframe(1)))
        return softmax(*args, **settings)

    jax.nn.softmax = counted
    sys.settrace(on_call)
    try:
        trace()
    finally:
        sys.settrace(None)
        jax.nn.softmax = softmax
    return lines, max(depths)


def depth(frame: FrameType | None) -> int:
    """Return the number of frames of bertjax from one outwards to `train_step`."""
    codes: list[CodeType] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            codes.append(frame.f_code)
        if frame.f_code.co_name == "train_step":
            return len(codes)
        frame = frame.f_back
    raise AssertionError("the softmax is not within train_step")


def summary(lines: dict[str, set[int]]) -> dict[str, Any]:
    """Return the counts of files, of which lines ran."""
    texts = {file: Path(file).read_text() for file in lines}
    statements = {file: statements_of(text) for file, text in texts.items()}
    ran = sum(len(statements[file] & lines[file]) for file in lines)
    count = sum(len(text.splitlines()) for text in texts.values())
    return {"files": len(lines), "lines": count, "share": ran / sum(map(len, statements.values()))}


def statements_of(text: str) -> set[int]:
    """Return the first lines of the statements in the functions of a file; docstrings and nested functions are none."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    nodes = [node for function in functions for child in function.body for node in ast.walk(child)]
    return {
        node.lineno
        for node in nodes
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.FunctionDef)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    }


if __name__ == "__main__":
    main()
