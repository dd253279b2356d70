"""Predictions on texts against direct computations, whatever their order and their batches."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.config import export
from bertjax.data.text.augmentation import Augmentation
from bertjax.inference import base
from bertjax.inference import predictor as predictors
from bertjax.inference.fill import Refill
from bertjax.models.encoder import Encoder
from bertjax.runtime.errors import UserError
from tests.inference.conftest import LONGEST, WORDS, sentences
from tests.models import reference

TEXTS = sentences(40, most_words=50)


def masked(count: int) -> list[str]:
    """Sentences of very different lengths with one to nine masks."""
    draw, texts = np.random.default_rng(1), []
    for text in sentences(count, most_words=30, seed=1):
        words = text.split()
        for place in draw.integers(0, len(words), draw.integers(1, 10)):
            words[place] = "[MASK]"
        texts.append(" ".join(words))
    return texts


def hidden(model, ids: list[int]) -> np.ndarray:
    """[tokens, D] of one text by plain numpy in float64, without padding."""
    return reference.encode(reference.float64(model.params["encoder"]), model.encoder, ids, np.zeros_like(ids))


def probabilities(model, ids: list[int]) -> np.ndarray:
    """[tokens, V] of one text, computed likewise."""
    head, word_VD = reference.float64(model.params["heads"]["mlm"]), model.params["encoder"]["embeddings"]["word"]
    activated_TD = reference.gelu(reference.dense(hidden(model, ids), head["transform"]))
    logits_TV = reference.norm(activated_TD, head["norm"], model.encoder.norm_epsilon) @ word_VD.T + head["word_bias"]
    return reference.softmax(logits_TV[:, : model.encoder.vocab_size])


def framed(model, ids: list[int]) -> list[int]:
    return [model.tokenizer.cls_id, *ids, model.tokenizer.sep_id]


def test_fill_equals_what_encoder_and_head_compute(model, predictor):
    texts = masked(12)
    tokens, most = model.tokenizer, 0
    for text, answer in zip(texts, predictor.fill(texts, top=3), strict=True):
        assert answer["text"] == text and answer.keys() == {"text", "masks", "filled"}
        ids = framed(model, tokens.encode_masked([text])[0])
        places = np.flatnonzero(np.array(ids) == tokens.mask_id)
        expected_TV = probabilities(model, ids)
        assert len(answer["masks"]) == len(places) == text.count("[MASK]")
        for place, guesses in zip(places, answer["masks"], strict=True):
            best = np.argsort(-expected_TV[place], kind="stable")[:3]
            assert [guess["piece"] for guess in guesses] == [tokens.piece(token) for token in best]
            np.testing.assert_allclose([guess["probability"] for guess in guesses], expected_TV[place, best], atol=1e-5)
            ids[place] = int(best[0])
        assert answer["filled"] == tokens.decode(ids)
        most = max(most, len(places))
    assert most > 4, "no text was read twice"


def test_embeddings_are_means_of_the_hidden_states_of_any_layers(model, predictor):
    texts = TEXTS[:6]
    raw, unit = predictor.embed(texts), predictor.embed(texts, normalize=True)
    for text, vector in zip(texts, raw, strict=True):
        ids = framed(model, model.tokenizer.encode([text])[0])
        np.testing.assert_allclose(vector, hidden(model, ids).mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)
    assert raw.dtype == unit.dtype == np.float32
    tokens_BT = np.array([framed(model, model.tokenizer.encode(texts[:1])[0])])
    _, state = Encoder(model.encoder).apply({"params": model.params["encoder"]}, tokens_BT, mutable=["captured"])
    hidden_LTD = state["captured"]["hidden"][:, 0]
    [vector] = predictor.embed(texts[:1], layers=[1, 0])
    np.testing.assert_allclose(vector, np.asarray(hidden_LTD)[[1, 0]].mean(axis=1).ravel(), atol=1e-5)
    np.testing.assert_allclose(predictor.embed(texts, layers=[2]), raw, atol=1e-6)


def test_batches_parts_and_order_do_not_change_a_result(predictor, monkeypatch):
    alone = np.concatenate([predictor.embed([text]) for text in TEXTS[:10]])
    order = np.random.default_rng(2).permutation(len(TEXTS))
    monkeypatch.setattr(predictors, "POSITIONS", 256)
    monkeypatch.setattr(base, "PART", 16)
    shuffled = predictor.embed([TEXTS[index] for index in order])
    np.testing.assert_allclose(shuffled[np.argsort(order)][:10], alone, atol=1e-5)
    answers = predictor.fill(masked(20))
    assert [answer["text"] for answer in answers] == masked(20)


def test_masks_beyond_the_end_of_a_long_text_are_not_refilled(predictor):
    pipeline = predictor.pipeline(Refill, top=2, augmentation=Augmentation())
    request = predictor.request(pipeline, [{"text": f"{WORDS[0]} " * LONGEST + "[MASK]", "number": 0}])
    [filled] = predictor.predictions(request)
    assert filled["filled"].startswith(WORDS[0]) and "[MASK]" not in filled["filled"]


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda p: p.fill(["a [MASK]", "abc"]), "text 2 has no [MASK]"),
        (lambda p: p.fill(["abc " * LONGEST + "[MASK]"]), f"text 1 has a [MASK] after {LONGEST} tokens"),
        (lambda p: p.fill(["[MASK]"], top=0), "top=0 must be between 1 and the vocabulary's 60"),
        (lambda p: p.fill(["[MASK]"], top=61), "top=61"),
        (lambda p: p.embed(["abc"], layers=[3]), "layers=3: the model has no layer 3; choose from 0"),
        (lambda p: p.embed(["abc", " \n"]), "text 2 is blank"),
        (lambda p: p.embed(["abc", 3]), "text 2: 'text' is '3', not a string"),
        (lambda p: p.embed("abc"), "'abc' is one text; give a list"),
        (lambda p: p.embed([]), "at least one sentence"),
        (lambda p: p.embed(["a\ud800"]), "lone surrogate"),
    ],
)
def test_bad_input_gives_one_line(predictor, ask, complaint):
    with pytest.raises(UserError) as error:
        ask(predictor)
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_prediction_in_python_imports_no_data_library(model, tmp_path):
    export.write(tmp_path / "export", model)
    code = (
        "import sys, bertjax; assert 'jax' not in sys.modules\n"
        f"predictor = bertjax.predictor({str(tmp_path / 'export')!r})\n"
        "print(len(predictor.fill(['abc [MASK]'])[0]['masks'][0]), predictor.embed(['abc']).shape)\n"
        "print([name for name in ('grain', 'orbax', 'tensorflow_datasets') if name in sys.modules])"
    )
    root = Path(bertjax.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout.splitlines() == ["5 (1, 16)", "[]"], done.stderr
