"""Tagging and question answering from the command line, by their recipes made small."""

import contextlib
import copy
import io
import json

import pytest

import bertjax
from bertjax.cli import evaluate, predict
from bertjax.config.opening import SavedModel
from bertjax.inference.ensemble import Ensemble
from bertjax.runtime import command_line
from bertjax.training.results import rescore
from tests import labeled_files, runs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_programs")]

CONFIGS = runs.CONFIG.parents[1] / "configs" / "finetune"


# These tests train new models instead of an export: with larger initial weights they learn in fewer steps.
MODEL = {
    "preset": "google_tiny",
    "width": 32,
    "feedforward": 64,
    "max_positions": 32,
    "init_stddev": 0.2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def finetune(recipe, task, train, heldout, workdir, *more):
    """Train a new model by a recipe on synthetic files; return the exit code."""
    vocabulary = labeled_files.vocabulary(train.parent / "vocab.txt")
    return runs.call(
        f"--config={CONFIGS / recipe}",
        f"--config.tasks.{task}.examples.train={train}",
        f"--config.tasks.{task}.examples.heldout={heldout}",
        f"--config.data.tokenizer.model={vocabulary}",
        *(f"--config.model.{field}={value}" for field, value in MODEL.items()),
        "--config.runtime.log_every=1",
        f"--workdir={workdir}",
        *more,
    )


def course(workdir, name):
    """A metric as it was logged, from the first to the last time."""
    return [record[name] for record in runs.records(workdir / "metrics.jsonl") if name in record]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """A folder with a tagged file, dev.txt, the run that learned its tags, and what the run printed."""
    folder = tmp_path_factory.mktemp("names")
    files = labeled_files.conll(folder / "train.txt", 160), labeled_files.conll(folder / "dev.txt", 60, seed=1)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert finetune("ner.py:smoke", "ner", *files, folder / "run") == 0
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder


def test_names_are_learned(tagger):
    figures = json.loads((tagger / "run" / "summary.json").read_text())
    losses = course(tagger / "run", "train/tagging_loss")
    scores = course(tagger / "run", "eval/heldout/f1")
    assert losses[-1] < losses[0] / 5 and scores == sorted(scores) and scores[0] < scores[-1] > 0.95
    assert figures["eval"]["token_accuracy"] > figures["baseline"]["majority_accuracy"] + 0.3
    assert "train.txt: 3 classes, the rarest first: B-LOC" in (tagger / "printed.txt").read_text()
    predictions = runs.records(tagger / "run" / "predictions" / "heldout.jsonl")
    assert len(predictions) == 60 and all(len(answer["prediction"]) == len(answer["words"]) for answer in predictions)
    text = "ada fed " * 40  # more than the model reads at once
    answers = bertjax.predictor(tagger / "run" / "export").predict([text, "jed abc cadiz"])
    assert answers[0]["words"] == text.split() and len(answers[0]["prediction"]) == 80
    places = {(entity["type"], entity["start"], entity["end"]) for entity in answers[1]["entities"]}
    assert answers[1]["prediction"] == ["B-PER", "O", "B-LOC"] and places == {("PER", 0, 3), ("LOC", 8, 13)}
    assert answers[1]["words"] == "jed abc cadiz".split() and answers[1]["offsets"] == [[0, 3], [4, 7], [8, 13]]


def test_files_of_a_tagger(tagger, tmp_path, capsys):
    """Columns are predicted as sentences, answers come back as a column, and other columns are scored."""
    export, dev, out = tagger / "run" / "export", tagger / "dev.txt", tmp_path / "out.txt"
    call = [str(export), "--platform=cpu"]

    def predicted(*flags) -> int:
        return command_line.exit_code_of(lambda: predict.main([*call, *map(str, flags)]))

    assert predicted(f"--file={dev}", f"--out={out}") == 0
    assert "dev.txt is read as 60 sentences with a word in each line" in capsys.readouterr().err
    rows = [line.split() for line in out.read_text().splitlines()]
    gold = [line.split() for line in dev.read_text().splitlines()]
    assert [row[:3] for row in rows] == gold and {len(row) for row in rows} == {0, 4}
    words = [row for row in rows if row]
    assert sum(row[2] == row[3] for row in words) > 0.95 * len(words)
    own = runs.records(tagger / "run" / "predictions" / "heldout.jsonl")
    pairs = [pair for record in own for pair in zip(record["words"], record["prediction"])]
    assert sorted((row[0], row[3]) for row in words) == sorted(pairs)
    assert predicted(f"--file={dev}", f"--out={tmp_path / 'out.jsonl'}") == 0
    records = runs.records(tmp_path / "out.jsonl")
    assert [tag for record in records for tag in record["prediction"]] == [row[3] for row in words]

    treebank = labeled_files.conllu(tmp_path / "a.conllu", 3)
    assert predicted(f"--file={treebank}") == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(treebank.read_text().splitlines()) and any("\tNER=B-PER" in line for line in printed)

    other = tmp_path / "other.txt"
    other.write_text("".join(f"{row[2]} {row[0]}\n" if row else "\n" for row in gold))
    scores = rescore.run(str(export), str(other), columns={"word": 1, "tag": 0})["eval"]
    assert scores["f1"] == pytest.approx(json.loads((tagger / "run" / "summary.json").read_text())["eval"]["f1"])
    code = command_line.exit_code_of(lambda: evaluate.main([*call, f"--corpus={other}", "--label=x"]))
    assert code == 2 and "--label=x has no effect on a model of examples.kind=tagged" in capsys.readouterr().err
    assert command_line.exit_code_of(lambda: evaluate.main([*call, "--tag=0"])) == 2
    assert "--tag=0 names a column of a labeled file; add --corpus=FILE" in capsys.readouterr().err


@pytest.mark.parametrize("recipe, impossible", [("qa.py:smoke", False), ("qa.py:v2-smoke", True)])
def test_answers_are_found(tmp_path, capsys, recipe, impossible):
    files = (
        labeled_files.squad(tmp_path / "train.json", 150, impossible=impossible),
        labeled_files.squad(tmp_path / "dev.json", 30, seed=1, impossible=impossible),
    )
    more = ["--config.stages.0.epochs=2", "--config.eval.every=6"]
    assert finetune(recipe, "qa", *files, tmp_path / "run", *more) == 0
    figures = json.loads((tmp_path / "run" / "summary.json").read_text())["eval"]
    losses = course(tmp_path / "run", "train/span_loss")
    scores = course(tmp_path / "run", "eval/heldout/f1")
    assert losses[-1] < losses[0] / 5 and scores[0] + 10 < scores[-1] > 95
    assert ("threshold" in figures) == impossible
    predictions = runs.records(tmp_path / "run" / "predictions" / "heldout.jsonl")
    assert len(predictions) == (90 if impossible else 60)
    right = sum(answers["prediction"] in ([a["text"] for a in answers["answers"]] or [""]) for answers in predictions)
    assert 100 * right / len(predictions) == pytest.approx(figures["exact_match"])
    if impossible:
        _check_threshold(tmp_path, figures, capsys)
    contexts = ["abc ada cab gabia fed.", "gig hid " * 30 + "hebei jed gig."]
    questions = [{"question": ask, "context": context, "answers": 7} for context in contexts for ask in ("bid", "cage")]
    answers = bertjax.predictor(tmp_path / "run" / "export").predict(questions)
    assert [answer["prediction"] for answer in answers[:2]] == ["ada", "gabia"] and len(answers) == 4
    for answer in answers:
        begin, stop = answer["begin"], answer["stop"]
        assert answer["prediction"] == (answer["context"][begin:stop] if begin >= 0 else "")
        assert all(answer["context"][best["begin"] : best["stop"]] == best["text"] for best in answer["nbest"])


def _check_threshold(folder, figures, capsys):
    """The export keeps the threshold that was tuned on the held-out file, and uses it on other files."""
    saved = SavedModel(folder / "run" / "export")
    assert saved.config.task.objective.threshold == figures["threshold"]
    assert runs.score_export(folder / "run")["eval"] == pytest.approx(figures, rel=1e-5)
    other_threshold = figures["threshold"] + 2.0
    others = [_with_threshold(saved.export, threshold) for threshold in (figures["threshold"], other_threshold)]
    together = Ensemble(dict(zip(("first", "second"), others))).model.settings["tasks"]["qa"]["objective"]["threshold"]
    assert together == pytest.approx(figures["threshold"] + 1.0)
    other = labeled_files.squad(folder / "other.json", 5, seed=2, impossible=True)
    for model in (saved.folder, folder / "run"):
        assert rescore.run(str(model), str(other))["eval"]["threshold"] == figures["threshold"]
    questions = folder / "questions.jsonl"
    questions.write_text(json.dumps({"question": "jig", "context": "abc ada cab."}) + "\n")
    out = folder / "answers.jsonl"
    assert predict.main([str(saved.folder), f"--file={questions}", f"--out={out}", "--platform=cpu"]) == 0
    printed = f"objective.threshold={figures['threshold']:.4f}, as it was tuned on the held-out file of the training"
    assert printed in capsys.readouterr().err
    (answer,) = runs.records(out)
    margin = answer["no_answer"] - answer["score"]
    assert (answer["prediction"] == "") == (margin > figures["threshold"])


def _with_threshold(model, threshold):
    settings = copy.deepcopy(model.settings)
    settings["tasks"]["qa"]["objective"]["threshold"] = threshold
    return model._replace(settings=settings)


def test_questions_with_bad_answers_are_counted_in_the_output(tmp_path, capsys):
    files = [labeled_files.squad(tmp_path / f"{name}.json", 12, seed) for seed, name in enumerate(("train", "dev"))]
    for path, wrong in zip(files, (3, 2)):
        path.write_text(path.read_text().replace('"answer_start": ', '"answer_start": 9', wrong))
    short = ["--config.stages.0.epochs=0.5"]
    assert finetune("qa.py:smoke", "qa", *files, tmp_path / "run", *short) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and "train.json:data[0].paragraphs[0].qas[0] has the answer" in output
    assert "not in the context at its answer_start; fix it, or set examples.on_bad_record=skip" in output
    skip = "--config.tasks.qa.examples.on_bad_record=skip"
    assert finetune("qa.py:smoke", "qa", *files, tmp_path / "run", *short, skip) == 0
    output = capsys.readouterr().err
    assert "train.json: 3 of 24 records skipped" in output and "dev.json: 2 of 24 records skipped" in output
    assert len(runs.records(tmp_path / "run" / "predictions" / "heldout.jsonl")) == 22
