"""Counts of characters: the same as one by one, in the same order."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.inspect import characters


@given(sentences=st.lists(st.text(st.sampled_from("ab \u00e9\uac00\U0001f600")), max_size=12), block=st.integers(1, 4))
def test_characters_are_counted_in_the_order_in_which_they_are_seen(sentences, block):
    expected = collections.Counter("".join(sentences))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(characters, "_BLOCK", block)
        assert characters._counts(sentences).most_common() == expected.most_common()
