"""Log-likelihoods, pseudo ones and those of causal models, against slow loops, and minimal pairs."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bertjax.inference import minimal_pairs
from bertjax.inference.minimal_pairs import BAD, GOOD
from bertjax.inference.predictor import Predictor
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.runtime.errors import UserError
from tests.inference.conftest import WORDS, sentences
from tests.inference.test_predictor import framed, probabilities


def direct(model, text: str, hide: bool = True) -> float:
    """One forward pass for each token, without padding."""
    tokens, total = model.tokenizer, 0.0
    ids = framed(model, tokens.encode([text])[0])
    for place in range(1, len(ids) - 1):
        masked = [tokens.mask_id if hide and at == place else token for at, token in enumerate(ids)]
        total += float(np.log(probabilities(model, masked)[place, ids[place]]))
    return total


def test_the_score_is_the_sum_over_tokens_masked_one_at_a_time(model, predictor):
    texts = [f"{WORDS[0]} [MASK] {WORDS[1]}", *sentences(8, most_words=12, seed=3)]  # a mask in a sentence is text
    scores = predictor.pseudo_log_likelihoods(texts)
    np.testing.assert_allclose(scores, [direct(model, text) for text in texts], atol=1e-4)
    in_view = np.array([direct(model, text, hide=False) for text in texts])
    assert np.abs(scores - in_view).min() > 1e-2, "these texts cannot tell whether a token is masked"


@pytest.fixture
def pairs(tmp_path):
    """A file of pairs of two kinds, and a pair without a kind."""
    records = [
        {"sentence_good": good, "sentence_bad": bad, "UID": uid, "pair_id": number}
        for number, (good, bad, uid) in enumerate(zip(sentences(9, 6), sentences(9, 6, seed=7), "aababbabb"))
    ]
    del records[-1]["UID"]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def score(predictor, path):
    pairs = minimal_pairs.read(str(path))
    return minimal_pairs.shares(pairs, minimal_pairs.judge(predictor.model, pairs))


def test_a_pair_is_correct_if_the_good_sentence_scores_higher(model, predictor, pairs):
    records = [json.loads(line) for line in pairs.read_text().splitlines()]
    right = [direct(model, r["sentence_good"]) > direct(model, r["sentence_bad"]) for r in records]
    figures = score(predictor, pairs)
    assert 0 < sum(right) < len(right) and figures["accuracy"] == np.mean(right) and figures["pairs"] == 9
    assert list(figures["UID"]) == ["a", "b"]
    for name, paradigm in figures["UID"].items():
        chosen = [is_right for is_right, record in zip(right, records) if record.get("UID") == name]
        assert paradigm == {"accuracy": np.mean(chosen), "ties": 0, "pairs": len(chosen)}


@pytest.fixture(scope="module")
def causal(model) -> Predictor:
    """A causal model with the parameters of the masked one."""
    heads = {"clm": model.params["heads"]["mlm"]}
    encoder = dataclasses.replace(model.encoder, direction="left_to_right")
    return Predictor(model._replace(encoder=encoder, params=model.params | {"heads": heads}))


def after_prefixes(predictor, text: str) -> float:
    """The sum of log probabilities of tokens after those before them, one forward pass for each prefix."""
    model, total = predictor.model, 0.0
    ids = framed(model, model.tokenizer.encode([text])[0])
    word = model.params["encoder"]["embeddings"]["word"]
    for place in range(1, len(ids) - 1):
        hidden = Encoder(model.encoder).apply({"params": model.params["encoder"]}, np.array([ids[:place]])).hidden
        logits = MaskedLMHead(model.encoder).apply({"params": model.params["heads"]["clm"]}, hidden, word)
        total += float(jax.nn.log_softmax(logits)[0, -1, ids[place]])
    return total


@pytest.mark.slow
def test_the_score_of_a_causal_model_is_that_of_each_token_after_those_before(causal):
    texts = sentences(2, most_words=3, seed=3)
    expected = [after_prefixes(causal, text) for text in texts]
    np.testing.assert_allclose(causal.log_likelihoods(texts), expected, atol=1e-4)


def test_minimal_pairs_of_a_causal_model_are_scored_by_log_likelihoods(causal, pairs):
    records = [json.loads(line) for line in pairs.read_text().splitlines()]
    good, bad = (causal.log_likelihoods([record[name] for record in records]) for name in (GOOD, BAD))
    assert score(causal, pairs)["accuracy"] == np.mean(good > bad)


def test_each_kind_of_model_has_its_own_score(predictor, causal):
    assert causal.default == "embed"
    for ask in (causal.pseudo_log_likelihoods, causal.fill):
        with pytest.raises(UserError, match="^the model has no masked-LM head"):
            ask(["abc"])
    with pytest.raises(UserError, match="^the model has no head that predicts the next token.*objective.kind=causal"):
        predictor.log_likelihoods(["abc"])
