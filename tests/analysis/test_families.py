"""`analyze` and `probe` on families whose recipe needs a teacher, and on ELECTRA: models of random values.

tests/test_recipes.py has the same, `report` and `compare` for the runs of the other recipes.
"""

import json
from pathlib import Path

import pytest

from bertjax.cli import analyze, probe
from bertjax.config import export
from bertjax.config.config import to_dict
from bertjax.config.config_file import load
from bertjax.runtime import command_line
from tests.analysis.conftest import make
from tests.interop import models as published

pytestmark = pytest.mark.slow

ELECTRA = Path(__file__).parents[2] / "configs" / "electra_small.py"
SMALL = {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "dropout": 0.0, "attention_dropout": 0.0}
LSTM = {"block": {"kind": "lstm"}, "layers": 2, "width": 16, "embeddings": {"positions": "none", "segments": 0}}
MLM = {"mlm": {"objective": {"kind": "mlm"}, "examples": {"kind": "full_sentences"}}}


def analyzed(model, folder: Path, texts: list[str], *flags: str) -> dict:
    """Return the numbers of an analysis."""
    export.write(folder / "model", model)
    flags = [str(folder / "model"), *(f"--texts={text}" for text in texts), f"--out={folder / 'report'}", *flags]
    assert command_line.exit_code_of(lambda: analyze.main(["--platform=cpu", *flags])) == 0
    return json.loads((folder / "report" / "analysis.json").read_text())


def test_electra_has_targets_without_gradients(tokens, sentences, tmp_path):
    settings = to_dict(load(f"{ELECTRA}:smoke"))
    model = make(settings | {"model": settings["model"] | SMALL}, tokens)
    numbers = analyzed(model, tmp_path, sentences[:3], "--parts=targets")["parts"]["targets"]["model"]["texts"]
    assert numbers["without_gradient"].startswith("has a loss on texts in which its generator has replaced tokens")
    assert "gradient_by_layer" not in numbers and 0 < numbers["target"]["[SEP]"] < 1
    assert (
        "It has no gradients: the model has a loss on texts in which"
        in (tmp_path / "report" / "report.html").read_text()
    )


@pytest.mark.parametrize("family", ["distilbert", "mobilebert", "lstm"])
def test_a_family_is_analyzed_and_probed(family, tokens, sentences, tmp_path):
    if family == "lstm":
        model = make({"model": LSTM, "tasks": MLM, "stages": [{"seq_len": 64}]}, tokens)
    else:
        model = published.make(frozenset({"mlm"}), tokens, family)
    texts = [text for text in sentences if len(tokens.encode([text])[0]) <= 16][:3]
    numbers = analyzed(model, tmp_path, texts)
    assert not numbers["failed"] and "layers" in numbers["parts"]
    assert family == "lstm" or len(numbers["parts"]) == 8
    lines = [f"{text}\t{number % 2}" for number, text in enumerate(texts * 4)]
    (tmp_path / "toy.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    assert (
        command_line.exit_code_of(lambda: probe.main([str(tmp_path / "model"), f"--labeled={tmp_path / 'toy.tsv'}"]))
        == 0
    )
