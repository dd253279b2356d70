"""Scoring: a run, its checkpoint and its export give the figures of the run."""

import json
import re
import shutil

import pytest

from bertjax.config.opening import SavedModel
from bertjax.data import sources
from bertjax.data.preparation import spec
from bertjax.data.store import TokenStore
from bertjax.runtime.errors import UserError
from bertjax.training.results import rescore
from tests import runs


@pytest.mark.parametrize("name", ["run", "run@100", "run/export"])
def test_the_figures_are_those_of_the_run(undisturbed, name):
    is_export = name.endswith("export")
    figures = runs.score_export(undisturbed) if is_export else rescore.run(f"{undisturbed.parent}/{name}")
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert figures["eval"] == pytest.approx(summary["eval"], rel=1e-6)
    assert figures["baseline"] == pytest.approx(summary["baseline"], rel=1e-6)


def test_a_model_answers_the_question_of_another_run(undisturbed, tmp_path, monkeypatch):
    """The same weights as those of an export that asks more, and of a run, which is named as whose question it is."""
    other = shutil.copytree(undisturbed / "export", tmp_path / "other")
    manifest = json.loads((other / "bertjax.json").read_text())
    manifest["config"]["tasks"]["bert"]["objective"]["masking"]["rate"] = 0.4
    (other / "bertjax.json").write_text(json.dumps(manifest))
    figures = rescore.run(str(other), asked_by=str(undisturbed))
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert figures["eval"] == pytest.approx(summary["eval"], rel=1e-6)
    manifest["config"]["tasks"]["bert"]["objective"]["masking"] |= {"kind": "phrases", "lexicon": "mine.txt"}
    manifest["config"]["stages"][-1]["seq_len"] = manifest["config"]["model"]["max_positions"] = 64
    (other / "bertjax.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(SavedModel, "check_data", lambda *_: None)
    with pytest.raises(UserError, match="cannot answer --as=.*: stages.0.seq_len=64 exceeds model.max_positions=32"):
        rescore.run(str(undisturbed / "export"), asked_by=str(other))


@pytest.mark.slow
def test_another_corpus_is_read_with_the_model_s_own_tokenizer(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # token stores are in ~/.cache
    corpus = tmp_path / "other.txt"
    corpus.write_text("\n\n".join(f"Jed gaf {i} had. Bed cab {i} fed. Ice age {i} did." for i in range(80)))
    figures = rescore.run(str(undisturbed / "export"), corpus=str(corpus))
    scored = figures["scored"]["bert"]
    assert scored["documents"] == 80 and scored["rows"] == scored["of_rows"], "the whole file"
    assert figures["eval"]["mlm_loss"] > 0 and figures["eval"].keys() == rescore.run(str(undisturbed))["eval"].keys()


@pytest.mark.slow
def test_documents_that_were_trained_on_are_counted(undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    data = SavedModel(undisturbed).config.data
    texts = [document.text for document in sources.documents(data.corpus, data.text_field)]
    corpus = tmp_path / "some.txt"
    corpus.write_text("\n\n".join([*texts, "Jed gaf had. Bed cab fed."]))
    scored = rescore.run(str(undisturbed), corpus=str(corpus))["scored"]["bert"]["documents"]
    found = re.search(r"warning: (\d+) of (\d+) documents were trained on", capsys.readouterr().err)
    store = spec.find(
        data, json.loads((undisturbed / "config.json").read_text())["identity"]["data"]["store_fingerprint"]
    )
    trained = TokenStore.open(store).manifest["splits"]["train"]["documents"]
    assert int(found[1]) == trained < scored == int(found[2])
