"""ONNX files in processes that have neither JAX nor PyTorch: predict, evaluate and bench answer as the export does."""

import csv
import json
import re
import tomllib

import pytest

from bertjax.cli import convert, evaluate, predict, serve
from bertjax.config.opening import SavedModel
from bertjax.inference.onnx import OnnxModel, score
from bertjax.inference.predictor import Predictor
from bertjax.interop import onnx
from bertjax.runtime import command_line
from bertjax.runtime.errors import Damaged, UserError
from bertjax.serving import latency
from bertjax.training.results import rescore
from tests.interop import models
from tests.serving import files
from tests.serving.files import slow
from tests.serving.running import Server
from tests.test_imports import IMPORTS, MODULES, PACKAGE, users_of

# Text that is cut, that spells out symbols, and that has characters without a piece.
TEXTS = ["abd ace", "bbe", "[SEP] abd [MASK] cfd", "abd " * 60, "ü 漢 🙂 abd"]


def write_table(path, header):
    names = ["bad", "good", "ü, so-so"]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *([text, names[number % 3]] for number, text in enumerate(TEXTS * 3))])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return files.write(tmp_path_factory.mktemp("model"))


def test_no_module_of_the_server_imports_jax():
    """Inside of functions too. `bench` imports JAX only for a model that needs it."""
    reached = {module for module in MODULES if module.startswith("serving")} | {"runtime.command_line", "cli.serve"}
    while more := set().union(*(IMPORTS[module] for module in reached)) - reached:
        reached |= more
    users = users_of("jax", "flax", "optax", "orbax", "grain", "torch", "transformers", "sklearn", "scipy")
    users.remove("objectives/finetuning/calibration.py")  # scipy fits the temperature, which a file has already
    assert sorted(module for module in reached if str(MODULES[module].relative_to(PACKAGE)) in users) == []


def test_the_requirements_of_a_server_are_those_of_the_extra():
    """The extra has what the package itself does not need."""
    project = tomllib.loads((files.ROOT / "pyproject.toml").read_text())["project"]
    listed = (files.ROOT / "launch" / "serve" / "requirements.txt").read_text().splitlines()
    lines = {line for line in listed if line and not line.startswith("#")}
    whole = {line for line in (files.ROOT / "requirements.txt").read_text().splitlines() if line[:1].isalpha()}
    assert set(project["optional-dependencies"]["serve"]) <= lines
    assert lines <= set(project["optional-dependencies"]["serve"]) | whole


@slow
def test_answers_are_those_of_the_export(made, tmp_path):
    expected = Predictor(made.model).predict(TEXTS)
    done = files.run(tmp_path, "predict", str(made.onnx), *TEXTS)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and done.stderr.startswith("1 of 5 texts were cut to 20 tokens; ")
    for own, theirs in zip(answers, expected, strict=True):
        assert own["prediction"] == theirs["prediction"] and own.keys() == theirs.keys()
        assert own["probabilities"] == pytest.approx(theirs["probabilities"], abs=2e-6)


@slow
def test_a_threshold_is_that_of_the_file_or_of_the_caller(made):
    model = OnnxModel(made.onnx)
    assert "accepted" not in model.predict(["abd"])[0]
    for threshold, is_accepted in ((0.0, True), (1.0, False)):
        [answer] = model.answers(model.task(threshold=threshold), [{"sentence": "abd", "_where": "here"}])
        assert answer["accepted"] is is_accepted and answer.keys() == {"prediction", "probabilities", "accepted"}
    with pytest.raises(UserError, match="threshold=2"):
        model.task(threshold=2.0)


