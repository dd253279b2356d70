"""Answers as spans: the loss in packed rows, the best spans over windows, empty answers, and predictions."""

import dataclasses
import itertools
import json
import random

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.labeled.questions import ANSWER, NO_ANSWER, Questions
from bertjax.objectives.finetuning import squad_metrics
from bertjax.objectives.finetuning.question_answering import QuestionAnswering
from bertjax.objectives.wrapper import tuned
from bertjax.runtime.errors import UserError
from tests import batches
from tests.objectives import labeled_batches

SEQ_LEN = 32
BOTH = (ANSWER, NO_ANSWER)


def paragraph(draw, number):
    words = ["".join(draw.choices("abc", k=draw.randint(1, 4))) for _ in range(draw.choice((2, 3, 25)))]
    context = " ".join(words)
    first = draw.randrange(len(words))
    text = " ".join(words[first : first + draw.randint(1, 2)])
    start = len(" ".join(words[:first])) + bool(first)
    of_one = {"id": str(number), "question": "who", "answers": [{"text": text, "answer_start": start}]}
    of_none = {"id": f"no {number}", "question": "x", "answers": [], "is_impossible": True}
    return {"context": context, "qas": [of_one, of_none] if number % 2 else [of_one]}


@pytest.fixture(scope="module")
def format(tmp_path_factory):
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("questions") / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph(draw, number) for number in range(30)]}]}))
    return Questions(train=str(path), heldout=str(path), stride=8, max_question=4)


@pytest.fixture(scope="module")
def loaded(format, spelling):
    return labeled_batches.load(format, QuestionAnswering(classes=BOTH), spelling, SEQ_LEN, 4)


def gold_logits(examples):
    """Return logits that are high at the ends of an answer, and at [CLS] between answers and other spans."""
    ragged = examples.ragged
    logits_T2 = np.zeros((len(ragged.tokens), 2), np.float32)
    for column, name in enumerate(("start", "end")):
        logits_T2[ragged.offsets[:-1] + ragged.labels[name], column] = np.where(ragged.labels[name] > 0, 9.0, 5.0)
    return {"logits": logits_T2}


def test_packing_changes_nothing(format, spelling):
    labeled_batches.assert_packing_changes_nothing(format, QuestionAnswering(classes=BOTH), spelling, SEQ_LEN)


def test_the_loss_is_a_softmax_over_the_tokens_of_the_example(loaded, spelling):
    objective = QuestionAnswering(classes=BOTH)
    module = objective.model(labeled_batches.encoder(spelling, SEQ_LEN))
    params = jax.jit(lambda key: objective.init(module, key, loaded.batch))(jax.random.key(0))
    terms = jax.jit(lambda batch: objective.terms(module, params, None, batch, jax.random.key(0), False))
    sums, metrics = terms(loaded.batch)
    logits_T2 = labeled_batches.outputs_of(objective, module, params, loaded)["logits"].astype(np.float64)
    ragged, total, right = loaded.examples.ragged, 0.0, 0
    for example, (first, stop) in enumerate(itertools.pairwise(ragged.offsets)):
        own_T2 = logits_T2[first:stop]
        for column, name in enumerate(("start", "end")):
            true = own_T2[ragged.labels[name][example], column]
            total += (np.log(np.exp(own_T2[:, column]).sum()) - true) / 2
        right += own_T2.argmax(axis=0).tolist() == [ragged.labels["start"][example], ragged.labels["end"][example]]
    np.testing.assert_allclose(sums["span"], total, rtol=1e-5)
    assert objective.weights(loaded.batch)["span"] == len(loaded.examples)
    assert metrics["span_accuracy"] == (right, len(loaded.examples))


def test_gold_answers_have_100(loaded):
    examples, objective = loaded.examples, QuestionAnswering(classes=BOTH)
    assert max(np.bincount(examples.record_of)) > 2
    order = np.random.default_rng(0).permutation(len(examples))
    ragged, records = examples.take(order), [examples.records[number] for number in examples.record_of[order]]
    shuffled = type(examples)(ragged, examples.records, examples.record_of[order])
    scores = objective.score(gold_logits(shuffled), ragged, records)
    assert {name: scores[name] for name in scores if name != "threshold"} == {
        "exact_match": 100.0,
        "f1": 100.0,
        "f1_with_answer": 100.0,
        "f1_without_answer": 100.0,
    }
    predictions = objective.predictions(gold_logits(shuffled), ragged, records)
    assert [prediction["id"] for prediction in predictions] == [record["id"] for record in examples.records]
    for prediction, record in zip(predictions, examples.records):
        assert "context" not in prediction
        if record["answers"]:
            assert prediction["prediction"] == record["answers"][0]["text"]
            assert (
                record["context"][prediction["begin"] : prediction["stop"]]
                == prediction["prediction"]
                == prediction["nbest"][0]["text"]
            )
            assert prediction["score"] == 18.0
        else:
            assert (prediction["prediction"], prediction["begin"], prediction["stop"]) == ("", -1, -1)


