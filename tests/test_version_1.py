"""Files in the first formats stay readable: an export, a token store and a fine-tuned model.

`tests/data/version_1` was written when the formats were new, and `expected.npz` was computed by the code of that day.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax.data.store import TokenStore

VERSION_1 = Path(__file__).parent / "data" / "version_1"


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