@slow
def test_pairs_are_cut_and_laid_out_as_by_the_export(made, tmp_path):
    model = files.described(made, tmp_path / "pairs.onnx", examples={"text": "a", "pair": "b"})
    lengths = [(first, second) for first in (1, 8, 9, 30) for second in (1, 8, 9, 30)]
    records = [{"a": " ".join(["abd"] * first), "b": " ".join(["ace"] * second)} for first, second in lengths]
    file = OnnxModel(tmp_path / "pairs.onnx")
    assert file.description.fields == ("a", "b")
    predictor, placed = Predictor(model), [record | {"_where": ""} for record in records]
    own, theirs = (each.task().encode(placed).ragged for each in (file, predictor))
    for name in ("tokens", "segments", "offsets"):
        assert getattr(own, name).tolist() == getattr(theirs, name).tolist()
    for own, theirs in zip(file.predict(records), predictor.predict(records), strict=True):
        assert own["probabilities"] == pytest.approx(theirs["probabilities"], abs=2e-6)


def test_what_is_tuned_and_what_files_have_is_in_the_description():
    model = models.fine_tuned("multi_label", models.trained())
    [task] = model.settings["tasks"].values()
    task["objective"]["threshold"] = 0.7
    task["examples"] |= {"text": "comment", "separator": ";", "max_tokens": 12, "train": "/secret/train.csv"}
    description = onnx.description_of(model)
    assert (description.task, description.threshold, description.max_tokens) == ("multi_label", 0.7, 12)
    assert description.labels == ("bad", "good", "ü, so-so") and description.fields == ("comment",)
    assert description.examples["separator"] == ";" and "secret" not in description.to_json()


@slow
def test_scores_are_those_of_the_export(made, tmp_path):
    write_table(tmp_path / "test.csv", ["comment", "stars"])
    columns = {"text": "comment", "label": "stars"}
    of_export = rescore.run(str(made.export), str(tmp_path / "test.csv"), per_class=True, columns=columns)
    expected, expected_classes = of_export["eval"], of_export["classes"]["heldout"]
    flags = ("--corpus=test.csv", "--text=comment", "--label=stars", "--per-class", "--json")
    done = files.run(tmp_path, "evaluate", str(made.onnx), *flags)
    figures = json.loads(done.stdout)
    assert figures["records"] == 15 and figures["cut"] == 3 and figures["baseline"]["majority_accuracy"] == 1 / 3
    assert figures["eval"] == pytest.approx({name: expected[name] for name in figures["eval"]}, abs=1e-6)
    assert figures["classes"]["heldout"] == expected_classes
    done = files.run(tmp_path, "evaluate", str(made.onnx), *flags[:-1])
    assert done.stdout.splitlines()[-6].split() == ["precision", "recall", "f1", "support", "class"]
    names = [line.split("  ")[-1] for line in done.stdout.splitlines()[-5:]]
    assert sorted(names[:3]) == ["bad", "good", "ü, so-so"] and names[3:] == ["macro avg", "weighted avg"]


@slow
def test_the_time_of_a_text_is_measured(made, tmp_path):
    flags = ("--batch=1,4", "--threads=1", "--seconds=0.01")
    done = files.run(tmp_path, "bench", str(made.onnx), str(made.int8), *flags, "--json")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["model"], result["batch"]) for result in results] == [
        *((str(made.onnx), 1), (str(made.onnx), 4)),
        *((str(made.int8), 1), (str(made.int8), 4)),
    ]
    for result in results:
        assert 0 < result["p50"] <= result["p99"] and result["calls"] >= 20 and result["threads"] == 1
    (tmp_path / "answered.csv").write_text("sentence,prediction\n" + "abd ace,good\n" * 9)
    shown = files.run(tmp_path, "bench", str(made.onnx), *flags, "--file=answered.csv").stdout.splitlines()
    assert shown[0].split() == ["threads", "batch", "p50", "ms", "p99", "ms", "texts/s", "model"] and len(shown) == 3


