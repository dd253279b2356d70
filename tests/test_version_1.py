"""Files in the first formats stay readable: an export, a token store, a checkpoint and a fine-tuned model.

`tests/data/version_1` was written when the formats were new, and `expected.npz` was computed by the code of that day.
"""

import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import bertjax
from bertjax import config_file, train
from bertjax.data.store import TokenStore
from bertjax.models import dropout
from tests import runs

VERSION_1 = Path(__file__).parent / "data" / "version_1"
SETTINGS = (
    "data.corpus=corpus.txt",
    "data.store=stores",
    "stages.0.steps=6",
    "optimizer.warmup_steps=2",
    "model.width=16",
    "model.feedforward=32",
    "data.tokenizer.vocab_size=300",
    "eval.every=3",
    "runtime.save_every=3",
    "runtime.keep=1",
)


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy that may be written to, as the current folder."""
    shutil.copytree(VERSION_1, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    return tmp_path / "files"


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(VERSION_1 / "expected.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("folder, name", [("export", "export"), ("finetuned", "finetuned")])
def test_an_encoder_gives_the_same_states(folder, name, expected):
    module, params, tokenizer = bertjax.load(VERSION_1 / folder)
    tokens_BT = expected["tokens_BT"]
    encoded = jax.jit(module.apply)({"params": params}, tokens_BT, examples_BT=tokens_BT != tokenizer.pad_id)
    np.testing.assert_allclose(encoded.hidden, expected[f"{name}/hidden"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(encoded.pooled_BND, expected[f"{name}/pooled"], rtol=1e-5, atol=1e-5)


def test_a_fine_tuned_model_gives_the_same_predictions():
    record = json.loads((VERSION_1 / "predictions.json").read_text())
    predictions = bertjax.predictor(VERSION_1 / "finetuned").predict(record["texts"])
    assert [p["prediction"] for p in predictions] == [p["prediction"] for p in record["predictions"]]
    for now, then in zip(predictions, record["predictions"], strict=True):
        assert now["probabilities"] == pytest.approx(then["probabilities"], abs=2e-6)


def test_a_token_store_opens_with_the_same_fingerprint():
    (folder,) = (VERSION_1 / "stores").iterdir()
    store = TokenStore.open(folder)
    assert store.fingerprint == "3e449b5fbcdb0424fb320d4b8e76ce8ffac0db93cd80053f838baf4ff8bac470"


def dropout_of_version_1(x, rate, key, columns_BQ=None):
    """As it was drawn then: a byte of the row's random words for each element."""
    if key is None or rate == 0.0:
        return x
    rows, *middle, last = x.shape
    words = jax.vmap(lambda row_key: jax.random.bits(row_key, (*middle, -(-last // 4)), jnp.uint32))(key)
    decisions = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(rows, *middle, -1)[..., :last]
    kept = round((1.0 - rate) * 256)
    return jnp.where(decisions < kept, x * (256 / kept), 0.0).astype(x.dtype)


@pytest.fixture
def with_its_draws(monkeypatch):
    ours = dropout.dropout, dropout.attention_dropout
    for module in [module for name, module in sys.modules.items() if name.startswith("bertjax.")]:
        for name, value in list(vars(module).items()):
            if any(value is one for one in ours):
                monkeypatch.setattr(module, name, dropout_of_version_1)


@pytest.mark.slow
@pytest.mark.usefixtures("with_its_draws")
def test_a_stopped_run_resumes_and_ends_in_the_same_model(copied):
    """The store and its plans are found and not made again; the steps that follow are those of version 1."""
    files = {path: path.stat().st_mtime_ns for path in (copied / "stores").rglob("*") if path.is_file()}
    config = config_file.load(str(runs.CONFIG), list(SETTINGS))
    summary = train.run(config, "run")
    assert summary.finished and summary.step == 6
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert len([path for path in (copied / "stores").iterdir() if path.is_dir()]) == 1
    now, then = (flatten_dict(bertjax.load(name).params, sep="/") for name in ("run", VERSION_1 / "export"))
    assert now.keys() == then.keys()
    for path, leaf in then.items():
        rows = slice(300) if path == "embeddings/word" else ...  # the others pad the vocabulary
        np.testing.assert_allclose(now[path][rows], leaf[rows], rtol=1e-3, atol=1e-5, err_msg=path)
