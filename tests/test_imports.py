"""Imports point one way: entry points -> training -> objectives -> models, data."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "bertjax"
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(path: Path, *prefixes: str) -> list[str]:
    return sorted(name for name in imported(path) if any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes))


@pytest.mark.parametrize(
    "folder, unknown",
    [
        ("models", ["bertjax.data", "bertjax.objectives", "bertjax.training", "bertjax.config", "bertjax.export"]),
        ("data", ["bertjax.models", "bertjax.objectives", "bertjax.training", "bertjax.config", "bertjax.export"]),
        ("objectives", ["bertjax.training", "bertjax.config", "bertjax.export"]),
        ("training", ["bertjax.train", "bertjax.evaluate", "bertjax.prepare", "bertjax.compile", "bertjax.forecast"]),
        (
            "inference",
            ["bertjax.training", "bertjax.forecast", "bertjax.train", "bertjax.evaluate", "bertjax.predict"],
        ),
        ("training", ["bertjax.inference", "bertjax.predict"]),
        ("interop", ["bertjax.train", "bertjax.evaluate", "bertjax.prepare", "bertjax.compile", "bertjax.convert"]),
        ("training", ["bertjax.comparison", "bertjax.compare"]),
        ("comparison", ["bertjax.compare", "bertjax.train", "bertjax.evaluate", "bertjax.prepare", "bertjax.predict"]),
        ("prediction", ["bertjax.train", "bertjax.evaluate", "bertjax.prepare", "bertjax.compile"]),
    ],
)
def test_nothing_is_imported_from_above(folder, unknown):
    files = [path for path in FILES if path.is_relative_to(PACKAGE / folder)]
    assert files
    assert {path.name: found for path in files if (found := within(path, *unknown))} == {}


@pytest.mark.parametrize(
    "package, only",
    [
        ("grain", {"data/pipeline.py"}),
        ("orbax", {"training/checkpoint.py"}),
        ("sentencepiece", {"data/tokenizer/sentencepiece.py"}),
        ("tokenizers", {"data/tokenizer/huggingface.py"}),
        ("tensorflow_datasets", {"data/sources/tfds.py"}),
        ("datasets", {"data/sources/hugging_face.py"}),
    ],
)
def test_a_library_of_one_file(package, only):
    assert {str(path.relative_to(PACKAGE)) for path in FILES if within(path, package)} == only


def test_data_is_made_without_jax():
    """Workers that prepare batches must not start a backend."""
    assert [path.name for path in (PACKAGE / "data").rglob("*.py") if within(path, "jax", "flax")] == []


def test_an_older_python_is_told_so_in_one_line():
    program = "import sys; sys.version_info = (3, 10, 12); sys.version = '3.10.12 (main)'; import bertjax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: bertjax needs Python 3.11 or newer, this is 3.10.12; see README\n"
