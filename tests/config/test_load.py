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
from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.opening import split_name
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import UserError
from bertjax.training.run.record import read_checkpoint
from tests import batches

ROOT = Path(__file__).parents[2]


def test_run_checkpoint_and_export_hold_the_same_encoder(undisturbed):
    models = [bertjax.load(f"{undisturbed}{suffix}") for suffix in ("/export", "", "@100")]
    for model in models[1:]:
        assert model.module == models[0].module
        assert model.tokenizer.fingerprint == models[0].tokenizer.fingerprint
        vocab_size = model.tokenizer.vocab_size
        for (path, leaf), (_, other) in zip(_leaves(models[0].params), _leaves(model.params), strict=True):
            real = slice(vocab_size) if "word" in path else slice(None)
            assert np.array_equal(leaf[real], other[real]), path


def _leaves(params):
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]]


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


def test_a_jitted_function_may_close_over_the_loaded_params(undisturbed):
    module, params, tokenizer = bertjax.load(undisturbed / "export")
    tokens_BT, _ = tokenizer.rows(["Bad cafe faced a [MASK]."], seq_len=16)

    def closes(tokens_BT):
        return module.apply({"params": params}, tokens_BT).hidden

    def takes(params, tokens_BT):
        return module.apply({"params": params}, tokens_BT).hidden

    np.testing.assert_allclose(jax.jit(closes)(tokens_BT), jax.jit(takes)(params, tokens_BT), rtol=1e-5, atol=1e-5)


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


def test_the_example_of_taps_prints_what_the_page_shows(store, tmp_path, monkeypatch, capsys):
    encoder = dataclasses.replace(PRESETS["tiny"], vocab_size=store.tokenizer.vocab_size)
    params = batches.filled(batches.param_shapes(BERT(), encoder), scale=0.02)
    settings = to_dict(from_dict({"model": {"preset": "tiny"}}))
    export.write(tmp_path / "runs/tiny/export", export.Export(settings, encoder, params, store.tokenizer, {}))
    page = (ROOT / "docs/concepts/taps.md").read_text()
    [(code, expected)] = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("suffix, complaint", [("/nowhere", "does not exist"), ("@7", "has no checkpoint 7")])
def test_a_missing_model_is_reported(undisturbed, suffix, complaint):
    with pytest.raises(UserError, match=complaint):
        bertjax.load(f"{undisturbed}{suffix}")


@pytest.mark.parametrize(
    "name, path, step",
    [
        ("runs/tiny", "runs/tiny", ""),
        ("runs/tiny@20", "runs/tiny", "20"),
        ("/home/me@host/run", "/home/me@host/run", ""),
    ],
)
def test_a_step_follows_the_last_at_sign(name, path, step):
    assert split_name(name) == (path, step)
