"""The lessons: grading tells right from wrong, solutions fit the exercises, and all cells run with the solutions."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
import nbclient
import pytest

from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "lessons"
PATHS = sorted(LESSONS.glob("[0-9]_*.py"))
NAMES = [path.stem for path in PATHS]
# (lesson, exercise, what its solution has, a misconception, a part of the message)
MISCONCEPTIONS = [
    (1, "wordpiece", "range(len(word), start, -1)", "range(start + 1, len(word) + 1)", "unable became"),
    (1, "wordpiece", '"##" if start else ""', '""', "##"),
    (1, "wordpiece", 'return ["[UNK]"]', 'return [*pieces, "[UNK]"]', "the whole word is one [UNK]"),
    (1, "mask_tokens", "& ~is_special_T", "", "exclude is_special_T"),
    (1, "mask_tokens", "case_T >= 0.9", "draw.random(len(tokens_T)) < 0.1", "not 80%"),
    (1, "mask_tokens", "case_T < 0.8", "case_T < 2", "unchanged 0.0%"),
    (2, "one_head", "/ jnp.sqrt(queries_TD.shape[-1])", "", "not divided by the root"),
    (2, "one_head", "axis=-1)", "axis=0)", "columns sum to 1"),
    (2, "one_head", "-1e30", "0.0", "A score of 0 is not a weight of 0"),
    (3, "adamw", " + nano.EPSILON", "", "epsilon is missing"),
    (5, "probe", "np.mean(train_labels_N)", "1.0", "0 or 1"),
    (3, "cross_entropy", "/ weights_K.sum()", "/ len(weights_K)", "not by K"),
    (3, "cross_entropy", "jax.nn.log_softmax(logits_KV, axis=-1)", "jnp.log(jax.nn.softmax(logits_KV))", "p became 0"),
    (3, "logits_gradient", "right_KV) *", "right_KV) * -1 *", "uphill"),
    (3, "adamw", "mean / (1 - nano.BETA1**step)", "mean", "moves by"),
    (
        3,
        "adamw",
        "learning_rate * (change + decay * param)",
        "learning_rate * change - decay * param",
        "learning rate as",
    ),
    (4, "wrong_sentences", "if index != document", "", "exclude it"),
    (4, "wrong_sentences", "not in (place, place + 1)", "!= place", "true next one"),
    (4, "pairwise_accuracy", "+ 0.5 *", "+", ">= counts ties as right"),
    (5, "previous_token", "offset=-1, axis1", "offset=1, axis1", "looks at the next token"),
    (5, "probe", "np.ones((", "np.zeros((", "the bias is missing"),
    (5, "probe", "np.mean(train_labels_N)", "np.mean(test_labels_N)", "which nobody knows yet"),
    (6, "quantize", "np.round", "", "cuts off the fraction"),
    (6, "quantize", "axis=0, keepdims=True", "keepdims=True", "a scale of its own|scales [1, F]"),
    (6, "cut_heads", '["kernel"][:, channels]', '["kernel"][channels]', "made by columns"),
    (6, "cut_heads", '["bias"][channels]', '["bias"]', "cut it as well"),
]


@pytest.fixture(scope="module")
def lesson():
    """The module that lessons import, from their folder."""
    paths = list(sys.path)
    sys.path.insert(0, str(LESSONS))
    yield importlib.import_module("lesson")
    sys.path[:] = paths


def grading() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("lessons_conftest", LESSONS / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exercises(path: Path) -> dict[str, ast.FunctionDef]:
    """Return the functions of a lesson that its solutions contain, by name."""
    solutions = ast.parse((LESSONS / "solutions" / path.name).read_text())
    names = {node.name for node in solutions.body if isinstance(node, ast.FunctionDef)}
    functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
    return {node.name: node for node in functions if node.name in names}


def solved(path: Path) -> str:
    """Return the text of a lesson with its solutions in place of the exercises."""
    lines = path.read_text().splitlines()
    text = (LESSONS / "solutions" / path.name).read_text()
    written = {node.name: ast.get_source_segment(text, node) for node in ast.parse(text).body if hasattr(node, "name")}
    for name, node in reversed(exercises(path).items()):
        lines[node.lineno - 1 : node.end_lineno] = written[name].splitlines()
    return "\n".join(lines) + "\n"


def graded(lesson, capsys, function) -> str:
    capsys.readouterr()
    lesson.grade(function)
    return capsys.readouterr().out


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_a_lesson_is_a_notebook_with_exercises(path):
    notebook = jupytext.read(path)
    kinds = {cell.cell_type for cell in notebook.cells}
    assert kinds == {"markdown", "code"} and notebook.cells[0].source.startswith(f"# Lesson {path.stem[0]}: ")
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    names = list(exercises(path))
    assert re.findall(r"^lesson\.grade\((\w+)\)$", code, re.MULTILINE) == names and len(names) >= 2
    assert code.count("raise NotImplementedError") == len(names)
    assert "lesson.picture(" in code
    solutions = {node.name: node for node in ast.parse((LESSONS / "solutions" / path.name).read_text()).body
                 if isinstance(node, ast.FunctionDef)}  # fmt: skip
    for name, node in exercises(path).items():
        assert [each.arg for each in node.args.args] == [each.arg for each in solutions[name].args.args]
        assert ast.get_docstring(node)


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_links_lead_to_files(path):
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text())
    assert targets and all((LESSONS / target).exists() for target in targets), targets


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_grading_tells_solved_from_unsolved(path, lesson, capsys):
    functions, names = grading().functions, exercises(path)
    unsolved, solutions = functions(path), functions(LESSONS / "solutions" / path.name)
    for name in names:
        assert graded(lesson, capsys, unsolved[name]) == f"{name}: not written yet\n"
        lines = graded(lesson, capsys, solutions[name]).splitlines()
        assert lines and all(line.startswith(f"{name}: right: ") for line in lines), lines


@pytest.mark.parametrize("number, name, old, new, message", MISCONCEPTIONS)
def test_a_misconception_is_named_in_its_exercise_alone(number, name, old, new, message, lesson, capsys, tmp_path):
    text = (LESSONS / "solutions" / PATHS[number - 1].name).read_text()
    assert old in text
    path = tmp_path / "answer.py"
    path.write_text(text.replace(old, new, 1))
    written = grading().functions(path)
    output = graded(lesson, capsys, written[name])
    assert any(part in output for part in message.split("|")) and ": WRONG: " in output, output
    for other in exercises(PATHS[number - 1]).keys() - {name}:
        assert ": WRONG: " not in (output := graded(lesson, capsys, written[other])), output


@pytest.mark.slow
def test_pytest_grades_the_file_of_the_student():
    """As lessons/README.md shows it. Lesson 1 is quick, since it needs no JAX."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "lessons/test_1.py"]
    unsolved = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert unsolved.returncode == 0 and "ssssss" in unsolved.stdout, unsolved.stdout
    right = subprocess.run([*command, "--solutions"], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert right.returncode == 0 and "FAILED" not in right.stdout and "......" in right.stdout, right.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the lessons leave what they make: lessons 4 to 6 share a model."""
    return tmp_path_factory.mktemp("lessons")


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_a_solved_lesson_runs(path, folder, lesson, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))  # token stores are in ~/.cache
    monkeypatch.setattr(lesson, "SMOKE", True)
    plt.switch_backend("agg")
    exec(compile(solved(path), path.name, "exec"), {"__name__": path.stem})
    plt.close("all")
    output = capsys.readouterr().out
    assert "WRONG" not in output and "not written" not in output
    [picture] = re.findall(r"^picture: (.*)$", output, re.MULTILINE)
    assert (folder / picture).stat().st_size > 5000


@pytest.mark.slow
def test_a_lesson_runs_as_a_notebook(tmp_path, monkeypatch):
    """Opened in its folder, as Jupyter does; here a copy of it, because cells write below it."""
    copy = tmp_path / "lessons"
    shutil.copytree(LESSONS, copy, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = jupytext.reads(solved(PATHS[1]), "py:percent")
    nbclient.NotebookClient(notebook, timeout=int(LIMIT_SECONDS), resources={"metadata": {"path": str(copy)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "largest difference to nano.py" in printed and "WRONG" not in printed
    assert (copy / "runs" / "lessons" / "2_previous_token.png").exists()
