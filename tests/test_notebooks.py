"""The notebooks of docs/notebooks: the two files of a pair have the same cells, without outputs, and they run."""

import json
import os
import re
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

from bertjax.config import export
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from tests.analysis.conftest import MODEL, make
from tests.waiting import LIMIT_SECONDS

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = ("first_hour", "inside_bert")


def cells(notebook) -> list[tuple]:
    return [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def test_every_notebook_has_a_text_and_is_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {path.stem for path in NOTEBOOKS.glob("*.md")}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_has_the_same_cells(name):
    """To repair it: `jupytext --sync docs/notebooks/*.md` takes the file that was changed last."""
    assert cells(read(name)) == cells(jupytext.read(NOTEBOOKS / f"{name}.md"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs(name):
    code = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert [cell.metadata.get("tags") for cell in code].count(["parameters"]) == 1


def run(name: str, folder: Path, monkeypatch, **parameters) -> dict[str, str]:
    """Execute a notebook in an empty folder with other parameters, and return the printed text of each cell."""
    monkeypatch.setenv("HOME", str(folder))  # token stores are in ~/.cache
    paths = [str(NOTEBOOKS.parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = read(name)
    [index] = [n for n, cell in enumerate(notebook.cells) if cell.metadata.get("tags") == ["parameters"]]
    assert all(re.search(rf"\b{key}\b", notebook.cells[index].source) for key in parameters)
    values = "\n".join(f"{key} = {value!r}" for key, value in parameters.items())
    notebook.cells.insert(index + 1, nbformat.v4.new_code_cell(values))
    nbclient.NotebookClient(
        notebook, timeout=int(LIMIT_SECONDS), resources={"metadata": {"path": str(folder)}}
    ).execute()
    printed = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [output.text for output in cell.outputs if output.output_type == "stream"]
            texts += [output.data.get("text/html", "") for output in cell.outputs if "data" in output]
            printed[cell.source] = "".join(texts)
    return printed


def outputs_of(printed: dict[str, str], start: str) -> str:
    """Return the output of the only cell that has a text."""
    [output] = [output for source, output in printed.items() if start in source]
    return output


@pytest.mark.slow
def test_a_first_hour_runs(excerpt, tmp_path, monkeypatch):
    settings = {"CORPUS": str(excerpt), "VOCABULARY": 1000, "PRESET": "google_tiny", "STEPS": 30}
    printed = run("first_hour", tmp_path, monkeypatch, **settings)
    assert outputs_of(printed, "row_text(row):").count("→") > 3
    guesses = outputs_of(printed, "for step in kept")
    assert guesses.count("step    30:") == 4
    assert "of its attention goes to the token before" in outputs_of(printed, "previous_LH =")
    assert outputs_of(printed, "analysis.patterns").count("<svg") == 2
    shares = [float(share) for share in re.findall(r"(\d+)%", outputs_of(printed, "is_mask, is_same"))]
    assert shares == pytest.approx([80, 10, 10], abs=4)


@pytest.mark.slow
def test_inside_bert_runs(excerpt, tmp_path, monkeypatch):
    texts = excerpt.read_text(encoding="utf-8").split("\n\n")
    tokens = tokenizer.train(texts, TokenizerConfig(kind="wordpiece", vocab_size=1000, lowercase=True))
    model = make({"model": MODEL, "stages": [{"seq_len": MODEL["max_positions"]}]}, tokens)
    export.write(tmp_path / "small", model)
    settings = {"MODEL": "small", "CORPUS": str(excerpt), "EXAMPLES": 12, "TRAIN": 64, "EPOCHS": 1}
    printed = run("inside_bert", tmp_path, monkeypatch, **settings)
    assert "3 layers, 4 heads each, 1000 tokens" in outputs_of(printed, "bertjax.load(MODEL)")
    for part in ("patterns", "targets", "disabling", "importance"):
        assert "<svg" in outputs_of(printed, f"analysis.{part}(")
    assert len(json.loads((tmp_path / "runs" / "importance.json").read_text())["heads"]) == MODEL["layers"]