@slow
def test_a_tagger_answers_as_its_export(tmp_path):
    """Texts are split, read in windows and joined to entities; columns are sentences."""
    tagger, texts = files.write(tmp_path, "tagging"), [*TEXTS, "(abd) cfd."]
    expected = Predictor(tagger.model).predict(texts)
    assert any(answer["entities"] for answer in expected) and expected[-1]["words"] == ["(", "abd", ")", "cfd", "."]
    done = files.run(tmp_path, "predict", str(tagger.onnx), *texts)
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    assert done.stderr == "1 of 6 texts were read in windows of 20 tokens\n"
    server = Server(tmp_path, str(tagger.onnx))
    assert [{"text": text} | answer for text, answer in zip(texts, server.answers(texts))] == expected
    server.stop()
    (tmp_path / "a.txt").write_text("abd O\nace O\n\nbbe O\ncfd O\n")
    done = files.run(tmp_path, "predict", str(tagger.onnx), "--file=a.txt", "--json")
    records = Predictor(tagger.model).predict([{"words": ["abd", "ace"]}, {"words": ["bbe", "cfd"]}])
    assert [json.loads(line) for line in done.stdout.splitlines()] == records
    assert files.run(tmp_path, "bench", str(tagger.onnx), "--file=a.txt", "--seconds=0.01").returncode == 0
    refused = files.run(tmp_path, "evaluate", str(tagger.onnx), "--corpus=a.txt")
    assert refused.returncode == 2 and "examples.kind='tagged', on whose files only its export is" in refused.stderr
    refused = files.run(tmp_path, "predict", str(tagger.onnx), "abd ace", "--top=2")
    assert refused.returncode == 2 and "top=2 has no effect on the task 'tagging'; leave it out" in refused.stderr


@slow
def test_bad_input_is_one_line(made, tmp_path):
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(made.onnx.read_bytes()[:5000])
    for arguments, complaint in [
        (("predict", "nowhere.onnx", "a"), "nowhere.onnx is not an .onnx file; name one of"),
        (("predict", str(bad), "a"), "bad.onnx cannot be opened by ONNX Runtime"),
        (("predict", str(made.onnx), "a", "--threads=-1"), "threads=-1 must not be negative"),
        (("predict", str(made.onnx), " "), "is blank"),
        (("evaluate", str(made.onnx)), "add --corpus=FILE"),
        (("bench", str(made.onnx), "--batch=0"), "--batch: 0 must be a whole number, at least 1"),
        (("bench", str(made.export), "--batch=1"), "needs the package"),
        (("bench", "hf:owner/name", "--batch=1"), "needs the package"),
        (("serve", "nowhere"), "nowhere is not an .onnx file; name one of"),
        (("serve", str(made.onnx), "--max-texts=0"), "--max-texts=0 must be above 0"),
        (("serve", str(made.onnx), f"--host={'a' * 5000}"), "aaa... --port=8000 cannot be used"),
        (("train", "--config=tiny"), "train needs the package"),
        (("predict", str(made.export), "a"), "predict needs the package"),
        (("evaluate", str(made.export)), "evaluate needs the package"),
    ]:
        done = files.run(tmp_path, *arguments)
        assert done.returncode == 2, arguments
        assert done.stderr.count("\n") == 1 and complaint in done.stderr, done.stderr


