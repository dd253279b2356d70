"""The suggested vocabulary: the rule of Gowda & May on counts where its answer is known."""

import numpy as np
import pytest

from bertjax.data.report import suggested_types


def test_pieces_that_are_frequent_enough_bound_a_vocabulary_that_breaks_the_rule():
    counts = np.array([1000] * 190 + [99] * 810)
    assert suggested_types(counts) == 200


@pytest.mark.parametrize("types", [500, 2000])
def test_zipf_extends_a_vocabulary_that_keeps_the_rule(types):
    zipf = 1_000_000 / np.arange(1, types + 1)
    assert suggested_types(zipf.astype(np.int64)) == pytest.approx(10_000 / 0.95, rel=0.02)


def test_equally_frequent_pieces_suggest_no_more_than_there_are():
    assert suggested_types(np.full(300, 1000)) == 300
