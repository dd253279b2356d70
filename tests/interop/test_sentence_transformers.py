"""Embedders in the layout of sentence-transformers, and read by that library if it is installed."""

import json
import re

import numpy as np
import pytest

from bertjax.cli import predict
from bertjax.config import export as exports
from bertjax.inference.predictor import Predictor
from bertjax.interop import huggingface, onnx
from bertjax.runtime.errors import UserError
from tests.interop import models
from tests.serving import files

TEXTS = ["abd ace", "bbe", "abd aad bfe"]


def embedder(objective: str, kind: str = "bert"):
    export = models.make(frozenset({"mlm"}), models.trained(), kind) if kind == "distilbert" else None
    export = export or models.make(frozenset({"pooler"}), models.trained(), kind)
    export.params.pop("heads", None)
    export.settings["tasks"] = {"pairs": {"objective": {"kind": objective}, "examples": {"kind": "siamese_pairs"}}}
    return export


@pytest.mark.parametrize(
    "pooling, named",
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "'cls', 'mean'"),
        ({"pooling_mode": "mean"}, ""),
        ({"pooling_mode": ["mean", "max"]}, "'mean', 'max'"),
    ],
)
def test_another_pooling_is_noted(tmp_path, pooling, named):
    """Of every version of the library: flags up to 5, a name or several since 6."""
    huggingface.write(tmp_path, embedder("embedding_contrastive"))
    assert not any("pools" in note for note in huggingface.read(tmp_path)[1])
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    notes = [note for note in huggingface.read(tmp_path)[1] if "pools" in note]
    assert len(notes) == bool(named) and all(f"pools this model by {named}, and bertjax" in note for note in notes)
    assert huggingface.read(tmp_path)[0].unit_embeddings == (not named), "no length 1 for vectors of another kind"


def changed(folder, name, **settings):
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | settings))


def with_module(folder, kind: str, package: str = "sentence_transformers.models", place: int = 9):
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(place, {"name": kind, "path": f"2_{kind}", "type": f"{package}.{kind}"})
    modules = [module | {"idx": number} for number, module in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(modules))


PROMPTS = {"prompts": {"q": "query: "}, "default_prompt_name": "q"}


@pytest.mark.parametrize(
    "change, options, complaint",
    [
        (with_module, {"kind": "Dense"}, "the module '2_Dense' \\('Dense'\\)"),
        (with_module, {"kind": "Dropout", "package": "mine"}, "code of its own \\('mine.Dropout'\\)"),
        (with_module, {"kind": "Normalize", "place": 1}, "the modules Normalize and Pooling and Normalize in this"),
        (changed, {"name": "config_sentence_transformers.json", **PROMPTS}, "the prompt 'query: ' before each text"),
        (changed, {"name": "1_Pooling/config.json", "include_prompt": False}, "include_prompt=False of its pooling"),
        (changed, {"name": "sentence_bert_config.json", "query_expansion": True}, "query_expansion=True of sentence_"),
    ],
    ids=["dense", "code", "order", "prompt", "include_prompt", "query_expansion"],
)
def test_what_embed_does_not_compute_is_refused_or_noted(tmp_path, change, options, complaint):
    huggingface.write(tmp_path, embedder("embedding_contrastive"))
    change(tmp_path, **options)
    with pytest.raises(UserError, match=f"embeds with {complaint}.*; add --encoder-only"):
        huggingface.read(tmp_path)
    _, notes = huggingface.read(tmp_path, encoder_only=True)
    assert any(note.startswith("not converted: ") for note in notes)


def test_a_normalization_is_noted_and_a_missing_pooling_is_an_error(tmp_path):
    huggingface.write(tmp_path / "scaled", embedder("embedding_contrastive"))
    huggingface.write(tmp_path / "plain", embedder("embedding_classification"))
    note = "embeddings are scaled to length 1, as in sentence-transformers"
    assert note in huggingface.read(tmp_path / "scaled")[1] and note not in huggingface.read(tmp_path / "plain")[1]
    (tmp_path / "plain" / "1_Pooling" / "config.json").unlink()
    with pytest.raises(UserError, match="1_Pooling/config.json, which sets how embeddings are pooled, does not exist"):
        huggingface.read(tmp_path / "plain")
    assert huggingface.read(tmp_path / "plain", encoder_only=True)


