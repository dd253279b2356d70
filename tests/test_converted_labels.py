"""A published classifier has its labels in an order, a spelling and columns of its own: it is scored and trained so."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.cli import convert, evaluate
from bertjax.runtime import command_line
from bertjax.training.results import rescore
from tests import labeled_files, runs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_programs")]

CONFIG = """
def get_config():
    return {
        "model": {"preset": "init_from"},
        "tasks": {"color": {"objective": {"kind": "classification"}, "examples": {"kind": "labeled_text"}}},
        "optimizer": {"learning_rate": 3e-3, "warmup_share": 0.1},
        "stages": [{"epochs": 4.0, "seq_len": 32, "examples": 16}],
        "eval": {"every": 0, "rows": 0, "samples": 0},
    }
"""
LABELS = ("blue", "green", "red")
# The order of the labels in the published model.
ORDER = [1, 2, 0]


def write(path, texts, label="label", text="sentence", **other):
    path.write_text("".join(json.dumps({text: t, label: name} | other) + "\n" for t, name in texts))
    return path


def texts_of(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences and their labels, which the last word decides; the classes are not equally frequent."""
    draw = np.random.default_rng(seed)
    clues = dict(zip(LABELS, ("good", "jade", "ice")))
    chosen = draw.choice(LABELS, count, p=(0.5, 0.2, 0.3))
    return [(" ".join([*draw.choice(labeled_files.WORDS, 3), clues[name]]), str(name)) for name in chosen]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colors")
    (folder / "color.py").write_text(CONFIG)
    write(folder / "train.jsonl", texts_of(160, 0))
    write(folder / "dev.jsonl", texts_of(60, 1))
    return folder


def train(files, source, workdir, *more, train="train.jsonl", dev="dev.jsonl") -> dict:
    examples = "--config.tasks.color.examples"
    flags = [f"--config={files / 'color.py'}", f"--config.init_from={source}", f"--workdir={workdir}"]
    assert runs.call(*flags, f"{examples}.train={files / train}", f"{examples}.heldout={files / dev}", *more) == 0
    return json.loads((workdir / "summary.json").read_text())


@pytest.fixture(scope="module")
def published(undisturbed, files):
    """The accuracy of a classifier, and the same model converted from another order of its labels."""
    figures = train(files, undisturbed / "export", files / "run")
    theirs = files / "theirs"
    convert.run(files / "run" / "export", theirs)
    config = json.loads((theirs / "config.json").read_text())
    config["id2label"] = {str(number): LABELS[old] for number, old in enumerate(ORDER)}
    config["label2id"] = {name: int(number) for number, name in config["id2label"].items()}
    (theirs / "config.json").write_text(json.dumps(config))
    tensors = load_file(theirs / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = np.ascontiguousarray(tensors[name][ORDER])
    save_file(tensors, theirs / "model.safetensors", {"format": "pt"})
    convert.run(theirs, files / "published")
    return figures["eval"]["accuracy"], files / "published"


KEPT = ["--config.stages.0.steps=1", "--config.optimizer.learning_rate=1e-12"]


def test_its_head_is_put_into_the_order_of_the_file(files, published, tmp_path, caplog):
    accuracy, model = published
    figures = train(files, model, tmp_path / "run", *KEPT)
    assert accuracy > 0.6 and figures["eval"]["accuracy"] == pytest.approx(accuracy)
    line = "has the classes of heads/classification as green, red, blue: its outputs are put into the order of the run"
    assert line in caplog.text


def test_its_head_is_new_for_other_labels(files, published, tmp_path, caplog):
    _, model = published
    for split in ("train", "dev"):
        text = (files / f"{split}.jsonl").read_text()
        (files / f"{split}_other.jsonl").write_text(text.replace('"red"', '"rot"'))
    train(files, model, tmp_path / "run", *KEPT, train="train_other.jsonl", dev="dev_other.jsonl")
    line = "has the classes green, red, blue in heads/classification and the run has blue, green, rot: it starts with a"
    assert line in caplog.text
    assert "lacks heads/classification/bias, heads/classification/kernel: initialized from scratch" in caplog.text


def test_it_is_scored_on_a_labeled_file(files, published, capsys):
    accuracy, model = published
    figures = rescore.run(str(model), str(files / "dev.jsonl"))
    assert figures["eval"]["accuracy"] == pytest.approx(accuracy)
    names = [json.loads(line)["label"] for line in (files / "dev.jsonl").read_text().splitlines()]
    assert figures["baseline"]["majority_accuracy"] == pytest.approx(names.count("blue") / len(names))
    assert "the training file of an export is not there: the baselines are those of" in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", [{"blue": "BLUE ", "green": "Green", "red": "red"}, {"blue": "blue", "green": "green", "red": ""}]
)
def test_columns_and_spellings_of_a_file(files, published, tmp_path, capsys, names):
    accuracy, model = published
    file = write(tmp_path / "a.jsonl", [(t, names[n]) for t, n in texts_of(60, 1)], "gold", "premise", hypothesis="bad")
    figures = rescore.run(str(model), str(file), columns={"text": "premise", "label": "gold"})
    output = capsys.readouterr().err
    if names["red"]:
        assert figures["eval"]["accuracy"] == pytest.approx(accuracy)
        assert "labels are taken for the classes of the model: BLUE as blue, Green as green" in output
    else:
        assert "records skipped: no label in 'gold'" in output
    pairs = rescore.run(str(model), str(file), columns={"text": "premise", "pair": "hypothesis", "label": "gold"})
    assert pairs["eval"]["classification_loss"] != figures["eval"]["classification_loss"], "the second text is read"


def test_the_flags_of_the_command(files, published, tmp_path, capsys):
    accuracy, model = published
    file = write(tmp_path / "a.jsonl", texts_of(60, 1), "gold", "premise")
    flags = ["--text=premise", "--label=gold", "--json", "--platform=cpu"]
    assert command_line.exit_code_of(lambda: evaluate.main([str(model), f"--corpus={file}", *flags])) == 0
    assert json.loads(capsys.readouterr().out)["eval"]["accuracy"] == pytest.approx(accuracy)
