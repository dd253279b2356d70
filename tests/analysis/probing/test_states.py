"""States of words and texts, however rows are packed."""

import numpy as np
import pytest

from bertjax.analysis.probing.contextuality import word_starts
from bertjax.analysis.probing.states import computed
from tests.analysis.conftest import packed_rows


@pytest.fixture(scope="module")
def encoded(pretrained, texts):
    return texts.encoded(pretrained)


def states_of(subject, encoded, batches, unit_of):
    with computed(subject.encoder, subject.params, batches, encoded.ragged, unit_of) as states:
        return np.array(states)


def test_a_unit_is_the_mean_of_its_tokens(pretrained, encoded):
    ragged = encoded.ragged
    batches = list(encoded.batches(pretrained.encoder))
    tokens = states_of(pretrained, encoded, batches, np.arange(len(ragged.tokens)))
    assert tokens.shape == (len(ragged.tokens), 4, 32)
    texts = states_of(pretrained, encoded, batches, ragged.token_examples)
    for example in range(len(encoded)):
        own = tokens[ragged.offsets[example] : ragged.offsets[example + 1]]
        np.testing.assert_allclose(texts[example], own.mean(axis=0), atol=1e-5)
    starts = word_starts(ragged, encoded.vocabulary)
    words = states_of(pretrained, encoded, batches, np.where(starts, np.cumsum(starts) - 1, -1))
    np.testing.assert_array_equal(words, tokens[starts])


def test_packed_rows_have_the_same_states(pretrained, encoded):
    unit_of = np.arange(len(encoded.ragged.tokens))
    alone = states_of(pretrained, encoded, encoded.batches(pretrained.encoder), unit_of)
    rows_BN = packed_rows(encoded.ragged.lengths, 64)
    assert (rows_BN[:, 1] >= 0).any()
    packed = states_of(pretrained, encoded, [encoded.batch(rows_BN, 64)], unit_of)
    np.testing.assert_allclose(packed, alone, atol=2e-5)


def test_the_last_state_is_the_output_of_the_encoder(pretrained, encoded):
    from bertjax.inference.predictor import Predictor

    records = [encoded.records[index] for index in encoded.record_of[:5]]
    vectors = Predictor(pretrained.export).embed([record["text"] for record in records])
    texts = states_of(pretrained, encoded, encoded.batches(pretrained.encoder), encoded.ragged.token_examples)
    np.testing.assert_allclose(texts[:5, -1], vectors, atol=1e-5)
