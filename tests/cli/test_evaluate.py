"""Scoring: a run, its checkpoint and its export give the figures of the run."""

import dataclasses
import json
import re
import shutil

import pytest

from bertjax.cli import convert, evaluate, predict
from bertjax.config.opening import SavedModel
from bertjax.data import sources
from bertjax.data.preparation import spec
from bertjax.data.store import TokenStore
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from tests import runs


@pytest.mark.parametrize("name", ["run", "run@100", "run/export"])
def test_the_figures_are_those_of_the_run(undisturbed, name):
    is_export = name.endswith("export")
    figures = runs.score_export(undisturbed) if is_export else evaluate.run(f"{undisturbed.parent}/{name}")
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert figures["eval"] == pytest.approx(summary["eval"], rel=1e-6)
    assert figures["baseline"] == pytest.approx(summary["baseline"], rel=1e-6)


@pytest.mark.parametrize("name, is_named", [("{run}", True), ("{run}@100", False), ("{run}/export", False)])
def test_the_newest_checkpoint_of_an_unfinished_run_is_named_so(undisturbed, tmp_path, capsys, name, is_named):
    copy = tmp_path / "run"
    shutil.copytree(undisturbed, copy)
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps(summary | {"finished": False}))
    with pytest.raises(UserError, match="nowhere"):  # the note comes first, and nothing is computed
        evaluate.run(name.format(run=copy), corpus=str(tmp_path / "nowhere"))
    assert ("is not finished; its newest checkpoint is scored" in capsys.readouterr().err) == is_named


@pytest.mark.parametrize("is_finished", [False, True])
def test_predict_and_convert_name_it_too(undisturbed, tmp_path, capsys, is_finished):
    copy = tmp_path / "run"
    shutil.copytree(undisturbed, copy)
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps(summary | {"finished": is_finished}))
    commands = {"used": lambda: predict.main([str(copy), "abc", "--do=embed", "--platform=cpu"])}
    commands["converted"] = lambda: convert.main([f"--from={copy}", f"--to={tmp_path / 'theirs'}"])
    for use, command in commands.items():
        assert command_line.exit_code_of(command) == 0
        line = f"{copy} is not finished; its newest checkpoint is {use}\n"
        assert (line in capsys.readouterr().err) == (not is_finished)


@pytest.mark.slow
def test_where_a_run_was_trained_does_not_matter(undisturbed):
    config = SavedModel(undisturbed).config
    elsewhere = dataclasses.replace(
        config.runtime, attention="splash", strategy="fsdp", mesh=dataclasses.replace(config.runtime.mesh, fsdp=16)
    )
    elsewhere = dataclasses.replace(config, runtime=elsewhere)
    assert evaluate.score(SavedModel(undisturbed), elsewhere) == evaluate.run(str(undisturbed))


@pytest.mark.slow
def test_another_corpus_is_read_with_the_model_s_own_tokenizer(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # token stores are in ~/.cache
    corpus = tmp_path / "other.txt"
    corpus.write_text("\n\n".join(f"Jed gaf {i} had. Bed cab {i} fed. Ice age {i} did." for i in range(80)))
    figures = evaluate.run(str(undisturbed / "export"), corpus=str(corpus))
    scored = figures["scored"]["bert"]
    assert scored["documents"] == 80 and scored["rows"] == scored["of_rows"], "the whole file"
    assert figures["eval"]["mlm_loss"] > 0 and figures["eval"].keys() == evaluate.run(str(undisturbed))["eval"].keys()


@pytest.mark.slow
def test_documents_that_were_trained_on_are_counted(undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    data = SavedModel(undisturbed).config.data
    texts = [document.text for document in sources.documents(data.corpus, data.text_field)]
    corpus = tmp_path / "some.txt"
    corpus.write_text("\n\n".join([*texts, "Jed gaf had. Bed cab fed."]))
    scored = evaluate.run(str(undisturbed), corpus=str(corpus))["scored"]["bert"]["documents"]
    found = re.search(r"warning: (\d+) of (\d+) documents were trained on", capsys.readouterr().err)
    store = spec.find(
        data, json.loads((undisturbed / "config.json").read_text())["identity"]["data"]["store_fingerprint"]
    )
    trained = TokenStore.open(store).manifest["splits"]["train"]["documents"]
    assert int(found[1]) == trained < scored == int(found[2])


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("{run}/nowhere", "does not exist"),
        ("{run}/events", "holds neither an export"),
        ("{run}@7", "has no checkpoint 7; it has 40, 80, 90, 100"),
        ("{run}@last", "has no checkpoint last"),
    ],
)
def test_a_missing_model_is_reported_in_one_line(undisturbed, capsys, name, complaint):
    code = command_line.exit_code_of(lambda: evaluate.main([name.format(run=undisturbed), "--platform=cpu"]))
    error = capsys.readouterr().err
    assert code == 2 and error.startswith("error: ") and error.count("\n") == 1 and complaint in error