def predict(spelling, logits, context="ab cd", question="w", **choices):
    """The prediction for a question without a known answer, from {token of the context: logits}."""
    objective = QuestionAnswering(**choices)
    record = {"question": question, "context": context}
    examples = Questions(max_question=2).encode([record], spelling, 32, objective.classes)
    logits_T2 = np.full((len(examples.ragged.tokens), 2), -9.0)
    for token, pair in logits.items():
        logits_T2[token] = pair
    (prediction,) = objective.predictions({"logits": logits_T2}, examples.ragged, [record])
    return prediction


@settings(deadline=None)
@given(st.integers(0, 10**6), st.text("ab ", min_size=1, max_size=12).filter(str.strip), st.integers(1, 5))
def test_the_best_spans_are_those_of_all_spans(spelling, seed, context, longest):
    examples = Questions(max_question=2).encode([{"question": "w", "context": context}], spelling, 32, ())
    logits_T2 = np.random.default_rng(seed).normal(size=(len(examples.ragged.tokens), 2))
    begin, stop = (examples.ragged.token_labels[name] for name in ("begin", "stop"))
    tokens = np.flatnonzero(begin >= 0)
    scores = {}
    for first, last in itertools.product(tokens, tokens):
        if first <= last < first + longest:
            text = context[begin[first] : stop[last]]
            scores[text] = max(scores.get(text, -np.inf), logits_T2[first, 0] + logits_T2[last, 1])
    objective = QuestionAnswering(longest=longest, nbest=100)
    (prediction,) = objective.predictions({"logits": logits_T2}, examples.ragged, examples.records)
    best = {candidate["text"]: candidate["score"] for candidate in prediction["nbest"]}
    assert best == pytest.approx(scores, abs=1e-4) and list(best.values()) == sorted(best.values(), reverse=True)


@pytest.mark.parametrize("threshold, answer", [(0.0, ""), (0.9, ""), (1.0, "ab"), (2.0, "ab")])
def test_the_threshold_decides_where_no_answer_is_known(spelling, threshold, answer):
    logits = {0: (2, 2), 3: (3, -9), 4: (-9, 0)}
    prediction = predict(spelling, logits, classes=BOTH, threshold=threshold)
    assert (prediction["prediction"], prediction["no_answer"], prediction["score"]) == (answer, 4.0, 3.0)


def test_the_threshold_is_that_with_the_highest_f1(spelling):
    """Margins 1, 3 and 5: the first two should be answered, the last should not."""
    answers = [{"text": "ab", "answer_start": 0}]
    records = [{"question": "w", "context": "ab", "answers": gold} for gold in (answers, answers, [])]
    examples = Questions(max_question=2).encode(records, spelling, 16, BOTH)
    logits_T2 = np.zeros((len(examples.ragged.tokens), 2))
    logits_T2[examples.ragged.offsets[:-1], 0] = [1, 3, 5]
    logits_T2[examples.ragged.offsets[:-1] + 3, 0] = logits_T2[examples.ragged.offsets[:-1] + 4, 1] = 0.01
    logits_T2[examples.ragged.offsets[:-1], 0] += 0.02
    scores = QuestionAnswering(classes=BOTH).score({"logits": logits_T2}, examples.ragged, records)
    assert scores["threshold"] == pytest.approx(4.0)
    assert scores["f1"] == scores["exact_match"] == 100.0
    kept = QuestionAnswering(classes=BOTH, threshold=2.0).score({"logits": logits_T2}, examples.ragged, records)
    assert (kept["threshold"], kept["exact_match"]) == (2.0, pytest.approx(200 / 3)), "one chosen elsewhere is kept"
    chosen = tuned(QuestionAnswering(classes=BOTH), scores)
    assert chosen == QuestionAnswering(classes=BOTH, threshold=scores["threshold"]) == tuned(chosen, {"threshold": 9.0})
    always = QuestionAnswering(classes=(ANSWER,)).score({"logits": logits_T2}, examples.ragged, records)
    assert always == {"exact_match": pytest.approx(200 / 3), "f1": pytest.approx(200 / 3)}


