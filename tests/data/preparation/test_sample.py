"""The tokenizer's sample: bounded, uniform, in the order of the corpus, and with no trace of the cuts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.config import SPLITTERS
from bertjax.data.preparation import sample
from bertjax.data.preparation.sample import STRETCH, Sample
from bertjax.data.preparation.steps import Key, digest
from bertjax.data.text.sentences import split


def drawn(texts, characters):
    result = Sample(characters)
    for index, text in enumerate(texts):
        result.add(index, digest(text), text)
    return result.sentences("line")


def test_it_is_uniform_ordered_and_bounded():
    texts = [f"{i:04}" for i in range(1000)]
    some = drawn(texts, 400)
    assert len(some) == 100 and some == sorted(some) == drawn(texts, 400)
    assert 400 < np.mean([int(sentence) for sentence in some]) < 600
    assert drawn(texts, 4000) == texts
    assert len(drawn(texts, 1)) == 1


def test_long_documents_are_drawn_in_stretches_of_whole_lines():
    lines = [f"{i:05} " + "x" * 93 for i in range(20_000)]
    some = drawn(["\n".join(lines)], 200_000)
    assert set(some) <= set(lines) and 190_000 < sum(map(len, some)) <= 200_000
    assert 8_000 < np.mean([int(line[:5]) for line in some]) < 12_000


def test_dropped_documents_are_left_out(tmp_path):
    whole, keys = Sample(100), [Key(0, 0, number, number) for number in (1, 2, 3)]
    for key, text in zip(keys, ("one", "two", "three"), strict=True):
        whole.add(key, digest(text), text)
    sample.save(whole, tmp_path / "sample")
    is_second = lambda packed: packed == keys[1].packed()  # noqa: E731
    assert sample.merged(100, [tmp_path / "sample"], is_second) == ["one", "three"]


def test_a_line_without_end_is_cut():
    long = "word " * 100_000
    assert sum(map(len, drawn([long], 20 * STRETCH))) <= 20 * STRETCH
    assert drawn(["x" * 1_000_000], 1) and len(drawn(["x" * 1_000_000], 1)[0]) == sample.LONGEST_STRETCH


@pytest.mark.parametrize("splitter", SPLITTERS)
@given(texts=st.lists(st.text(st.sampled_from("aI1가.!?”() \t\n\r\u2028"), max_size=200), unique=True))
def test_a_corpus_that_fits_is_the_sample(splitter, texts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "STRETCH", 8)
        patch.setattr(sample, "LONGEST_STRETCH", 16)
        whole = Sample(10_000)
        for index, text in enumerate(texts):
            whole.add(index, digest(text), text)
        assert whole.sentences(splitter) == [sentence for text in texts for sentence in split(text, splitter)]
