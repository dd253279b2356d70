"""A run for each fold of one file, in one command: scores, and probable label errors among all of its records."""

import contextlib
import csv
import io
import json
import shutil

import pytest

from bertjax.analysis import run_report
from bertjax.cli import report, status, train
from bertjax.config import config_file
from bertjax.config.opening import SavedModel
from bertjax.runtime.errors import UserError
from bertjax.training.results import folds, rescore
from bertjax.training.run.workdir import Workdir
from tests import labeled_files, runs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_programs")]

EXAMPLES = "--config.tasks.classify.examples"
RECORDS = 99


@pytest.fixture(scope="module")
def command(undisturbed, tmp_path_factory):
    """The command line of three folds, without its workdir, and the file: 99 lines with a header and equal texts."""
    path = tmp_path_factory.mktemp("messages") / "messages.csv"
    rows = labeled_files.sentences(RECORDS - 9)
    lines = [f"{row['sentence']},{row['label']}\n" for row in [*rows, *rows[:9]]]
    path.write_text("text,label\n" + "".join(lines))
    flags = ["--config=finetune/classify:smoke", f"--config.init_from={undisturbed / 'export'}"]
    return [*flags, f"{EXAMPLES}.train={path}", f"{EXAMPLES}.folds=3", "--config.stages.0.epochs=2.0"], path


@pytest.fixture(scope="module")
def finished(command, tmp_path_factory):
    """The folder of the finished folds, and what the command printed."""
    workdir, output = tmp_path_factory.mktemp("folds") / "run", io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        assert runs.call(*command[0], f"--workdir={workdir}") == 0
    return workdir, output.getvalue()


def answers(workdir) -> list[dict]:
    return runs.records(workdir / "predictions" / "out_of_fold.jsonl")


def test_each_record_is_answered_by_the_run_that_held_it_out(finished, command):
    workdir, records = finished[0], answers(finished[0])
    lines = command[1].read_text().splitlines()
    assert [f"{record['text']},{record['label']}" for record in records] == lines[1:], "all, in the order of the file"
    assert [record["line"] for record in records] == list(range(2, RECORDS + 2)), "as an editor counts them"
    for fold in range(3):
        names = ("train", "heldout")
        parts = [runs.records(workdir / f"fold={fold}" / "split" / f"classify-{name}.jsonl") for name in names]
        train_texts, held = ({record["text"] for record in part} for part in parts)
        assert not train_texts & held and sum(map(len, parts)) == RECORDS
        assert held == {record["text"] for record in records if record["fold"] == fold}
        own = runs.records(workdir / f"fold={fold}" / "predictions" / "heldout.jsonl")
        by_text = {record["text"]: record["probabilities"] for record in own}
        assert all(by_text[each["text"]] == each["probabilities"] for each in records if each["fold"] == fold)


def test_all_folds_are_one_program(finished):
    """What is compiled depends on the steps, the batch, the classes and the slots of a row, and on nothing else."""
    configs = [SavedModel(finished[0] / f"fold={fold}").settings for fold in range(3)]
    assert configs[0]["stages"] == configs[1]["stages"] == configs[2]["stages"]
    assert configs[0]["optimizer"] == configs[2]["optimizer"] and configs[0]["eval"] == configs[2]["eval"]
    objectives = [config["tasks"]["classify"]["objective"] for config in configs]
    assert objectives[0] == objectives[1] == objectives[2] and objectives[0]["classes"] == ["no", "yes"]


def test_suspects_come_from_all_records(finished):
    workdir, output = finished
    with open(workdir / "predictions" / "out_of_fold-suspects.csv", newline="") as file:
        suspects = list(csv.DictReader(file))
    by_line = {record["line"]: record for record in answers(workdir)}
    assert len({by_line[int(each["line"])]["fold"] for each in suspects}) > 1
    for each in suspects:
        record = by_line[int(each["line"])]
        assert each["text"] == record["text"] and each["suggested"] == record["prediction"] != each["label"]
    assert f"labels    {len(suspects):,} are probably wrong: {workdir}/predictions/out_of_fold-suspects.csv" in output
    [scores, of_classes] = run_report.sections_of(str(workdir))
    assert [row[0] for row in scores.blocks[0].rows][:1] == ["accuracy"]
    assert [row[0] for row in of_classes.blocks[-1].rows] == [each["text"] for each in suspects[:15]]


def test_other_commands_know_the_folder(finished, capsys):
    workdir, _ = finished
    assert report.main([str(workdir), f"--out={workdir}/page.html"]) == 0
    assert capsys.readouterr().out == f"page      {workdir}/page.html\n"
    statuses, errors = status.run([workdir])
    assert [each.state for each in statuses] == ["finished"] * 3 and not errors
    with pytest.raises(UserError, match="holds several runs; name one, such as .*fold=0"):
        _ = SavedModel(workdir).settings
    summary = json.loads((workdir / "fold=1" / "summary.json").read_text())
    assert rescore.run(str(workdir / "fold=1"))["eval"] == pytest.approx(summary["eval"]), "on the fold"
    assert rescore.run(str(workdir / "fold=1" / "export"), str(workdir / "fold=1" / "split/classify-heldout.jsonl"))


