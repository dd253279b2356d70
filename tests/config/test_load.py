"""`bertjax.load`: the pretrained encoder of an export, a run or a checkpoint, and the training loops of the pages."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax.cli import convert
from bertjax.config import export, private_paths
from bertjax.config.opening import SavedModel
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training.run.record import read_checkpoint

ROOT = Path(__file__).parents[2]


def test_the_loaded_encoder_computes_what_the_trained_one_does(undisturbed):
    module, params, tokenizer = bertjax.load(undisturbed / "export")
    [ids] = tokenizer.encode(["Bad cafe faced a deed."])
    tokens_BT = np.array([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
    loaded = module.apply({"params": params}, tokens_BT)

    run = read_checkpoint(undisturbed, "100")
    trained = (
        BERT()
        .model(run.encoder)
        .apply({"params": run.params}, tokens_BT, method=lambda root, tokens: root.encoder(tokens))
    )
    assert np.array_equal(loaded.hidden, trained.hidden)
    assert np.array_equal(loaded.pooled_BND, trained.pooled_BND)


@pytest.mark.parametrize(
    "preset", ["tiny", "fixed_tiny", "albert_base", "roberta_base", "xlnet_base", "modernbert_base"]
)
def test_no_architecture_needs_params_on_a_device(preset):
    config = dataclasses.replace(PRESETS[preset], vocab_size=100, layers=3, width=16, heads=8, feedforward=32)
    module, tokens_BT = Encoder(config), np.zeros((2, 8), np.int32)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), tokens_BT)["params"])
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    hidden = jax.eval_shape(lambda tokens_BT: module.apply({"params": params}, tokens_BT).hidden, tokens_BT)
    assert hidden.shape == (2, 8, 16)


@pytest.mark.slow
def test_the_loop_of_the_page_runs(undisturbed, tmp_path):
    section = (ROOT / "docs/guides/predict.md").read_text().split("## A loop of your own", 1)[1].split("\n## ")[0]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    [export] = re.findall(r"bertjax\.load\(\"(.*?)\"\)", block)
    (tmp_path / export).parent.mkdir(parents=True)
    (tmp_path / export).symlink_to(undisturbed / "export")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.removeprefix("loss ")) < np.log(2), "no better than guessing between the two classes"


@pytest.mark.parametrize("kind", ["distilled", "replacing", "mylab:Wrapper"])
@pytest.mark.parametrize("examples", [{"kind": "labeled_text", "unlabeled": "more.txt"}, {}, None, 3, ["a"]])
def test_every_wrapper_is_removed_with_its_teacher(kind, examples):
    """Malformed examples are kept: building the configuration reports them."""
    student = {"kind": "mlm", "masking": {"kind": "phrases", "lexicon": "a.txt"}}
    objective = {"kind": kind, "objective": student, "teacher": "t", "own": 1}
    task = {"objective": {"kind": kind, "objective": objective}, "weight": 2.0}
    kept = {"kind": "labeled_text"} if isinstance(examples, dict) and examples else examples
    settings = {"tasks": {"good": task | {"examples": examples}, "bad": 3}}
    expected = {"good": {"objective": student, "weight": 2.0, "examples": kept}, "bad": 3}
    assert private_paths.without_teachers(settings) == {"tasks": expected}
    read = private_paths.read_from_export(settings)["tasks"]["good"]
    assert read["objective"] == {"kind": "mlm", "masking": {"kind": "phrases"}} and read["examples"] == kept
    assert private_paths.without_teachers({"tasks": {"good": task}})["tasks"]["good"].keys() == {"objective", "weight"}


def test_an_export_and_its_card_hold_no_path(undisturbed, tmp_path):
    secret = Path(SavedModel(undisturbed).settings["data"]["corpus"])
    files = [path for path in (undisturbed / "export").rglob("*") if path.is_file()]
    assert {"bertjax.json", "README.md"} <= {path.name for path in files}
    assert [path for path in files if str(secret.parent).encode() in path.read_bytes()] == []
    model = SavedModel(undisturbed).export  # a checkpoint has the paths
    assert model.settings["data"]["corpus"] == str(secret)
    model.settings["data"]["corpus"] = "gs://acme-secret-project/customer-mails/mails.txt"
    export.write(tmp_path / "export", model)
    assert "acme" not in (tmp_path / "export" / "bertjax.json").read_text()
    convert.run(tmp_path / "export", tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "`mails.txt`" in card and "acme" not in card
