"""Fine-tuned models in transformers: pipelines answer as bertjax predicts, and checkpoints of theirs are read."""

import itertools
import json
import pathlib
import re

import numpy as np
import pytest

from bertjax.config.config import from_dict
from bertjax.inference.predictor import Predictor
from bertjax.interop import families, huggingface
from tests.interop import models

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

TOLERANCE = 1e-5
WORDS = list(map("".join, itertools.product("abc", "def", "abf", "cde")))
TEXTS = [" ".join(WORDS[first:last]) for first, last in ((0, 3), (7, 8), (20, 24), (50, 55))]
# EuroBERT is in transformers 5 only.
KINDS = tuple(kind for kind, stem in models.STEMS.items() if hasattr(transformers, f"{stem}Model"))


def kinds_with(term: str) -> list[str]:
    """Return the families of which transformers has a class with this head."""
    return [kind for kind in KINDS if term in families.of_config({"model_type": kind}).task_heads]


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


@pytest.fixture
def written(tokens, tmp_path):
    """written(term, kind) -> the model, and the folder of transformers that it is written to."""

    def write(term: str, kind: str):
        original = models.fine_tuned(term, tokens, kind)
        huggingface.write(tmp_path / kind, original)
        return Predictor(original), str(tmp_path / kind)

    return write


@pytest.mark.parametrize("kind", KINDS)
def test_classification(written, kind):
    ours, folder = written("classification", kind)
    pipeline = transformers.pipeline("text-classification", model=folder, top_k=None)
    for expected, scores in zip(ours.predict(TEXTS), pipeline(TEXTS), strict=True):
        actual = {entry["label"]: entry["score"] for entry in scores}
        assert actual == pytest.approx(expected["probabilities"], abs=TOLERANCE)
        assert scores[0]["label"] == expected["prediction"]


def test_any_number_of_labels(written):
    ours, folder = written("multi_label", "bert")
    pipeline = transformers.pipeline("text-classification", model=folder, top_k=None)
    for expected, scores in zip(ours.predict(TEXTS), pipeline(TEXTS), strict=True):
        actual = {entry["label"]: entry["score"] for entry in scores}
        assert actual == pytest.approx(expected["probabilities"], abs=TOLERANCE)
        assert expected["prediction"] == [label for label in expected["probabilities"] if actual[label] > 0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_regression(written, kind):
    ours, folder = written("regression", kind)
    pipeline = transformers.pipeline("text-classification", model=folder)
    expected = [prediction["prediction"] for prediction in ours.predict(TEXTS)]
    np.testing.assert_allclose([entry["score"] for entry in pipeline(TEXTS)], expected, atol=TOLERANCE)


def test_classification_of_pairs(tokens, tmp_path):
    original = models.fine_tuned("classification", tokens)
    original.settings["tasks"]["classification"]["examples"]["pair"] = "other"
    huggingface.write(tmp_path, original)
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path), top_k=None)
    records = [{"sentence": first, "other": second} for first, second in zip(TEXTS[:2], TEXTS[1::-1])]
    scores = pipeline([{"text": record["sentence"], "text_pair": record["other"]} for record in records])
    for expected, entries in zip(Predictor(original).predict(records), scores, strict=True):
        actual = {entry["label"]: entry["score"] for entry in entries}
        assert actual == pytest.approx(expected["probabilities"], abs=TOLERANCE)


@pytest.mark.parametrize("how", ["inputs", "template", "class"])
def test_pairs_of_tokenizers_that_give_no_segments(tokens, tmp_path, how):
    """Both texts are in segment 0: by `model_input_names`, by the template, or by the class of the tokenizer."""
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    huggingface.write(theirs, models.fine_tuned("classification", tokens))
    settings = json.loads((theirs / "tokenizer_config.json").read_text())
    inputs = settings.pop("model_input_names")
    if how == "template":
        settings["model_input_names"] = inputs
        description = json.loads((theirs / "tokenizer.json").read_text())
        for part in description["post_processor"]["pair"]:
            next(iter(part.values()))["type_id"] = 0
        (theirs / "tokenizer.json").write_text(json.dumps(description))
    elif how == "inputs":
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    else:
        settings["tokenizer_class"] = "DistilBertTokenizer"
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    model, notes = huggingface.read(theirs)
    assert "2 of 3 rows of segments cut: the tokenizer gives all texts segment 0" in notes
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


