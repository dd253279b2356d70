"""The command line of conversion: both directions, the next commands, and bad input."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax import analysis
from bertjax.cli import convert
from bertjax.config import export
from bertjax.runtime import command_line, errors
from bertjax.training.results import rescore
from tests import runs
from tests.interop import models


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


@pytest.mark.parametrize("name", ["{run}", pytest.param("{run}@100", marks=pytest.mark.slow), "{run}/export"])
def test_a_run_is_converted_and_back(undisturbed, tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))  # token stores are in ~/.cache
    convert.run(name.format(run=undisturbed), tmp_path / "theirs")
    convert.run(tmp_path / "theirs", tmp_path / "ours")
    there, back = (folder / "model.safetensors" for folder in (undisturbed / "export", tmp_path / "ours"))
    assert there.read_bytes() == back.read_bytes()
    assert bertjax.load(tmp_path / "ours").tokenizer == bertjax.load(undisturbed).tokenizer
    summary = json.loads((undisturbed / "summary.json").read_text())
    corpus = json.loads((undisturbed / "config.json").read_text())["config"]["data"]["corpus"]
    assert rescore.run(str(tmp_path / "ours"), corpus=corpus)["eval"].keys() == summary["eval"].keys()


def test_the_summary_names_the_next_command(undisturbed, encoder_alone, tmp_path, capsys):
    code, output, _ = convert_and_read(capsys, undisturbed, tmp_path / "hf")
    assert code == 0 and output.startswith("architecture BertForPreTraining, ")
    assert f"transformers  {tmp_path / 'hf'}\nnext          {tmp_path / 'hf' / 'README.md'} has the code" in output
    code, output, _ = convert_and_read(capsys, tmp_path / "hf", tmp_path / "back")
    assert code == 0 and output.startswith("parts: encoder, pooler, mlm, nsp\n")
    assert f"-m bertjax evaluate {tmp_path / 'back'} --corpus=embedded:en\n" in output
    with pytest.raises(
        errors.UserError, match="back is an export, which opens no data but .*; add --corpus=CORPUS, or"
    ):
        rescore.run(str(tmp_path / "back"))
    with pytest.raises(
        errors.UserError, match="back is an export, which opens no data but .*; add --corpus=CORPUS, --lab"
    ):
        analysis.run("layers", tmp_path / "back")
    code, output, _ = convert_and_read(capsys, encoder_alone, tmp_path / "alone")
    assert code == 0 and f"next          module, params, tokenizer = bertjax.load('{tmp_path / 'alone'}')\n" in output


@pytest.mark.slow
def test_without_a_pooler_hidden_states_and_predictions_are_there(tmp_path, monkeypatch):
    export.write(tmp_path / "ours", models.make(models.PARTS["BertForMaskedLM"], models.trained()))
    module, params, tokenizer = bertjax.load(tmp_path / "ours")
    encoded = module.apply({"params": params}, tokenizer.rows(["ab cd"], 8)[0])
    assert encoded.pooled_BND is None and np.isfinite(encoded.hidden).all()
    corpus = runs.write_corpus(tmp_path / "corpus.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rescore.run(str(tmp_path / "ours"), corpus=str(corpus))["eval"]["mlm_loss"] > 0
