"""Grading: `pytest lessons/test_1.py` calls its tests with the functions that you wrote in `lessons/1_*.py`.

Of a lesson, only imports and functions run, not its cells. `--solutions` grades `lessons/solutions/` instead.
"""

import ast
import contextlib
import inspect
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
    module = types.ModuleType(path.stem)
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)):
            with contextlib.suppress(NameError):  # a default or a decorator that a cell defines: not an exercise
                exec(compile(ast.Module([node], type_ignores=[]), str(path), "exec"), vars(module))
    return {name: value for name, value in vars(module).items() if inspect.isfunction(value)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> object:
    """Skip exercises that are not written yet."""
    try:
        return (yield)
    except NotImplementedError:
        pytest.skip("not written yet")


def pytest_configure(config: pytest.Config) -> None:
    """Show one line for what is wrong, which the message of the test says."""
    if config.option.tbstyle == "auto":
        config.option.tbstyle = "line"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the functions that its parameters name."""
    number = Path(metafunc.module.__file__).stem.removeprefix("test_")
    folder = HERE / "solutions" if metafunc.config.getoption("solutions") else HERE
    [path] = folder.glob(f"{number}_*.py")
    written = functions(path)
    for name in metafunc.fixturenames:
        if name in written:
            metafunc.parametrize(name, [written[name]], ids=[path.stem])
