"""Fine-tuned models in transformers: every class opens, and its pipeline answers as bertjax predicts."""

import itertools
import json
import re

import numpy as np
import pytest

from bertjax.inference.predictor import Predictor
from bertjax.interop import families, huggingface
from tests.interop import models

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

TOLERANCE = 1e-5
WORDS = list(map("".join, itertools.product("abc", "def", "abf", "cde")))
TEXTS = [" ".join(WORDS[first:last]) for first, last in ((0, 3), (7, 8), (20, 24), (50, 55))]
TEXTS += ["(abd ace), cfd."]
CASES = [
    (kind, term)
    for kind, stem in models.STEMS.items()
    if hasattr(transformers, f"{stem}Model")  # EuroBERT is in transformers 5 only
    for term in families.of_config({"model_type": kind}).task_heads
]
# `test_every_family.py` compares the logits of each head once.
WITH_PIPELINE = {*((kind, term) for kind, _ in CASES for term in ("classification", "tagging"))}
WITH_PIPELINE |= {("bert", "multi_label"), ("xlnet", "regression")}


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


@pytest.mark.parametrize("kind, term", CASES)
def test_no_tensor_is_missing_or_left_over_and_pipelines_answer_as_bertjax(tokens, tmp_path, kind, term):
    original = models.fine_tuned(term, tokens, kind)
    huggingface.write(tmp_path, original)
    [architecture] = transformers.AutoConfig.from_pretrained(tmp_path).architectures
    _, loading = getattr(transformers, architecture).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values()), loading
    if (kind, term) not in WITH_PIPELINE:
        return
    answers = Predictor(original).predict(TEXTS)
    if term == "tagging":
        pipeline = transformers.pipeline("token-classification", model=str(tmp_path), aggregation_strategy="first")
        for text, expected in zip(TEXTS, answers, strict=True):
            entities = [(entry["entity_group"], entry["start"], entry["end"]) for entry in pipeline(text)]
            assert [(each["type"], each["start"], each["end"]) for each in expected["entities"]] == entities
        return
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path), top_k=None)
    for expected, scores in zip(answers, pipeline(TEXTS), strict=True):
        actual = {entry["label"]: entry["score"] for entry in scores}
        wanted = expected.get("probabilities", {"LABEL_0": expected["prediction"]})
        assert actual == pytest.approx(wanted, abs=TOLERANCE)
        if term == "classification":
            assert scores[0]["label"] == expected["prediction"]


@pytest.mark.parametrize("how", ["template", "inputs", "class", "as written"])
def test_pairs_of_tokenizers_with_and_without_segments(tokens, tmp_path, how):
    """Both texts are in segment 0: by `model_input_names`, by the template, or by the class of the tokenizer."""
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    huggingface.write(theirs, models.fine_tuned("classification", tokens))
    settings = json.loads((theirs / "tokenizer_config.json").read_text())
    if how == "template":
        description = json.loads((theirs / "tokenizer.json").read_text())
        for part in description["post_processor"]["pair"]:
            next(iter(part.values()))["type_id"] = 0
        (theirs / "tokenizer.json").write_text(json.dumps(description))
    elif how == "inputs":
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    elif how == "class":
        del settings["model_input_names"]
        settings["tokenizer_class"] = "DistilBertTokenizer"
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    model, notes = huggingface.read(theirs)
    note = "2 of 3 rows of segments cut: the tokenizer gives all texts segment 0"
    assert (note in notes) == (how != "as written")
    huggingface.write(back, model)
    assert huggingface.read(back)[0].encoder == model.encoder
    model.settings["tasks"]["classification"]["examples"] |= {"text": "a", "pair": "b"}
    records = [{"a": a, "b": b} for a, b in zip(TEXTS[:2], TEXTS[1::-1])]
    expected = [list(answer["probabilities"].values()) for answer in Predictor(model).predict(records)]
    for folder in (theirs, back):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(TEXTS[:2], TEXTS[1::-1], return_tensors="pt", padding=True)
        with torch.no_grad():
            logits = transformers.AutoModelForSequenceClassification.from_pretrained(folder)(**inputs).logits
        np.testing.assert_allclose(torch.softmax(logits, -1), expected, atol=TOLERANCE)


def test_the_code_of_the_card_for_questions(tokens, tmp_path):
    """It runs in every transformers: 5 has no pipeline for them."""
    huggingface.write(tmp_path, models.fine_tuned("span", tokens))
    card = (tmp_path / "README.md").read_text()
    assert "pipeline(" not in card and 'pipeline_tag: "question-answering"' in card
    code = "".join(re.findall(r"```python\n(.*?)```", card.split("Only JAX")[0].split("Flax, with")[0], re.DOTALL))
    code = code.replace("FOLDER", str(tmp_path)).replace('"question"', '"abd"').replace('"context"', '"aceb bbe"')
    scope: dict = {}
    exec(code, scope)
    assert scope["start"] is not None
