"""Examples whose [CLS] comes last, as XLNet's: the same text, labels and answers, at other places."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.config.config import from_dict
from bertjax.data import tokenizer
from bertjax.data.batch import Draw, core, place
from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.labeled.questions import NO_ANSWER, Questions
from bertjax.data.masking import SpanMasking
from bertjax.data.tokenizer import tokenizer_json
from bertjax.data.tokenizer.layout import template
from bertjax.objectives.pretraining.causal import CausalLM
from bertjax.objectives.pretraining.span_boundary import SpanBoundary
from bertjax.runtime.errors import UserError
from bertjax.training.resolve import open_feeds
from tests.interop import models

PAD, CLS, SEP, MASK = range(4)
FIRST = Vocabulary(40, PAD, CLS, SEP, MASK, special_ids=(PAD, CLS, SEP, MASK))
LAST = dataclasses.replace(FIRST, cls_last=True)
TEXTS = st.lists(st.lists(st.integers(4, 39), min_size=1, max_size=6), min_size=1, max_size=6)


def examples(first, second=None):
    """The examples in both layouts, with a label of every token of the last segment."""
    last = first if second is None else second
    numbers = np.concatenate([np.arange(len(ids)) for ids in last])
    return [add_special_tokens(first, second, one, {}, {"number": (numbers, -1)}) for one in (FIRST, LAST)]


@given(TEXTS, st.booleans())
def test_an_example_has_its_text_first_and_cls_in_a_segment_of_its_own(texts, pairs):
    before, after = examples(texts, texts[::-1] if pairs else None)
    np.testing.assert_array_equal(after.offsets, before.offsets)
    for a, b, labels, segments, ours in zip(
        before.token_lists(),
        after.token_lists(),
        *(np.split(values, before.offsets[1:-1]) for values in (before.token_labels["number"], before.segments)),
        np.split(np.arange(len(after.tokens)), after.offsets[1:-1]),
        strict=True,
    ):
        assert b.tolist() == [*a[1:], CLS]
        assert after.token_labels["number"][ours].tolist() == [*labels[1:], -1]
        assert after.segments[ours].tolist() == [*segments[1:], 2]
    assert (after.tokens[after.offsets[:-1] + after.cls_index] == CLS).all()
    assert (before.tokens[before.offsets[:-1] + before.cls_index] == CLS).all()
    assert (after.tokens[after.offsets[:-1] + after.text_index] >= 4).all()


def test_the_summary_of_packed_examples_is_read_at_cls():
    _, ragged = examples([[5, 6], [7], [8, 9, 10]])
    ragged = Ragged.join([ragged.take(np.array([2, 0])), ragged.take(np.array([1]))])
    arrays = core(place(ragged, np.array([[0, 2], [1, -1]]), 12, LAST))
    columns = arrays["summary_positions_BN"]
    np.testing.assert_array_equal(columns, [[4, 7], [3, 0]])
    assert [arrays["tokens_BT"][0, column] for column in columns[0]] == [CLS, CLS] == [arrays["tokens_BT"][1, 3], CLS]
    np.testing.assert_array_equal(arrays["positions_BT"][0, :8], [0, 1, 2, 3, 4, 0, 1, 2])


def test_the_next_token_is_never_one_of_another_example():
    _, ragged = examples([[5, 6], [7]])
    features = CausalLM().features(place(ragged, np.array([[0, 1]]), 8, LAST), Draw(0, np.zeros(1, np.int64)))
    # 5 6 [SEP] [CLS] 7 [SEP] [CLS]: only 6 is a next token with text.
    np.testing.assert_array_equal(features["clm_weights_BK"], [[1, 0, 0, 0, 0, 0, 0, 0]])


def test_a_span_at_the_start_of_an_example_has_no_boundary_before_it():
    """The token before it is that of another example, or none."""
    texts = [list(range(4, 40))] * 8
    before, after = (add_special_tokens(texts, None, one, {}) for one in (FIRST, LAST))
    rows_BN, epochs = np.arange(8).reshape(4, 2), np.zeros(8, np.int64)
    objective = SpanBoundary(masking=SpanMasking(rate=0.6), longest=64)
    first, last = (
        objective.features(place(ragged, rows_BN, 80, one), Draw(0, epochs))
        for ragged, one in ((before, FIRST), (after, LAST))
    )
    starts_BN = np.array([[0, 38]] * 4)
    for batch in (first, last):
        weights_BK, left_BK = batch["sbo_weights_BK"], batch["sbo_left_positions_BK"]
        example_BK = (batch["mlm_positions_BK"] >= 38).astype(int)
        has_left_BK = left_BK >= np.take_along_axis(starts_BN, example_BK, axis=1)
        assert has_left_BK[weights_BK > 0].all() and (left_BK >= 0).all()
    predicted = [np.count_nonzero(batch["mlm_weights_BK"]) for batch in (first, last)]
    assert predicted[0] == np.count_nonzero(first["sbo_weights_BK"])
    assert predicted[1] > np.count_nonzero(last["sbo_weights_BK"]) > 0


@pytest.fixture(scope="module")
def tokenizers():
    """A tokenizer, and the same with a template that puts [CLS] last."""
    ours = models.trained()
    cls, sep = ((ours.piece(number), number) for number in (ours.cls_id, ours.sep_id))
    described = [ours.description | {"post_processor": template(cls, sep, 1, last)} for last in (False, True)]
    return [tokenizer_json.from_json(json.dumps(description).encode(), "test") for description in described]


def test_the_template_of_a_tokenizer_says_where_cls_is(tokenizers, tmp_path):
    first, last = tokenizers
    assert (first.cls_last, last.cls_last) == (False, True)
    rows = [one.rows(["ab ad", "ce"], seq_len=8)[0] for one in (first, last)]
    for a, b in zip(*rows, strict=True):
        used = int((a != first.pad_id).sum())
        assert b[:used].tolist() == [*a[1:used], last.cls_id] and (b[used:] == last.pad_id).all()
    last.save(tmp_path)
    assert Vocabulary.of(tokenizer.load(tmp_path)).cls_last and not Vocabulary.of(first).cls_last


def test_answers_have_the_same_tokens_and_no_answer_is_cls(tokenizers):
    context = "ab ad ce afe cafe decade faced ab ad ce afe cafe decade faced"
    records = [
        {"question": "ab?", "context": context, "answers": [{"text": "cafe decade", "answer_start": 13}]},
        {"question": "ce ab", "context": context, "answers": []},
    ]
    answers = []
    for one in tokenizers:
        encoded = Questions(stride=4, max_question=4).encode(records, one, 24, ("answer", NO_ANSWER)).ragged
        tokens = encoded.token_lists()
        spans = zip(encoded.labels["start"], encoded.labels["end"], encoded.cls_index, tokens, strict=True)
        answers.append([row[start : end + 1].tolist() for start, end, _, row in spans])
        outside = encoded.labels["start"] == encoded.cls_index
        assert outside[-1] and not outside.all()
    assert answers[0] == answers[1] and len({tuple(answer) for answer in answers[0]}) > 1


def test_a_causal_model_whose_first_token_nothing_would_predict_is_refused(tokenizers, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    tokenizers[1].save(tmp_path / "tokenizer")
    draw = np.random.default_rng(0)
    texts = [" ".join(map("".join, draw.choice(list("abcdef"), (12, 4)))) + "." for _ in range(40)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    data = {"corpus": str(tmp_path / "corpus.txt"), "store": str(tmp_path / "stores"), "heldout_share": 0.2}
    task = {"objective": {"kind": "causal"}, "examples": {"kind": "full_sentences"}}
    model = models.SIZES | {"direction": "left_to_right", "embeddings": {"segments": 0}}
    settings = {"model": model, "tasks": {"causal": task}}
    settings |= {"stages": [{"steps": 10, "seq_len": 16, "batch": 2}], "optimizer": {"warmup_steps": 1}}
    config = from_dict(settings | {"data": data | {"tokenizer": {"model": str(tmp_path / "tokenizer")}}})
    with pytest.raises(
        UserError, match=r"^the tokenizer is XLNet's, with \[CLS\] last, and objective.kind=causal .* an"
    ):
        open_feeds(config)