def test_no_answer_needs_a_cls_that_sees_the_context():
    encoder = dataclasses.replace(batches.ENCODER, direction="left_to_right")
    assert QuestionAnswering(classes=(ANSWER,)).heads(encoder)
    assert QuestionAnswering(classes=BOTH).heads(batches.ENCODER)
    with pytest.raises(UserError, match="^.CLS. scores that a question has no answer, and model.direction=left_to_rig"):
        QuestionAnswering(classes=BOTH).heads(encoder)


@pytest.mark.parametrize(
    "answer, gold, exact, f1",
    [
        ("The Denver Broncos!", ["Denver Broncos"], 1.0, 1.0),
        ("a  the an", [""], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),
        ("Denver Broncos of Denver", ["Denver Broncos"], 0.0, 2 * 2 / (4 + 2)),
        ("Denver Denver", ["Denver"], 0.0, 2 / 3),  # a word counts as often as both have it
        ("theory", ["ory"], 0.0, 0.0),  # articles are words, not letters
        ("U.S.", ["us"], 1.0, 1.0),
        ("twenty-one", ["twenty one"], 0.0, 0.0),
        ("in 1990", ["1989", "1990", "in the year 1990"], 0.0, 4 / 5),
        ("nothing", [], 0.0, 0.0),
        ("", [], 1.0, 1.0),
        ("", ["something"], 0.0, 0.0),
        ("the", ["something"], 0.0, 0.0),
        ("\uc11c\uc6b8.", ["\uc11c\uc6b8"], 1.0, 1.0),
    ],
)
def test_scores_as_literals(answer, gold, exact, f1):
    assert squad_metrics.exact_match(answer, gold) == exact
    assert squad_metrics.f1(answer, gold) == pytest.approx(f1)


@pytest.mark.parametrize(
    "answer, gold, exact, f1",
    [
        ("이순신은", ["이순신"], 0.0, 6 / 7),  # KorQuAD: characters, whatever the particle is
        ("거북선을 만든", ["거북선"], 0.0, 2 * 3 / (6 + 3)),
        ("《홍길동》", ["홍길동"], 1.0, 1.0),  # its script turns brackets into spaces
        ("(노량)에서", ["노량 에서"], 1.0, 1.0),
        ("서울 시", ["서울시"], 0.0, 1.0),  # an exact match compares words
        ("《紅樓夢》", ["紅樓夢"], 1.0, 1.0),  # MLQA: punctuation of any script is left out
        ("曹雪芹", ["曹雪芹的"], 0.0, 6 / 7),
        ("1598年", ["1598 年"], 1.0, 1.0),
        ("東京と", ["東京"], 0.0, 4 / 5),
        ("กรุงเทพ", ["กรุงเทพฯ"], 0.0, 2 * 7 / (7 + 8)),
    ],
)
def test_scores_in_korean_and_without_spaces(answer, gold, exact, f1):
    assert squad_metrics.exact_match(answer, gold) == exact
    assert squad_metrics.f1(answer, gold) == pytest.approx(f1)


def test_the_unit_of_a_context_is_that_of_its_answers():
    """A year in a Korean context is compared by characters, too."""
    assert squad_metrics.f1("1598\ub144", ["1598"], squad_metrics.KOREAN) == pytest.approx(8 / 9)
    assert squad_metrics.f1("1598", ["15"], squad_metrics.KOREAN) == pytest.approx(4 / 6)
    assert squad_metrics.f1("1598", ["15"]) == 0.0
    for unit, exact in ((squad_metrics.CHARACTERS, 1.0), (squad_metrics.WORDS, 0.0)):  # words are whole in the first
        assert squad_metrics.exact_match("Apple\u516c\u53f8", ["apple \u516c\u53f8"], unit) == exact


@settings(deadline=None)
@given(st.text(), st.lists(st.text(), max_size=3))
def test_scores_are_between_0_and_1_and_a_gold_answer_has_1(answer, gold):
    assert 0.0 <= squad_metrics.exact_match(answer, gold) <= squad_metrics.f1(answer, gold) <= 1.0
    assert squad_metrics.exact_match(answer, [*gold, answer]) == squad_metrics.f1(answer, [*gold, answer]) == 1.0


scores = st.floats(0, 1, allow_subnormal=False)
