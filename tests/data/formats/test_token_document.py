"""Token-document examples: the label of each token and its reach."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.formats.token_document import TokenDocument
from bertjax.runtime.errors import UserError
from tests.data.formats import splits
from tests.data.formats.splits import FIRST_TOKEN, made, split_of


@given(splits.documents, st.integers(4, 20), st.integers(1, 40), st.integers(1, 12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_token_is_elsewhere_if_its_document_has_it_within_reach(
    tmp_path_factory, documents, seq_len, reach, words, at_tokens
):
    split = split_of(documents)
    tokens = FIRST_TOKEN + np.random.default_rng(0).integers(0, min(words, len(split.tokens)), len(split.tokens))
    split.tokens[:] = tokens
    examples = TokenDocument(reach=reach, cut="tokens" if at_tokens else "sentences")
    ranges = made(examples, split, seq_len).ranges
    stored = splits.examples_of(examples, split, ranges, tmp_path_factory.mktemp("ranges") / "ranges.npy")
    indices = np.arange(len(stored))[::-1]
    ragged = stored.take(indices)
    elsewhere = np.split(ragged.token_labels["elsewhere"], ragged.offsets[1:-1])
    edges = split.sentences[split.documents]
    for labels, (start, stop, *_) in zip(elsewhere, ranges[indices], strict=True):
        begin, end = edges[edges <= start].max(), edges[edges > start].min()
        outside = {*tokens[max(begin, start - reach) : start], *tokens[stop : min(end, stop + reach)]}
        assert labels.tolist() == [-1, *(int(token in outside) for token in tokens[start:stop]), -1]


def test_reach_must_be_at_least_one_token():
    with pytest.raises(UserError, match="^examples.reach=0 must be at least 1$"):
        dataclasses.replace(TokenDocument(), reach=0)