@pytest.mark.parametrize("kind", KINDS)
def test_tagging(written, kind):
    ours, folder = written("tagging", kind)
    pipeline = transformers.pipeline("token-classification", model=folder, ignore_labels=[])
    for text, expected in zip(TEXTS, ours.predict(TEXTS), strict=True):
        tag_of = {entry["start"]: entry["entity"] for entry in pipeline(text)}
        starts = np.cumsum([0, *(len(word) + 1 for word in expected["words"])])
        assert [tag_of[int(start)] for start in starts[:-1]] == expected["prediction"]


@pytest.mark.parametrize("kind", kinds_with("span"))
def test_question_answering(written, kind):
    """The span of the context with the highest sum of logits, as in the pipeline that transformers 5 has not."""
    ours, folder = written("span", kind)
    records = [{"question": "abd", "context": text} for text in TEXTS]
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for record, expected in zip(records, ours.predict(records), strict=True):
        inputs = tokenizer(*record.values(), return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            outputs = model(**inputs)
        places = [place for place, part in enumerate(inputs.sequence_ids()) if part == 1]
        starts, ends = outputs.start_logits[0], outputs.end_logits[0]
        spans = [(i, j) for i, j in itertools.product(places, places) if i <= j < i + 30]
        start, end = max(spans, key=lambda span: float(starts[span[0]] + ends[span[1]]))
        assert record["context"][offsets[start][0] : offsets[end][1]] == expected["prediction"]


def test_the_code_of_the_card_for_questions(written):
    """What `convert` writes for questions runs in every transformers: 5 has no pipeline for them."""
    _, folder = written("span", "bert")
    card = (pathlib.Path(folder) / "README.md").read_text()
    assert "pipeline(" not in card and 'pipeline_tag: "question-answering"' in card
    code = "".join(re.findall(r"```python\n(.*?)```", card.split("Only JAX")[0].split("Flax, with")[0], re.DOTALL))
    scope: dict = {}
    exec(code.replace("FOLDER", folder).replace('"question"', '"abd"').replace('"context"', '"aceb bbe"'), scope)
    assert scope["start"] is not None


@pytest.mark.parametrize("kind", kinds_with("multiple_choice"))
def test_multiple_choice(written, kind):
    ours, folder = written("multiple_choice", kind)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for context, choices in zip(TEXTS[:2], (WORDS[:2], WORDS[4:6])):
        inputs = tokenizer([context] * 2, choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**{name: tensor[None] for name, tensor in inputs.items()}).logits
        np.testing.assert_allclose(torch.softmax(logits, -1)[0], probabilities(ours.model, inputs), atol=TOLERANCE)


def probabilities(model, inputs) -> np.ndarray:
    """Return the probabilities of choices, each a row of the inputs of transformers, float32 [C]."""
    objective = from_dict(model.settings).task.objective
    lengths = inputs["attention_mask"].sum(dim=1).numpy()
    rows = [inputs["input_ids"][row, :length].numpy() for row, length in enumerate(lengths)]
    segments = inputs.get("token_type_ids", torch.zeros_like(inputs["input_ids"]))
    batch = {
        "tokens_BT": np.concatenate(rows)[None],
        "segments_BT": np.concatenate([segments[row, :length] for row, length in enumerate(lengths)])[None],
        "positions_BT": np.concatenate([np.arange(length) for length in lengths])[None],
        "examples_BT": np.repeat(np.arange(len(lengths)) + 1, lengths)[None],
        "summary_positions_BN": np.array([[0, *np.cumsum(lengths)[:-1]]]),
        "example_ids_BN": np.arange(len(lengths))[None],
    }
    outputs = objective.outputs(objective.model(model.encoder), model.params, batch)
    return np.asarray(outputs["probability"].array)[0]


@pytest.mark.parametrize("kind, term", [(kind, term) for term in models.OUTPUTS for kind in kinds_with(term)])
def test_no_tensor_is_missing_or_left_over(written, kind, term):
    _, folder = written(term, kind)
    [architecture] = transformers.AutoConfig.from_pretrained(folder).architectures
    _, loading = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
