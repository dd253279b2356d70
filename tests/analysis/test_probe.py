"""python -m bertjax.probe as a user types it."""

import json

import pytest

from bertjax import probe
from bertjax.errors import UserError
from tests.analysis.probing import test_senses
from tests.analysis.probing.test_tasks import SENTENCES, conllu


@pytest.fixture
def treebank(tmp_path) -> str:
    (tmp_path / "a.conllu").write_text(conllu(SENTENCES * 3))
    return str(tmp_path / "a.conllu")


def test_the_table_and_the_folder_have_the_same_numbers(models, treebank, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = [str(models["pretrained"]), f"--labeled={treebank}", "--rank=8", f"--out={out}"]
    assert probe.main(arguments) == 0
    printed = capsys.readouterr().out
    found = json.loads((out / "analysis.json").read_text())["parts"]["layers"]["pretrained"]["a.conllu"]
    lines = printed.splitlines()
    assert lines[0] == "pretrained, a.conllu"
    assert lines[1].split() == "layer accuracy random control code random UUAS random Spearman self-sim.".split()
    for layer, line in enumerate(lines[2:6]):
        cells = line.split()
        assert cells[0] == str(layer)
        assert float(cells[1]) == pytest.approx(found["probe"]["accuracy"][layer], abs=1e-4)
        assert float(cells[6]) == pytest.approx(found["trees"]["uuas"][layer], abs=1e-4)
    assert f"majority class: {found['probe']['majority']:.4f}" in lines[6]
    assert (out / "report.html").exists() and (out / "figures" / "layers-uuas.svg").exists()


def test_word_senses(models, tmp_path, capsys):
    rows = [("bank", sense, f"The bank is a {sense}.") for sense in ("river", "house")] * 2
    path = test_senses.write(tmp_path / "senses.tsv", rows)
    assert probe.main([str(models["pretrained"]), f"--labeled={path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["layer", "senses"]
    assert lines[-1] == "most frequent sense: 0.5000"
    assert float(lines[-2].split()[1]) == 1  # the same sentence


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--labeled=none.conllu"], "is not a file"),
        (["--labeled={labeled}", "--tag=upos"], "has no effect"),
        (["--labeled={treebank}", "--tag=nonsense"], "is not a tag of CoNLL-U"),
        (["--labeled={treebank}", "--rank=0"], "must be at least 1"),
        (["--labeled={treebank}", "--labeled={labeled}", "--heldout=x"], "one labeled file"),
        (["--labeled={treebank}", "--heldout=none.conllu"], "none.conllu"),
    ],
)
def test_bad_input_is_one_line(models, treebank, flags, message):
    flags = [flag.format(labeled=models["labeled"], treebank=treebank) for flag in flags]
    with pytest.raises(UserError, match=message) as error:
        probe.main([str(models["pretrained"]), *flags])
    assert "\n" not in str(error.value)
