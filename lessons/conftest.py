"""Grading: `pytest lessons/test_1.py` calls its tests with the functions that you wrote in `lessons/1_*.py`.

Of a lesson, only imports and functions run, not its cells. `--solutions` grades `lessons/solutions/` instead.
"""

import ast
import types
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--solutions", action="store_true", help="grade lessons/solutions instead of the lessons")


def functions(path: Path) -> dict[str, Callable]:
    """Return the functions of a file by name, without running the rest of it."""
    tree = ast.parse(path.read_text(encoding="utf-8"), path.name)
    body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef))]
    module = types.ModuleType(path.stem)
    exec(compile(ast.Module(body, type_ignores=[]), str(path), "exec"), vars(module))
    return {node.name: vars(module)[node.name] for node in body if isinstance(node, ast.FunctionDef)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the functions that its parameters name."""
    number = Path(metafunc.module.__file__).stem.removeprefix("test_")
    folder = HERE / "solutions" if metafunc.config.getoption("solutions") else HERE
    [path] = folder.glob(f"{number}_*.py")
    written = functions(path)
    for name in metafunc.fixturenames:
        if name in written:
            metafunc.parametrize(name, [written[name]], ids=[path.stem])
