"""python -m bertjax probe as a user types it."""

import json
import shutil

import pytest
from etils import epath

from bertjax.analysis.probing import findings
from bertjax.analysis.subject import Subject, expand
from bertjax.cli import compare, probe
from bertjax.comparison.resampling import LEAST_EXAMPLES
from bertjax.config.opening import SavedModel
from bertjax.inference import minimal_pairs
from bertjax.runtime.errors import UserError
from bertjax.training.results.scores import read_probes, write_probe
from tests.analysis.probing import test_tasks
from tests.analysis.probing.test_tasks import SENTENCES, conllu
from tests.comparison.workdirs import STEPS, record, write


@pytest.fixture
def treebank(tmp_path) -> str:
    (tmp_path / "a.conllu").write_text(conllu(SENTENCES * 3))
    return str(tmp_path / "a.conllu")


@pytest.mark.slow
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
    path = test_tasks.write(tmp_path / "senses.tsv", rows)
    assert probe.main([str(models["pretrained"]), f"--labeled={path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["layer", "senses"]
    assert lines[-1] == "most frequent sense: 0.5000"
    assert float(lines[-2].split()[1]) == 1  # the same sentence
    for flag in ("--heldout=dev.tsv", "--pooling=mean", "--examples=3"):
        with pytest.raises(UserError, match=f"{flag.partition('=')[0]} has no effect on {path}, which has word senses"):
            probe.main([str(models["pretrained"]), f"--labeled={path}", flag])


def test_minimal_pairs_of_two_runs_are_kept_and_compared(models, tmp_path, capsys):
    """Seeds of two runs with one model: no difference, over the same pairs."""
    good, bad = ["The king sleeps.", "It was a king."], ["King the sleeps.", "Was king a it."]
    lines = [{"sentence_good": g, "sentence_bad": b, "field": "syntax"} for g, b in zip(good * 10, bad * 10)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(lines) == LEAST_EXAMPLES
    for name in ("a", "b"):
        for seed in range(2):
            root = write(tmp_path / f"{name}/seed={seed}", [record(STEPS, 4.0, 3.0)], {"seed": seed}, baseline={})
            shutil.copytree(models["pretrained"], root / "export")
    assert expand(str(tmp_path / "a")) == [f"{tmp_path}/a/seed=0", f"{tmp_path}/a/seed=1"]
    subjects = [
        Subject(f"{name}{seed}", SavedModel(tmp_path / f"{name}/seed={seed}/export").export)
        for name in "ab"
        for seed in range(2)
    ]
    found = minimal_pairs.read(str(tmp_path / "pairs.jsonl"))
    for subject in subjects:
        scores = probe.pair_scores(found, minimal_pairs.judge(subject.export, found))
        write_probe(epath.Path(tmp_path / subject.label[0] / f"seed={subject.label[1]}"), "pairs", scores)
    comparison = compare.run([str(tmp_path / "a"), str(tmp_path / "b")], out=tmp_path / "a.png")
    effect = comparison.effects[0]["pairs/syntax/accuracy"]
    assert (effect.value, effect.paired, effect.seeds, effect.task_changes) == (0.0, True, (2, 2), ())
    assert effect.p is None, "seeds that are copies do not vary"
    assert comparison.numbers[0].probes["pairs/accuracy"].values[0] in (0.0, 0.25, 0.5, 0.75, 1.0)


def test_a_workdir_keeps_the_accuracies_by_layer(models, tmp_path, capsys):
    root = write(tmp_path / "run", [record(STEPS, 4.0, 3.0)], baseline={})
    shutil.copytree(models["pretrained"], root / "export")
    subject = Subject("run", SavedModel(root / "export").export, saved=SavedModel(root))
    numbers = {"run": {"train.tsv": {"probe": {"accuracy": [0.5, 0.75], "majority": 0.5}}}}
    probe._keep([subject], numbers, {"train.tsv": "train-012345"})
    assert capsys.readouterr().out == f"kept in {root}/probes/train-012345.npz\n"
    assert {name: float(scores.sums[0, 0]) for name, scores in read_probes(epath.Path(root)).items()} == {
        "train-012345/layer_0/accuracy": 0.5,
        "train-012345/layer_1/accuracy": 0.75,
        "train-012345/majority": 0.5,
    }


def test_minimal_pairs_are_printed_for_each_model(models, tmp_path, capsys):
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"sentence_good": "A king.", "sentence_bad": "King a."}) + "\n")
    assert probe.main([str(models["pretrained"]), f"--minimal-pairs={tmp_path / 'pairs.jsonl'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "pretrained" and lines[1].split() == ["accuracy", "95%", "interval", "ties", "pairs"]
    assert lines[2].split()[0] == "all" and lines[2].split()[-1] == "1"


def test_all_models_are_checked_before_the_first_one_judges_a_pair(models, tmp_path, capsys):
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"sentence_good": "A king.", "sentence_bad": "King a."}) + "\n")
    both = [str(models["pretrained"]), str(models["finetuned"])]
    with pytest.raises(UserError, match="^finetuned has neither a masked-LM head nor a causal one, .* leave it out$"):
        probe.main([*both, f"--minimal-pairs={tmp_path / 'pairs.jsonl'}"])
    assert "pairs" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--labeled=none.conllu"], "is not a file"),
        (["--labeled={labeled}", "--tag=upos"], "has no effect"),
        (["--labeled={treebank}", "--tag=nonsense"], "is not a tag of CoNLL-U"),
        ([], "name what to probe: --labeled=FILE, or --minimal-pairs=PATH"),
        (["--minimal-pairs=x.jsonl", "--tag=upos"], "--tag has no effect with --minimal-pairs"),
        (["--minimal-pairs=x.jsonl"], "x.jsonl cannot be read"),
        (["--labeled={treebank}", "--rank=0"], "must be a whole number, at least 1"),
        (["--labeled={treebank}", "--labeled={labeled}", "--heldout=x"], "of one labeled file only"),
        (["--labeled={treebank}", "--heldout=none.conllu"], "none.conllu"),
    ],
)
def test_bad_input_is_one_line(models, treebank, monkeypatch, flags, message):
    flags = [flag.format(labeled=models["labeled"], treebank=treebank) for flag in flags]
    monkeypatch.setattr(findings, "on_texts", lambda *_: pytest.fail("the model has run"))
    with pytest.raises(UserError, match=message) as error:
        probe.main([str(models["pretrained"]), *flags])
    assert "\n" not in str(error.value)
