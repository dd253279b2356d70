"""Text from files of others reaches a terminal without what the terminal would obey."""

import ast
import io
import json
import re
from pathlib import Path

from rich.console import Console

import bertjax
from bertjax.cli import compare, convert
from bertjax.inference import minimal_pairs
from bertjax.interop import card, huggingface
from bertjax.interop.sentence_transformers import MODULES
from bertjax.training.results.classes import ClassReport, table_of
from bertjax.training.run.tables import Table
from tests.comparison import workdirs
from tests.interop import models

# Changes the title of the window, clears it, and turns the direction of the text around.
_ATTACK = "good\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"
_SHOWN = r"good\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PACKAGE = Path(bertjax.__file__).parent
# The commands that read files of others.
_COMMANDS = "analyze augment compare compress convert evaluate extend merge predict probe push report status".split()


def test_commands_print_by_one_function():
    for path in (_PACKAGE / "cli" / f"{name}.py" for name in _COMMANDS):
        names = {node.func.id for node in ast.walk(ast.parse(path.read_text())) if _is_call(node)}
        assert "print" not in names, path
    tables = {path.name for path in _PACKAGE.rglob("*.py") if "rich.table" in path.read_text()}
    assert tables == {"tables.py"}


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_cells_of_a_table_are_text():
    table = Table("[red]head", title=_ATTACK)
    table.add_row("[bold]" + _ATTACK)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    assert text.count(_SHOWN) == 2 and "[red]head" in text and "[bold]" in text and not _OBEYED.search(text)


def test_classes_pairs_and_settings(tmp_path, monkeypatch, capsys):
    report = ClassReport.of((_ATTACK, "other"), [_ATTACK, "other"], ["other", "other"])
    text = table_of(report.scores)
    assert _ATTACK not in text and r"good\x1b]0;owned" in text.replace("\n", "")
    pairs = [{"UID": _ATTACK}, {"UID": _ATTACK}]
    lines = minimal_pairs.table(minimal_pairs.shares(pairs, [{"point": 1.0}, {"point": 0.0}]))
    assert _SHOWN in lines and not _OBEYED.search(lines)

    monkeypatch.chdir(tmp_path)
    for name, corpus in (("first", "a.txt"), ("second", f"b{_ATTACK}.txt")):
        lines = [workdirs.record(10, loss=1.0, heldout=2.0), workdirs.record(20, loss=0.5, heldout=1.0)]
        workdirs.write(tmp_path / name, lines, {"data": {"corpus": corpus}}, baseline={})
    assert compare.main(["first", "second", "--json"]) == 0
    printed = capsys.readouterr().out
    assert not _OBEYED.search(printed) and json.loads(printed)
    assert compare.main(["first", "second"]) == 0
    printed = capsys.readouterr().out
    assert "good" in printed and not _OBEYED.search(printed)


def test_notes_and_cards(tmp_path):
    model = models.make(models.PARTS["BertForMaskedLM"], models.trained())
    model.settings["data"]["corpus"] = f"{_ATTACK}|x.txt"
    folder = tmp_path / "theirs"
    huggingface.write(folder, model._replace(numbers={"steps": 1}))
    text = (folder / card.FILE).read_text()
    assert rf"{_SHOWN}\|x.txt" in text and not _OBEYED.search(text)
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
    (folder / MODULES).write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{_ATTACK}": True}))
    printed = "\n".join(convert.run(folder, tmp_path / "ours"))
    assert _SHOWN in printed and not _OBEYED.search(printed)
