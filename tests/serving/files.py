"""A small classifier as an ONNX file, its float32 export, and processes that use them."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bertjax.config import export
from bertjax.config.export import Export
from bertjax.interop import huggingface, onnx
from tests.interop import models

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "starlette", "uvicorn", "prometheus_client")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def slow(test):
    """Mark a test as slow: each module exports a model, and starts processes."""
    missing = pytest.mark.skipif(bool(MISSING), reason=f"needs the extras [onnx] and [serve]: no {', '.join(MISSING)}")
    return pytest.mark.slow(missing(test))


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of one model.

    Attributes:
      model: the model.
      export: its export folder.
      onnx: its ONNX file in float32.
      int8: its ONNX file in int8.
    """

    model: Export
    export: Path
    onnx: Path
    int8: Path


def write(folder: Path, term: str = "classification") -> Files:
    """Write the files of a fine-tuned model; PyTorch exports it once."""
    model = models.fine_tuned(term, models.trained())
    files = Files(model, folder / "ours", folder / "model.onnx", folder / "int8.onnx")
    export.write(files.export, model)
    onnx.write(files.onnx, model)
    onnx._quantize(files.onnx, files.int8, reduce_range=True)
    return files


def described(files: Files, path: Path, objective: dict[str, Any] = {}, examples: dict[str, Any] = {}) -> Export:  # noqa: B006
    """Copy the ONNX file with the description of a model of other settings; return that model."""
    [(name, task)] = files.model.settings["tasks"].items()
    task = task | {"objective": task["objective"] | objective, "examples": task["examples"] | examples}
    model = files.model._replace(settings=files.model.settings | {"tasks": {name: task}})
    path.write_bytes(files.onnx.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        huggingface.write(folder, huggingface.encoder_alone(model))
        onnx.attach(path, model, Path(folder))
    return model


# Packages that a server does not have. Any import of them fails, in the process and its children.
ABSENT = (
    *("jax", "jaxlib", "flax", "optax", "orbax", "grain", "torch", "transformers", "onnx", "sklearn", "scipy"),
    *("safetensors", "sentencepiece", "matplotlib", "rich", "ml_collections", "absl", "tensorboardX"),
)
_BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process that has none of the absent packages.

    Args:
      folder: a folder for the module that Python imports first (`sitecustomize`).
    """
    (folder / "sitecustomize.py").write_text(_BLOCK.format(absent=ABSENT))
    return os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen:
    """Start `python -m bertjax ...` without the absent packages."""
    command = [sys.executable, "-m", "bertjax", *arguments]
    return subprocess.Popen(command, env=environment(folder), cwd=folder, text=True, **options)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run `python -m bertjax ...` without the absent packages."""
    command = [sys.executable, "-m", "bertjax", *arguments]
    return subprocess.run(command, env=environment(folder), cwd=folder, text=True, capture_output=True)
