"""Fine-tuning on one file as a spreadsheet writes it: split, columns, calibration, and what is printed before."""

import contextlib
import csv
import io
import json
import os
import shutil

import numpy as np
import pytest

import bertjax
from bertjax.analysis import run_report
from bertjax.analysis.page import page
from bertjax.cli import predict
from bertjax.config.opening import SavedModel
from bertjax.runtime.errors import UserError
from bertjax.training.results import rescore
from bertjax.training.run.workdir import Workdir
from tests import labeled_files, runs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_programs")]

LABELS = {"yes": "Lob ", "no": "Kritik"}
EXAMPLES = "--config.tasks.classify.examples"


def write(path) -> None:
    """Semicolons, a byte order mark, Windows line ends, an empty row, spaces beside a label; 10 texts twice."""
    rows = labeled_files.sentences(150)
    lines = [f"{number};{row['sentence']};{LABELS[row['label']]}" for number, row in enumerate(rows + rows[:10])]
    path.write_bytes(("\ufeff" + "\r\n".join(["Nr;Nachricht;Urteil", *lines, ";;"]) + "\r\n").encode())


@pytest.fixture(scope="module")
def command(undisturbed, tmp_path_factory):
    """The command line of a run on one file, without its workdir, and the file."""
    path = tmp_path_factory.mktemp("messages") / "messages.csv"
    write(path)
    flags = ["--config=finetune/classify:smoke", f"--config.init_from={undisturbed / 'export'}"]
    precision = "--config.tasks.classify.objective.precision=0.9"
    return [*flags, f"{EXAMPLES}.train={path}", precision, "--config.stages.0.epochs=2.0"], path


@pytest.fixture(scope="module")
def finished(command, tmp_path_factory):
    """A finished run, and what it printed."""
    workdir, output = tmp_path_factory.mktemp("one") / "run", io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        assert runs.call(*command[0], f"--workdir={workdir}") == 0
    return workdir, output.getvalue()


def test_what_it_found_is_printed_before_the_first_step(finished, command):
    workdir, output = finished
    path = command[1]
    expected = [
        f"{path}: its fields are separated by ';', and are read so",
        f"{path}: empty rows skipped: 1",
        f"{path}: the column of the text is 'Nachricht', that of the label 'Urteil'",
        f"{path}, training: 2 classes, the rarest first: Kritik ",
        "of 160 records are held out by class, equal texts on one side (examples.heldout=0.2, seed 0)",
        "training examples have ",
        "the model can be converted to sentence-transformers and ONNX",
        "warning: not to transformers: its classes have no objective.pooling=mean; set --config.tasks.classify."
        "objective.pooling=cls",
    ]
    before = output[: output.index("step ")]
    assert [line for line in expected if line not in before] == []
    facts = json.loads((workdir / "labeled.json").read_text())
    task = facts["tasks"]["classify"]
    assert task["repeated"] == 0 and task["heldout_share"] == 0.2 and facts["destinations"]["ONNX"] == ""
    assert list(task["classes"]) == ["Kritik", "Lob"]
    lengths = task["lengths"]["train"]
    assert lengths["longest"] > 32 and "cut to 32 tokens" in lengths["notes"], "rows have 32 tokens"
    assert task["conflicts"] == []
    counts = {name: sum(sizes[name] for sizes in task["classes"].values()) for name in ("train", "heldout")}
    assert counts == {"train": task["lengths"]["train"]["examples"], "heldout": 160 - counts["train"]}


def test_the_split_is_recorded_and_scored_again(finished, command, tmp_path):
    workdir, _ = finished
    summary = json.loads((workdir / "summary.json").read_text())
    heldout, train = (runs.records(workdir / "split" / f"classify-{name}.jsonl") for name in ("heldout", "train"))
    assert len(heldout) + len(train) == 160 and 25 < len(heldout) < 35
    predicted = runs.records(workdir / "predictions" / "heldout.jsonl")
    assert sorted(row["Nachricht"] for row in predicted) == sorted(row["Nachricht"] for row in heldout)
    path = command[1]
    content = path.read_bytes()
    try:
        path.unlink()
        again = rescore.run(str(workdir))["eval"]
    finally:
        path.write_bytes(content)
    assert again == pytest.approx(summary["eval"]), "the split of the run, without the file"


