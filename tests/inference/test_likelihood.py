"""Log-likelihoods, pseudo ones and those of causal models, against slow loops, and minimal pairs."""

import dataclasses
import gzip
import json

import jax
import numpy as np
import pytest
import scipy.stats

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
    return minimal_pairs.shares(pairs, minimal_pairs.judge(predictor, pairs, minimal_pairs.request(predictor, pairs)))


def test_a_pair_is_correct_if_the_good_sentence_scores_higher(model, predictor, pairs):
    records = [json.loads(line) for line in pairs.read_text().splitlines()]
    right = [direct(model, r["sentence_good"]) > direct(model, r["sentence_bad"]) for r in records]
    figures = score(predictor, pairs)
    assert 0 < sum(right) < len(right) and figures["accuracy"] == np.mean(right) and figures["pairs"] == 9
    assert list(figures["UID"]) == ["a", "b"]
    for name, paradigm in figures["UID"].items():
        chosen = [is_right for is_right, record in zip(right, records) if record.get("UID") == name]
        assert paradigm == {"accuracy": np.mean(chosen), "ties": 0, "pairs": len(chosen)}


def test_a_sentence_without_tokens_is_refused(model, predictor, pairs):
    """The sum over nothing would be 0, more probable than any sentence."""
    with pytest.raises(
        UserError, match=r"^text 1: '\\u200b' has no token, because the tokenizer removes .*; correct it"
    ):
        predictor.pseudo_log_likelihoods(["\u200b"])
    with pytest.raises(UserError, match="^text 2: "):
        predictor.pseudo_log_likelihoods([WORDS[0], "\u200b\u00ad"])
    with pairs.open("a") as file:
        file.write(json.dumps({"sentence_good": WORDS[0], "sentence_bad": "\u200b"}) + "\n")
    with pytest.raises(UserError, match=r"pairs.jsonl:10: '\\u200b' has no token"):
        score(predictor, pairs)


def test_a_model_that_ignores_the_order_of_words_is_at_chance(model, predictor, tmp_path):
    """Although attention sums the words of a permutation in another order, and floats are rounded."""
    records = [
        {"sentence_good": " ".join(words), "sentence_bad": " ".join([*words[2:], *words[:2]]), "UID": "order"}
        for words in (text.split() for text in sentences(40, most_words=9, seed=5))
        if len(set(words)) > 2
    ]
    path = tmp_path / "order.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    params = jax.tree.map(np.copy, model.params)
    params["encoder"]["embeddings"]["position"][:] = 0.0
    figures = score(Predictor(model._replace(params=params)), path)
    everything = {"accuracy": 0.5, "ties": len(records), "pairs": len(records)}
    assert len(records) > 20 and figures == everything | {"UID": {"order": everything}}
    assert score(predictor, path)["ties"] == 0


def test_a_folder_of_compressed_files_is_read_with_the_groups_of_blimp(predictor, pairs, tmp_path):
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    for index, field in enumerate(("syntax", "semantics")):
        content = "".join(
            json.dumps(line | {"field": field, "linguistics_term": "x"}) + "\n" for line in lines[index::2]
        )
        path = tmp_path / "data" / f"{index}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content.encode()))
    (tmp_path / "data/README.txt").write_text("not pairs")
    figures, plain = score(predictor, tmp_path / "data"), score(predictor, pairs)
    assert figures["linguistics_term"]["x"] == {name: plain[name] for name in ("accuracy", "ties", "pairs")}
    assert {name: group["pairs"] for name, group in figures["field"].items()} == {"syntax": 5, "semantics": 4}
    with pytest.raises(UserError, match="has no .jsonl files; name a file of pairs, or a folder with some"):
        (tmp_path / "empty").mkdir()
        minimal_pairs.read(str(tmp_path / "empty"))


@pytest.mark.parametrize("right, count", [(0, 1), (6, 6), (3, 6), (0, 7), (20, 20), (751, 1000)])
def test_the_interval_is_that_of_scipy(right, count):
    expected = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    low, high = minimal_pairs.interval(right / count, count)
    np.testing.assert_allclose((low, high), expected, atol=1e-6)
    assert 0.0 <= low <= high <= 1.0


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