def test_a_stopped_command_continues_with_its_fold(finished, command, tmp_path):
    flags, workdir = command[0], tmp_path / "run"
    first, *overrides = [flag.removeprefix("--config").lstrip("=.") for flag in flags]
    config, calls = config_file.load(first, overrides), []

    def should_stop() -> bool:
        calls.append((workdir / "fold=1" / "config.json").exists())
        return sum(calls) > 3

    _, configs = folds.divide(Workdir.at(workdir).root, config)
    trials = [train.Trial(folder, of_fold) for folder, of_fold in configs.items()]
    results = train.train_each(Workdir.at(workdir).root, trials, should_stop=should_stop)
    assert results.is_stopped and list(results.figures) == ["fold=0"]
    exported = (workdir / "fold=0" / "export" / "model.safetensors").stat().st_mtime_ns
    assert runs.call(*flags, f"--workdir={workdir}") == 0
    assert (workdir / "fold=0" / "export" / "model.safetensors").stat().st_mtime_ns == exported, "not trained again"
    assert [each["resumes"] for each in runs.records(workdir / "fold=1" / "starts.jsonl")] == [False, True]
    assert answers(workdir) == answers(finished[0]), "as if nothing had stopped it"


def test_another_file_is_not_mixed_with_finished_folds(finished, command, tmp_path, capsys):
    """It is refused before the next fold trains."""
    flags, path = command
    content = path.read_text()
    shutil.copytree(finished[0] / "fold=0", tmp_path / "fold=0")
    try:
        path.write_text(content.replace(",no\n", ",yes\n", 1))
        assert runs.call(*flags, f"--workdir={tmp_path}") == 2
    finally:
        path.write_text(content)
    assert f"messages.csv is not the file that {tmp_path}/fold=0 was trained on" in capsys.readouterr().err
    assert not (tmp_path / "fold=1").exists()


def test_the_next_command_keeps_the_settings_and_takes_another_file(finished, command):
    config = config_file.load("finetune/classify:smoke", [each.removeprefix("--config.") for each in command[0][1:]])
    spread = json.loads((finished[0] / "folds.json").read_text())
    spread |= {"suspects": 3, "baseline": {name: 0.0 for name in spread["baseline"]}}
    *_, last = folds.lines_of(finished[0], config, spread, ["train", *command[0], "--workdir", str(finished[0])])
    words = last.split()
    assert words[-2:] == [f"{EXAMPLES}.train=CORRECTED_FILE", "--workdir=OTHER_WORKDIR"]
    assert str(finished[0]) not in words and last.count(".train=") == 1
    spread["baseline"] = {name: 1.0 for name in spread["baseline"]}
    lines = folds.lines_of(finished[0], config, spread, ["train"])
    assert any("not above that of the most frequent class" in line for line in lines)


@pytest.mark.parametrize("folder, count, held", [("", 0, "several runs"), ("fold=0", 3, "a single run")])
def test_one_run_and_folds_have_their_own_folders(finished, command, capsys, folder, count, held):
    workdir = finished[0] / folder
    assert runs.call(*command[0], f"{EXAMPLES}.folds={count}", f"--workdir={workdir}") == 2
    assert f"workdir {workdir} holds {held}, which this command does not train; use" in capsys.readouterr().err
    assert not (workdir / "fold=0" / "fold=0").exists()


def test_with_a_held_out_file_a_last_run_has_all_records(command, tmp_path, capsys):
    flags, heldout = command[0], tmp_path / "test.csv"
    rows = labeled_files.sentences(40, seed=9)
    heldout.write_text("text,label\n" + "".join(f"{row['sentence']},{row['label']}\n" for row in rows))
    workdir = tmp_path / "run"
    more = [f"{EXAMPLES}.heldout={heldout}", f"{EXAMPLES}.folds=2", "--config.stages.0.steps=4"]
    flags = [flag for flag in flags if not flag.startswith((f"{EXAMPLES}.folds", "--config.stages"))]
    assert runs.call(*flags, *more, f"--workdir={workdir}") == 0
    settings = SavedModel(workdir / "all").settings["tasks"]["classify"]["examples"]
    assert (settings["folds"], settings["heldout"]) == (0, str(heldout))
    assert (
        len(runs.records(workdir / "all" / "predictions" / "heldout.jsonl")) == 40 and len(answers(workdir)) == RECORDS
    )
    assert folds.command("predict", f"{workdir}/all/export", "--file=FILE") in capsys.readouterr().out
    assert len(status.run([workdir])[0]) == 3


@pytest.mark.parametrize(
    "more, complaint",
    [
        ([f"{EXAMPLES}.folds=1"], "examples.folds=1 must be 2 or more, such as 5, or 0 for one run"),
        ([f"{EXAMPLES}.folds=98"], "leaves a fold without records, as they have "),
        (["--seeds=2"], "--seeds cannot be combined with examples.folds"),
        (["--sweep=seed=1,2"], "--sweep cannot be combined with examples.folds"),
    ],
)
def test_what_folds_cannot_do_is_refused_in_one_line(command, tmp_path, capsys, more, complaint):
    kept = [flag for flag in command[0] if not flag.startswith(tuple(each.partition("=")[0] + "=" for each in more))]
    assert runs.call(*kept, *more, f"--workdir={tmp_path / 'run'}") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and complaint in error