def test_scoring_trained_records_is_warned_of(finished, command, tmp_path, capsys):
    workdir, path = finished[0], tmp_path / "other.csv"
    splits = {name: runs.records(workdir / "split" / f"classify-{name}.jsonl") for name in ("heldout", "train")}
    trained, rows = len(splits["train"]), [*splits["train"], *splits["heldout"]]
    # Other column names, case and white space; the training file itself is not read.
    lines = [f"{row['Nachricht'].upper().replace(' ', '  ')} ;{row['Urteil']}" for row in rows]
    path.write_text("\n".join(["Text;Art", *lines]) + "\n")
    rescore.run(str(workdir), str(path), columns={"text": "Text", "label": "Art"})
    warning = "records were trained on; the scores are not those of new texts"
    assert f"warning: {trained} of 160 {warning}" in capsys.readouterr().err
    with (train := workdir / "split" / "classify-train.jsonl").open("a") as file:  # which nothing needs here
        whole = file.tell()
        file.write("damaged\n")
    assert rescore.run(str(workdir), str(path), columns={"text": "Text", "label": "Art"})["eval"]
    os.truncate(train, whole)
    capsys.readouterr()
    rescore.run(str(workdir), str(command[1]))
    assert f"warning: {trained} of 160 {warning}" in capsys.readouterr().err
    rescore.run(str(workdir), str(workdir / "split" / "classify-heldout.jsonl"))
    assert warning not in capsys.readouterr().err


def test_a_changed_file_does_not_resume_with_another_split(finished, command, capsys):
    workdir, _ = finished
    flags, path = command
    content, labeled = path.read_bytes(), workdir / "labeled.json"
    facts = labeled.read_text()
    labeled.write_text(facts.replace('"repeated": 0', '"repeated": 7'))
    capsys.readouterr()
    assert runs.call(*flags, f"--workdir={workdir}") == 0, "the same file is the same run"
    assert "warning: 7 held-out records have texts that the training file has too" in capsys.readouterr().out, (
        "what the first start has found is not counted again"
    )
    labeled.write_text(facts)
    try:
        path.write_bytes(content + b"161;abc good new;Lob\r\n")
        assert runs.call(*flags, f"--workdir={workdir}") == 2
    finally:
        path.write_bytes(content)
    assert "store_fingerprint" in capsys.readouterr().err


def test_temperature_and_threshold_are_fitted_stored_and_used(finished):
    workdir, output = finished
    scores = json.loads((workdir / "summary.json").read_text())["eval"]
    assert {"temperature", "ece", "ece_calibrated", "threshold", "coverage"} <= scores.keys()
    objective = SavedModel(workdir / "export").settings["tasks"]["classify"]["objective"]
    assert objective["temperature"] == scores["temperature"] and objective["threshold"] == scores["threshold"]
    records = runs.records(workdir / "predictions" / "heldout.jsonl")
    answers = bertjax.predictor(workdir / "export").predict([row["Nachricht"] for row in records])
    for record, answer in zip(records, answers):
        assert answer["accepted"] == record["accepted"] and answer["prediction"] == record["prediction"]
        assert answer["probabilities"] == pytest.approx(record["probabilities"], abs=1e-4)
    accepted = sum(record["accepted"] for record in records)
    assert accepted / len(records) == pytest.approx(scores["coverage"])
    assert f"accepted  {accepted} of {len(records)} records of heldout are above objective.threshold" in output
    assert ("warning: heldout: fewer than 20 accepted records" in output) == (accepted < 20)
    assert ("records are too few for scores" in output) == (len(records) < 20)
    assert SavedModel(workdir).export.settings["tasks"]["classify"]["objective"]["temperature"] == scores["temperature"]


def test_a_threshold_is_chosen_after_the_training(finished, tmp_path):
    """On records that the caller names; the export keeps it, and `predict` takes another one."""
    workdir, heldout = finished[0], finished[0] / "split" / "classify-heldout.jsonl"
    model = shutil.copytree(workdir / "export", tmp_path / "export")
    with pytest.raises(UserError, match="^--precision=0.6 .* name an export such as .*/run/export"):
        rescore.run(str(workdir), str(heldout), precision=0.6)
    scores = rescore.run(str(model), str(heldout), precision=0.6)["eval"]
    answers = bertjax.predictor(model).predict(runs.records(heldout))
    sure = [max(answer["probabilities"].values()) > scores["threshold"] for answer in answers]
    right = [answer["prediction"] == answer["Urteil"].strip() for answer in answers]
    assert [answer["accepted"] for answer in answers] == sure and scores["coverage"] == np.mean(sure)
    assert scores["precision"] == pytest.approx(np.mean(np.array(right)[sure])) and scores["precision"] >= 0.6
    assert rescore.run(str(model), str(heldout))["eval"]["threshold"] == pytest.approx(scores["threshold"])
    assert predict.main([str(model), f"--file={heldout}", "--threshold=1", f"--out={tmp_path / 'none.jsonl'}"]) == 0
    records = runs.records(tmp_path / "none.jsonl")
    assert len(records) == len(answers) and not any(record["accepted"] for record in records)


