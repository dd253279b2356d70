"""The command: a folder of numbers, arrays, figures and one page; bad input ends in one line and writes nothing."""

import json

import pytest

from bertjax import analysis
from bertjax.analysis.drawing import Chart, Figure
from bertjax.analysis.part import Result
from bertjax.analysis.parts.targets import Targets
from bertjax.cli import analyze
from bertjax.config import export
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from tests.analysis.conftest import MODEL, make


def call(*arguments: str) -> int:
    return command_line.exit_code_of(lambda: analyze.main(["--platform=cpu", *map(str, arguments)]))


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--parts=pattern"], "part 'pattern' is unknown; choose among sentences, patterns"),
        (["--labeled=glue:SST"], "is not a task of GLUE; choose one of CoLA"),
        (["--labeled=none.tsv"], "is not a file; name one, or glue:TASK"),
        (["--texts="], "is blank"),
        (["--texts=nosuch.txt"], "--texts=nosuch.txt does not exist; check the path"),
        (["--texts={empty}"], "empty.txt has no lines, so there is nothing to analyze"),
        (["--texts=my/texts.jsonl.gz"], "--texts=my/texts.jsonl.gz does not exist"),
        (["--texts=" + "word " * 99], "tokens and pretrained reads 64; shorten it"),
        (["--examples=-1"], "--examples: -1 must be a whole number, at least 1"),
        (["--parts=importance", "--labeled={labeled}"], "--parts=importance: pretrained "),
    ],
)
def test_bad_input_ends_in_one_line(models, tmp_path, capsys, flags, message):
    out = tmp_path / "report"
    (tmp_path / "empty.txt").touch()
    flags = [flag.format(labeled=models["labeled"], empty=tmp_path / "empty.txt") for flag in flags]
    assert call(models["pretrained"], f"--out={out}", *flags) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and message in lines[0], error
    assert "Traceback" not in error and not out.exists()


@pytest.mark.parametrize("when", ["computed", "drawn"])
def test_a_part_that_fails_loses_no_other(models, tmp_path, capsys, monkeypatch, when):
    def fail(*_):
        raise MemoryError("5 GB are needed\nand missing")

    figure = Figure("a", "a caption", "", Chart("an alternative", fail))
    run = fail if when == "computed" else lambda *_: Result({}, figures=[figure])
    monkeypatch.setattr(Targets, "run", run)
    arguments = [models["pretrained"], "--texts=The king is here.", f"--out={tmp_path / 'report'}"]
    assert call(*arguments, "--parts=patterns,targets") == command_line.FAILED
    expected = "MemoryError: 5 GB are needed"
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    again = "the other parts are written; run it alone with --parts=targets"
    assert errors == [f"error: targets failed: {expected}; {again}"]
    numbers = json.loads((tmp_path / "report" / "analysis.json").read_text())
    assert set(numbers["parts"]) == {"patterns"} and numbers["skipped"] == {}
    failed = numbers["failed"]["targets"]
    assert failed["error"] == expected and "in fail" in failed["traceback"] and "and missing" in failed["traceback"]
    page = (tmp_path / "report" / "report.html").read_text()
    assert f"<strong>Failed:</strong> {expected}" in page and "<small>failed</small>" in page
    with pytest.raises(MemoryError):  # a bug that leaves nothing to write keeps its traceback
        analyze.run([str(models["pretrained"])], texts=["A king."], parts=["targets"], out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("place", [".", "link"])
def test_a_folder_that_cannot_be_replaced_is_refused_first(models, tmp_path, capsys, monkeypatch, place):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    assert call("not/there", f"--out={place if place == '.' else tmp_path / place}") == 2
    assert "is the current folder, a link or a mount point, which cannot be replaced" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert call("not/there", f"--out={tmp_path / 'file' / 'report'}") == 2
    assert f"cannot be made in {tmp_path / 'file'}; name a folder that can be written" in capsys.readouterr().err


def test_classes_that_do_not_exclude_each_other_are_no_answer(tokens, tmp_path):
    """The page says so, and has what needs none; the labels are not probed."""
    task = {
        "objective": {"kind": "multi_label", "classes": ["a", "b"]},
        "examples": {"kind": "label_sets", "train": "train.jsonl", "heldout": str(tmp_path / "dev.jsonl")},
    }
    records = [{"sentence": "The king is here.", "label": names} for names in (["a"], ["b"], ["a", "b"], [])]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, records)))
    settings = {"model": MODEL, "tasks": {"toy": task}, "stages": [{"seq_len": 64}], "optimizer": {"warmup_steps": 0}}
    export.write(tmp_path / "model", make(settings, tokens))
    flags = f"--labeled={tmp_path / 'dev.jsonl'}", f"--out={tmp_path / 'report'}", "--parts=sentences,layers"
    assert call(tmp_path / "model", *flags) == 0
    assert "predicts classes that do not exclude each other" in (tmp_path / "report" / "report.html").read_text()


def test_from_python(pretrained, sentences):
    result = analysis.patterns(pretrained, sentences[:3])
    assert result.numbers["pretrained"]["texts"]["examples"] == 3
    assert analysis.patterns(pretrained.export, sentences[:3]).numbers["model"] == result.numbers["pretrained"]
    with pytest.raises(UserError, match="is one text; give a list"):
        analysis.patterns(pretrained, "a sentence")
    with pytest.raises(UserError, match="two models are called"):
        analysis.patterns([pretrained, pretrained], sentences[:3])


def test_every_part_has_a_function():
    from bertjax.analysis.parts import PARTS

    assert [name for name in PARTS if not callable(getattr(analysis, name, None))] == []