def test_harmless_modules_and_prompts_of_every_version(tmp_path):
    huggingface.write(tmp_path, embedder("embedding_contrastive"))
    expected = huggingface.read(tmp_path)[1]
    with_module(tmp_path, "Dropout")
    prompts = {"prompts": {"query": "", "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    changed(tmp_path, "config_sentence_transformers.json", **prompts)
    assert huggingface.read(tmp_path)[1] == expected
    changed(tmp_path, "config_sentence_transformers.json", prompts={"query": "query: "}, odd=1)
    notes = huggingface.read(tmp_path)[1]
    assert any("has prompts ('query': 'query: '); write them before the texts" in note for note in notes)
    assert any("has settings that bertjax does not know and leaves out: 'odd'" in note for note in notes)


@pytest.mark.parametrize("activation", ["linear.Identity", "activation.Sigmoid"])
def test_a_cross_encoder_answers_as_there(tmp_path, activation):
    """Version 6 stores modules and the activation in a file of its own, older ones the activation in config.json."""
    library = pytest.importorskip("sentence_transformers", reason="needs the extra [interop]")
    huggingface.write(tmp_path / "made", models.fine_tuned("regression", models.trained()))
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    left_out = ("problem_type", "sentence_transformers")
    kept = {key: value for key, value in config.items() if key not in left_out}
    (tmp_path / "made" / "config.json").write_text(json.dumps(kept))
    function = getattr(torch_nn(), activation.rpartition(".")[2])()
    theirs = library.CrossEncoder(str(tmp_path / "made"), device="cpu", activation_fn=function)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    model, _ = huggingface.read(tmp_path / "theirs")
    model.settings["tasks"]["regression"]["examples"] |= {"text": "a", "pair": "b"}
    records = [{"a": a, "b": b} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    numbers = [answer["prediction"] for answer in Predictor(model).predict(records)]
    expected = theirs.predict([(record["a"], record["b"]) for record in records])
    np.testing.assert_allclose(numbers, expected, atol=1e-5)
    huggingface.write(tmp_path / "back", model)
    back = library.CrossEncoder(str(tmp_path / "back"), device="cpu")
    np.testing.assert_allclose(back.predict([(record["a"], record["b"]) for record in records]), expected, atol=1e-5)


def torch_nn():
    import torch

    return torch.nn


@pytest.mark.parametrize("limit, is_lower", [(5, True), (None, False)])
def test_longest_text_and_lower_case_are_applied(tmp_path, limit, is_lower):
    """Reference: sentence-transformers on the same folder, or a text that was cut and in lower case before."""
    export = embedder("embedding_contrastive")
    huggingface.write(tmp_path / "whole", export)
    huggingface.write(tmp_path / "changed", export)
    changed(tmp_path / "changed", "sentence_bert_config.json", max_seq_length=limit, do_lower_case=is_lower)
    changed(tmp_path / "changed", "tokenizer_config.json", model_max_length=10**30)
    texts = ["aebe aefc aefd aebe aefe", "aefc"]  # each word is one token
    texts = list(map(str.upper, texts)) if is_lower else texts
    model, notes = huggingface.read(tmp_path / "changed")
    assert any(note.startswith("texts are cut to 5 tokens") for note in notes) == bool(limit)
    by_hand = [" ".join(text.lower().split()[: limit - 2 if limit else None]) for text in texts]
    expected = Predictor(huggingface.read(tmp_path / "whole")[0]).embed(by_hand)
    actual = Predictor(model).embed(texts)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    try:
        import sentence_transformers as library
    except ImportError:
        return
    theirs = library.SentenceTransformer(str(tmp_path / "changed"), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, Predictor(model).embed(texts, normalize=True), atol=1e-5)


@pytest.mark.parametrize(
    "kind, objective, normalizes",
    [
        *((kind, "embedding_contrastive", True) for kind in ("bert", "distilbert", "mpnet")),
        *((kind, "embedding_classification", False) for kind in ("albert", "roberta")),
    ],
)
def test_the_library_embeds_as_bertjax_does(tmp_path, kind, objective, normalizes):
    library = pytest.importorskip("sentence_transformers", reason="needs the extra [interop]")
    export = embedder(objective, kind)
    huggingface.write(tmp_path, export)
    expected = Predictor(export).embed(TEXTS, normalize=normalizes)
    actual = library.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@files.slow
def test_a_folder_of_theirs_gives_their_vectors_everywhere(tmp_path):
    """Converted to an export, to ONNX as `serve` reads it, and back: lengths as there, without a flag."""
    library = pytest.importorskip("sentence_transformers", reason="needs the extra [interop]")
    huggingface.write(tmp_path / "theirs", embedder("embedding_contrastive"))
    expected = library.SentenceTransformer(str(tmp_path / "theirs"), device="cpu").encode(TEXTS)
    exports.write(tmp_path / "ours", huggingface.read(tmp_path / "theirs")[0])
    model = exports.read(tmp_path / "ours")
    onnx.write(tmp_path / "model.onnx", model)
    huggingface.write(tmp_path / "back", model)
    assert predict.main([str(tmp_path / "model.onnx"), *TEXTS, f"--out={tmp_path / 'a.npy'}"]) == 0
    served = np.load(tmp_path / "a.npy")
    back = library.SentenceTransformer(str(tmp_path / "back"), device="cpu")
    for actual in (Predictor(model).embed(TEXTS), served, back.encode(TEXTS)):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert back.max_seq_length == model.lengths.example


def on_mean(term: str, kind: str = "bert", **settings):
    """A model with a linear head on the mean of the hidden states."""
    export = models.fine_tuned(term, models.trained(), kind)
    export.settings["tasks"][term]["objective"].update({"pooling": "mean"} | settings)
    return export


@pytest.mark.parametrize(
    "term, settings, pair",
    [
        ("classification", {"temperature": 2.0}, True),
        ("multi_label", {}, False),
        ("regression", {"activation": "sigmoid"}, True),
    ],
)
def test_the_code_of_the_card_answers_as_bertjax_does(tmp_path, term, settings, pair):
    pytest.importorskip("sentence_transformers", reason="needs the extra [interop]")
    export, texts = on_mean(term, **settings), list(TEXTS)
    records = [{"sentence": text} for text in texts]
    if pair:
        export.settings["tasks"][term]["examples"] |= {"text": "a", "pair": "b"}
        texts = list(zip(TEXTS, TEXTS[::-1], strict=True))
        records = [{"a": a, "b": b} for a, b in texts]
    huggingface.write(tmp_path, export)
    [code] = re.findall(r"```python\n([^`]*SentenceTransformer.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    scope: dict = {"texts": texts}
    exec(code.replace("FOLDER", str(tmp_path)).replace('["the text of an example"]', "texts"), scope)
    answers, scores = Predictor(export).predict(records), scope["scores"].tolist()
    if term == "regression":
        np.testing.assert_allclose(scores, [answer["prediction"] for answer in answers], atol=1e-5)
        return
    for row, answer in zip(scores, answers, strict=True):
        named = {scope["labels"][number]: score for number, score in enumerate(row)}
        assert named == pytest.approx(answer["probabilities"], abs=1e-5)
