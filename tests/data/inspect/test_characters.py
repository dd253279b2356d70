"""Counts of characters: the same as one by one, in the same order."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.inspect import characters
from bertjax.data.inspect.characters import Characters


@given(sentences=st.lists(st.text(st.sampled_from("ab \u00e9\uac00\U0001f600")), max_size=12), block=st.integers(1, 4))
def test_characters_are_counted_in_the_order_in_which_they_are_seen(sentences, block):
    expected = collections.Counter("".join(sentences))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(characters, "_BLOCK", block)
        assert characters._counts(sentences).most_common() == expected.most_common()


def test_no_flag_without_a_value_is_suggested():
    """Characters that a terminal cannot show are not copied from it."""
    found = Characters(10, 4, {"\u200b": 3, "\u0001": 2}, "[UNK]", {}, 0.0, 0.0, 0)
    lines = "\n".join(found.lines(can_keep=True))
    assert "keep=" not in lines and "to keep all: --config.data.tokenizer.character_coverage=1" in lines