def test_suspect_labels_and_the_page_of_the_run(finished):
    """The file that training writes lists what the page shows."""
    workdir, output = finished
    with open(workdir / "predictions" / "heldout-suspects.csv", newline="", encoding="utf-8") as file:
        suspects = list(csv.DictReader(file))
    records = {row["Nachricht"]: row for row in runs.records(workdir / "predictions" / "heldout.jsonl")}
    assert f"labels    {len(suspects)} are probably wrong: " in output
    for suspect in suspects:
        record = records[suspect["Nachricht"]]
        assert suspect["suggested"] == record["prediction"] != record["Urteil"].strip()
        assert float(suspect["label_probability"]) == record["probabilities"][record["Urteil"].strip()]
    sections = {section.name: section for section in run_report.sections_of(str(workdir))}
    section = sections["classes-0"]
    assert section.title == "Classes of heldout"
    scores, _, reliability, threshold, mistakes, suspected = section.blocks
    assert "in 15 bins of equal width" in reliability.caption
    tuned = json.loads((workdir / "summary.json").read_text())["eval"]["threshold"]
    assert f"the threshold for `objective.precision=0.9`: {tuned:.4f}, fitted on" in threshold.caption
    assert {row[1] for table in (mistakes, suspected) for row in table.rows} <= {"Kritik", "Lob"}, "without spaces"
    assert {row[0] for row in scores.rows[:-2]} == {"Kritik", "Lob"}
    wrong = [row for row in records.values() if row["prediction"] != row["Urteil"].strip()]
    assert len(mistakes.rows) == min(len(wrong), 15)
    assert [row[3] for row in mistakes.rows] == sorted((row[3] for row in mistakes.rows), reverse=True)
    assert [row[0] for row in suspected.rows] == [suspect["Nachricht"] for suspect in suspects[:15]]
    assert "</svg>" in page("run", [section])


def test_a_file_with_one_text_leaves_nothing_to_hold_out(command, tmp_path, capsys):
    path = tmp_path / "one.csv"
    path.write_text("text,label\n" + "abc good,yes\n" * 3 + "abc good,no\n" * 3)
    assert runs.call(*command[0], f"{EXAMPLES}.train={path}", f"--workdir={tmp_path / 'run'}") == 2
    assert "leaves no held-out record, as all 6 have one text" in capsys.readouterr().err
    assert Workdir.at(tmp_path / "run").config.exists() is False


def test_few_examples_leave_a_classifier_like_any_other(command, tmp_path, capfd):
    """The recipe takes the same flags; pairs are its own, and nothing of them is in the export."""
    workdir, (_, source, train, precision, _) = tmp_path / "run", command[0]
    flags = ["--config=finetune/few:smoke", source, train, precision.replace("objective.", "objective.objective.")]
    assert runs.call(*flags, "--config.stages.0.epochs=1.0", f"--workdir={workdir}") == 0
    before = "".join(capfd.readouterr())
    assert "the model can be converted to sentence-transformers and ONNX" in before
    assert "set --config.tasks.classify.objective.objective.pooling=cls" in before
    summary = json.loads((workdir / "summary.json").read_text())
    assert {"together_loss", "apart_loss", "accuracy", "threshold"} <= summary["eval"].keys()
    settings = SavedModel(workdir / "export").settings["tasks"]["classify"]["objective"]
    assert (settings["kind"], settings["classes"]) == ("classification", ["Kritik", "Lob"])
    assert settings["temperature"] == pytest.approx(summary["eval"]["temperature"])
    [answer] = bertjax.predictor(workdir / "export").predict([{"Nachricht": "abc good"}])
    assert answer["prediction"] in ("Kritik", "Lob") and "accepted" in answer
    folder = workdir / "export" / "hf"
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert (folder / "2_Dense" / "model.safetensors").exists()
    # The Hub would offer a pipeline of transformers, which would give the labels to a head of random values.
    assert "library_name: sentence-transformers" in card and "pipeline_tag" not in card
