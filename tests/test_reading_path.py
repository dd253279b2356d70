"""How much code one has to read at once. These limits only ever fall."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLASSES = [
    (path, node)
    for path in sorted((ROOT / "bertjax").rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.ClassDef)
]
# Settings of the machine are one class, whose fields are independent.
MOST_FIELDS, MOST_ARGUMENTS, EXEMPT = 20, 7, "RuntimeConfig"


def test_a_training_step():
    command = [sys.executable, "-m", "tests.reading_path"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert numbers["files"] <= 23 and numbers["lines"] <= 3_074, numbers
    assert numbers["share"] >= 0.579, numbers
    assert numbers["frames"] <= 18, numbers


def test_public_dataclasses_have_few_fields():
    counts = {node.name: len(list(fields(node))) for _, node in CLASSES if is_dataclass(node) and node.name[0] != "_"}
    assert counts[EXEMPT] and "EncoderConfig" in counts
    assert {name: count for name, count in counts.items() if count > MOST_FIELDS and name != EXEMPT} == {}


def test_constructors_have_few_arguments():
    counts = {
        f"{path.relative_to(ROOT)}:{node.name}": len(method.args.args) + len(method.args.kwonlyargs) - 1
        for path, node in CLASSES
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    }
    assert counts
    assert {name: count for name, count in counts.items() if count > MOST_ARGUMENTS} == {}


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation):
            yield statement
