"""Packed rows, from the token store through the real model: the same loss as rows of one example, and no leak."""

import jax
import numpy as np
import pytest

from bertjax.config.config import Config, Task
from bertjax.data.formats import FORMATS, KINDS
from bertjax.data.pipeline import Feed
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT, SentenceOrderPrediction, SentenceStructurePrediction
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds

T = 64
FILLS_ITS_ROWS = "full_sentences"
# Pairs, three segments, texts of one document, and pairs of tokens: the others are framed as one of these.
FRAMED = ("segment_pairs", "sentence_structure", FILLS_ITS_ROWS, "token_document")
OBJECTIVES = {
    "segment_pairs": BERT(),
    "sentence_pairs": BERT(),
    "sentence_order": SentenceOrderPrediction(),
    "sentence_structure": SentenceStructurePrediction(),
}


def feed_of(store, kind: str, row_examples: int) -> Feed:
    task = Task(OBJECTIVES.get(kind, MaskedLM()), FORMATS.class_of(kind)(), row_examples)
    return Feeds(Config(tasks={"task": task}), store).feed("train", T)


def all_rows(feed: Feed) -> dict[str, np.ndarray]:
    return feed.batch(np.arange(feed.plans[0].counts.rows))


@pytest.fixture(scope="module")
def encoder(store) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=store.tokenizer.vocab_size,
        layers=2,
        width=16,
        heads=2,
        feedforward=32,
        max_positions=T,
        dropout=0.0,
        attention_dropout=0.0,
        init_stddev=0.2,
    )


@pytest.mark.parametrize("kind", FRAMED)
def test_the_packed_loss_is_the_sum_of_the_unpacked_losses(store, encoder, kind):
    alone, packed = (all_rows(feed_of(store, kind, row_examples)) for row_examples in (1, 8))
    assert kind == FILLS_ITS_ROWS or len(packed["tokens_BT"]) < len(alone["tokens_BT"])
    assert (packed["example_ids_BN"] >= 0).sum() == (alone["example_ids_BN"] >= 0).sum()
    assert packed["mlm_dropped_B"].sum() == alone["mlm_dropped_B"].sum() == 0
    objective = OBJECTIVES.get(kind, MaskedLM())
    module = objective.model(encoder)
    params = jax.jit(lambda key: objective.init(module, key, jax.tree.map(lambda x: x[:1], alone)))(jax.random.key(0))
    terms = jax.jit(lambda batch: objective.terms(module, params, None, batch, jax.random.key(0), False))
    (sums, metrics), (sums_packed, metrics_packed) = terms(alone), terms(packed)
    for term, total in sums.items():
        np.testing.assert_allclose(sums_packed[term], total, rtol=1e-5)
        np.testing.assert_allclose(objective.weights(packed)[term], objective.weights(alone)[term])
    for name, (right, weight) in metrics.items():
        np.testing.assert_allclose(metrics_packed[name], (right, weight), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_several_examples_of_bounded_length(store, kind):
    """So a row may be longer than the position table, whose rows are the positions."""
    examples = FORMATS.class_of(kind)(max_tokens=T // 4)
    task = Task(OBJECTIVES.get(kind, MaskedLM()), examples, row_examples=8)
    config = Config(model=EncoderConfig(max_positions=T // 4), tasks={"task": task}, stages=(Stage(seq_len=T),))
    batch = all_rows(Feeds(config, store).train["task", T])
    assert batch["positions_BT"].max() < T // 4 == examples.longest(T)
    assert np.mean((batch["examples_BT"] > 0).sum(axis=1)) > T // 2
    full = all_rows(feed_of(store, kind, 8))
    assert full["positions_BT"].max() >= T // 4


@pytest.mark.parametrize("kind", ["segment_pairs", "sentence_structure"])
def test_examples_of_a_row_do_not_affect_each_other(store, encoder, kind):
    """Bit for bit; that the gradients are zero too is a test of the encoder."""
    batch = all_rows(feed_of(store, kind, 8))
    fullest = np.argmax((batch["example_ids_BN"] >= 0).sum(axis=1))
    row = {name: values[fullest : fullest + 1] for name, values in batch.items()}
    second_T = row["examples_BT"][0] == 2
    assert second_T.any()
    places = (row["segments_BT"], row["positions_BT"], row["examples_BT"], row["summary_positions_BN"])
    module = Encoder(encoder)
    params, apply = jax.jit(module.init)(jax.random.key(0), row["tokens_BT"]), jax.jit(module.apply)
    others = np.where(second_T, (row["tokens_BT"] + 11) % encoder.vocab_size, row["tokens_BT"])
    before_TD, after_TD = (apply(params, tokens, *places).hidden[0] for tokens in (row["tokens_BT"], others))
    assert (before_TD[second_T] != after_TD[second_T]).any(axis=-1).all()
    np.testing.assert_array_equal(before_TD[~second_T], after_TD[~second_T])
