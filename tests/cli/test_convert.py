"""The command line of conversion: both directions, the next commands, and bad input."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax import analysis
from bertjax.cli import convert, evaluate
from bertjax.config import export
from bertjax.interop import weights
from bertjax.runtime import command_line, errors
from tests import runs
from tests.interop import models

ROOT = Path(__file__).parents[2]


@pytest.fixture
def encoder_alone(tmp_path) -> Path:
    """A checkpoint of BertModel."""
    export.write(tmp_path / "ours", models.make(models.PARTS["BertModel"], models.trained()))
    convert.run(tmp_path / "ours", tmp_path / "theirs")
    return tmp_path / "theirs"


def convert_and_read(capsys, source, target) -> tuple[int, str, str]:
    code = command_line.exit_code_of(lambda: convert.main([f"--from={source}", f"--to={target}"]))
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.parametrize("name", ["{run}", "{run}@100", "{run}/export"])
def test_a_run_is_converted_and_back(undisturbed, tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))  # token stores are in ~/.cache
    convert.run(name.format(run=undisturbed), tmp_path / "theirs")
    convert.run(tmp_path / "theirs", tmp_path / "ours")
    there, back = (folder / "model.safetensors" for folder in (undisturbed / "export", tmp_path / "ours"))
    assert there.read_bytes() == back.read_bytes()
    assert bertjax.load(tmp_path / "ours").tokenizer == bertjax.load(undisturbed).tokenizer
    summary = json.loads((undisturbed / "summary.json").read_text())
    corpus = json.loads((undisturbed / "config.json").read_text())["config"]["data"]["corpus"]
    assert evaluate.run(str(tmp_path / "ours"), corpus=corpus)["eval"].keys() == summary["eval"].keys()


def test_the_folder_has_a_model_card(undisturbed, tmp_path):
    convert.run(undisturbed / "export", tmp_path / "theirs")
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
    ]
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    rows = weights.read(tmp_path / "theirs")["bert.embeddings.word_embeddings.weight"].shape[0]
    assert config["architectures"] == ["BertForPreTraining"] and config["vocab_size"] == rows == 400
    card, summary = (tmp_path / "theirs" / "README.md").read_text(), (undisturbed / "summary.json").read_text()
    assert f"| eval/mlm_loss | {json.loads(summary)['eval']['mlm_loss']:.4g} |" in card
    assert str(undisturbed.parent) not in card and "corpus.txt" in card  # no folders of the machine
    assert "| layers | 2 |" in card and "100 steps of 8 x 32 tokens" in card
    for way in ("AutoModelForPreTraining", "FlaxAutoModelForPreTraining", "python -m bertjax convert"):
        assert way in card


def test_the_summary_names_the_next_command(undisturbed, encoder_alone, tmp_path, capsys):
    code, output, _ = convert_and_read(capsys, undisturbed, tmp_path / "hf")
    assert code == 0 and output.startswith("architecture BertForPreTraining, ")
    assert f"transformers  {tmp_path / 'hf'}\nnext          AutoModel.from_pretrained(" in output
    code, output, _ = convert_and_read(capsys, tmp_path / "hf", tmp_path / "back")
    assert code == 0 and output.startswith("parts: encoder, pooler, mlm, nsp\n")
    assert f"-m bertjax evaluate {tmp_path / 'back'} --corpus=embedded:en\n" in output
    with pytest.raises(errors.UserError, match="back does not name the data of its run; add --corpus=CORPUS$"):
        evaluate.run(str(tmp_path / "back"))
    with pytest.raises(errors.UserError, match="back does not name the data of its run; add --corpus=CORPUS, --lab"):
        analysis.run("layers", tmp_path / "back")
    code, output, _ = convert_and_read(capsys, encoder_alone, tmp_path / "alone")
    assert code == 0 and f"next          module, params, tokenizer = bertjax.load('{tmp_path / 'alone'}')\n" in output


def test_an_encoder_without_head_cannot_be_scored(encoder_alone, tmp_path):
    convert.run(encoder_alone, tmp_path / "alone")
    with pytest.raises(errors.UserError, match="has no head mlm to score; fine-tune it, or name a model with heads"):
        evaluate.run(str(tmp_path / "alone"), corpus="embedded:en")


@pytest.mark.slow
def test_without_a_pooler_hidden_states_and_predictions_are_there(tmp_path, monkeypatch):
    export.write(tmp_path / "ours", models.make(models.PARTS["BertForMaskedLM"], models.trained()))
    module, params, tokenizer = bertjax.load(tmp_path / "ours")
    encoded = module.apply({"params": params}, tokenizer.rows(["ab cd"], 8)[0])
    assert encoded.pooled_BND is None and np.isfinite(encoded.hidden).all()
    corpus = runs.write_corpus(tmp_path / "corpus.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert evaluate.run(str(tmp_path / "ours"), corpus=str(corpus))["eval"]["mlm_loss"] > 0


@pytest.mark.parametrize(
    "source, target, complaint",
    [
        ("{tmp}/nowhere", "{tmp}/new", "'{tmp}/nowhere' does not exist; name an export folder (bertjax convert"),
        ("{tmp}/empty", "{tmp}/new", "'{tmp}/empty' holds neither an export (bertjax.json) nor a run"),
        ("{tmp}/theirs", "{tmp}/theirs", "--to={tmp}/theirs exists and is not empty; name another,"),
        ("{tmp}/theirs", "{tmp}/theirs/config.json", "exists and is not empty"),
        ("{tmp}/damaged", "{tmp}/new", "{tmp}/damaged/config.json is not readable JSON ("),
        ("{tmp}/t5", "{tmp}/new", "config.json has model_type='t5'; bertjax converts bert, albert"),
    ],
)
def test_bad_input_is_reported_in_one_line(encoder_alone, tmp_path, capsys, source, target, complaint):
    (tmp_path / "empty").mkdir()
    for name, config in (("t5", '{"model_type": "t5"}'), ("damaged", '{"model_type": "be')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    code, output, error = convert_and_read(capsys, source.format(tmp=tmp_path), target.format(tmp=tmp_path))
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: ") and complaint.format(tmp=tmp_path) in error
    assert not (tmp_path / "new").exists()


def test_neither_pytorch_nor_transformers_nor_a_trainer_is_needed(encoder_alone, tmp_path):
    script = (
        "import sys\n"
        "from bertjax.cli import convert\n"
        "convert.run(sys.argv[1], sys.argv[2])\n"
        "print({'torch', 'transformers', 'grain', 'orbax', 'tensorflow'} & set(sys.modules))\n"
    )
    command = [sys.executable, "-c", script, str(encoder_alone), str(tmp_path / "again")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout == "set()\n", ended.stderr
