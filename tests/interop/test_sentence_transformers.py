"""Embedders in the layout of sentence-transformers, and read by that library if it is installed."""

import json

import numpy as np
import pytest

from bertjax.inference.predictor import Predictor
from bertjax.interop import huggingface
from tests.interop import models

NORMALIZES = {"embedding_contrastive": True, "embedding_classification": False}
TEXTS = ["abd ace", "bbe", "abd aad bfe"]


def embedder(objective: str, kind: str = "bert"):
    export = models.make(frozenset({"mlm"}), models.trained(), kind) if kind == "distilbert" else None
    export = export or models.make(frozenset({"pooler"}), models.trained(), kind)
    export.params.pop("heads", None)
    export.settings["tasks"] = {"pairs": {"objective": {"kind": objective}, "examples": {"kind": "siamese_pairs"}}}
    return export


@pytest.mark.parametrize(
    "objective, normalizes", [("embedding_contrastive", True), ("embedding_classification", False)]
)
def test_the_modules_are_encoder_pooling_and_normalization(tmp_path, objective, normalizes):
    export = embedder(objective)
    export.params["heads"] = {"embedding": {"bias": np.ones(3, np.float32)}}
    notes = huggingface.write(tmp_path, export)
    assert notes[1] == "pooler and heads not exported: sentence embeddings do not read them"
    modules = json.loads((tmp_path / "modules.json").read_text())
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalizes else [])]
    assert [module["type"].rpartition(".")[2] for module in modules] == kinds
    pooling = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 16 and pooling["pooling_mode_mean_tokens"]
    assert sum(value is True for value in pooling.values()) == 1
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]


def test_another_pooling_is_noted(tmp_path):
    huggingface.write(tmp_path, embedder("embedding_contrastive"))
    assert not any("pools" in note for note in huggingface.read(tmp_path)[1])
    path = tmp_path / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    assert any("pools this model by cls_token, and bertjax" in note for note in huggingface.read(tmp_path)[1])


@pytest.mark.parametrize("kind", ["bert", "albert", "distilbert", "roberta"])
@pytest.mark.parametrize(
    "objective, normalizes", [("embedding_contrastive", True), ("embedding_classification", False)]
)
def test_the_library_embeds_as_bertjax_does(tmp_path, kind, objective, normalizes):
    library = pytest.importorskip("sentence_transformers", reason="needs the extra [interop]")
    export = embedder(objective, kind)
    huggingface.write(tmp_path, export)
    expected = Predictor(export).embed(TEXTS, normalize=normalizes)
    actual = library.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