@slow
def test_metadata_that_does_not_fit_the_model_is_refused_when_it_is_opened(made, tmp_path):
    import onnx as library

    def changed(description={}, vocab={}):  # noqa: B006
        file = library.load(made.onnx)
        entries = {entry.key: entry.value for entry in file.metadata_props}
        tokens = json.loads(entries["tokenizer.json"])
        tokens["model"]["vocab"] |= vocab
        own = json.loads(entries["bertjax"]) | description
        library.helper.set_model_props(file, {"bertjax": json.dumps(own), "tokenizer.json": json.dumps(tokens)})
        library.save(file, tmp_path / "changed.onnx")
        return OnnxModel(tmp_path / "changed.onnx")

    changed()
    many = dict(zip(("one", "two"), (10_000, 10_001), strict=True))
    for changes, complaint in [
        ({"description": {"labels": ["a", "b"]}}, r"its output has the shape \[2, 3\] for 2 texts, and not \[2, 2\]"),
        ({"description": {"task": "regression"}}, r"\[2, 3\] for 2 texts, and not \[2, 1\]"),
        ({"description": {"pad_id": 10**6}}, r"2 texts of 20 tokens: .*out of data bounds"),
        ({"description": {"max_tokens": 10**6}}, "2 texts of 512 tokens: "),
        ({"vocab": many}, r"2 texts of 20 tokens: .*out of data bounds"),
    ]:
        with pytest.raises(
            Damaged, match=f"changed.onnx does not fit its model .*{complaint}.*; convert the model again"
        ):
            changed(**changes)


def test_flags_that_have_no_effect_are_refused(tmp_path, capsys):
    (tmp_path / "a.onnx").write_bytes(b"")
    for main, flags, complaint in [
        (predict.main, ["a.onnx", "a text", "--do=embed"], "--do has no effect on an ONNX file; remove it, or"),
        (predict.main, ["a.onnx", "--with=b"], "--with has no effect on an ONNX file"),
        (predict.main, [str(tmp_path), "see model.onnx", "--threads=2"], "--threads=2 has an effect on ONNX files"),
        (evaluate.main, ["a.onnx", "--corpus=a.csv", "--as=run"], "--as has no effect on an ONNX file"),
        (evaluate.main, ["a.onnx", "--corpus=a.csv", "--precision=0"], "--precision has no effect on an ONNX file"),
        (evaluate.main, [str(tmp_path), "--threads=2"], "--threads=2 has an effect on ONNX files"),
    ]:
        assert command_line.exit_code_of(lambda main=main, flags=flags: main(flags)) == 2
        assert complaint in capsys.readouterr().err
    with pytest.raises(UserError, match="is an ONNX file, which predict, evaluate, bench and serve use"):
        SavedModel(tmp_path / "a.onnx")


def test_a_missing_server_package_is_named(monkeypatch):
    monkeypatch.setattr(serve, "_PACKAGES", ("json", "not_there"))
    with pytest.raises(Exception, match=re.escape("serve needs the packages not_there; pip install '.[serve]'")):
        serve.main(["model.onnx"])


@slow
def test_the_int8_file_is_scored_beside_the_original(made, tmp_path, monkeypatch, capsys):
    """PyTorch has exported the model before."""
    monkeypatch.setattr(onnx, "_export", lambda source, draft, *others: draft.write_bytes(made.onnx.read_bytes()))
    monkeypatch.setattr(latency, "_SECONDS", 0.01)
    write_table(tmp_path / "test.csv", ["sentence", "label"])
    flags = [f"--from={made.export}", f"--to={tmp_path / 'new.onnx'}", "--quantize=int8"]
    assert convert.main([*flags, f"--score={tmp_path / 'test.csv'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for path, place in ((made.onnx, 2), (made.int8, 4)):
        scores = score(OnnxModel(path), str(tmp_path / "test.csv"))["eval"]
        shown = {line.split()[1]: line.split()[place] for line in lines if line.startswith("score: ")}
        assert shown == {name: f"{value:.4f}" for name, value in scores.items()}
    assert sum(line.startswith("time: ") and line.endswith("ms a text (median, one thread)") for line in lines) == 1
    for bad, complaint in [
        ([flags[0], flags[1].replace("new", "b"), "--score=a.csv"], "--score=a.csv compares int8 with float32"),
        ([flags[0], flags[1].replace("new", "b"), flags[2], "--score=nowhere.csv"], "nowhere.csv"),
    ]:
        assert command_line.exit_code_of(lambda bad=bad: convert.main(bad)) == 2
        assert complaint in capsys.readouterr().err and not (tmp_path / "b.onnx").exists()
