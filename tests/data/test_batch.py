"""Placement of examples in rows: packing, padding and dtypes."""

import dataclasses

import numpy as np
import pytest

from bertjax.data.batch import core, place
from bertjax.data.examples import Ragged, Vocabulary

PAD, UNK, SEP, CLS, MASK = range(5)
VOCABULARY = Vocabulary(20, PAD, CLS, SEP, MASK, (PAD, UNK, SEP, CLS, MASK))


@pytest.fixture
def ragged() -> Ragged:
    """[CLS] 10 [SEP] 11 [SEP], [CLS] 12 [SEP] 13 14 [SEP] and [CLS] 15 [SEP] 16 [SEP]."""
    tokens = np.array([CLS, 10, SEP, 11, SEP, CLS, 12, SEP, 13, 14, SEP, CLS, 15, SEP, 16, SEP], np.int32)
    return Ragged(
        tokens=tokens,
        segments=np.array([0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1], np.int32),
        special=VOCABULARY.is_special[tokens],
        offsets=np.array([0, 5, 11, 16]),
        labels={"is_random": np.array([0, 1, 1], np.int32)},
        ids=np.array([70, 80, 90]),
    )


def test_two_examples_in_a_row(ragged):
    placed = place(ragged, np.array([[2, 0], [-1, -1], [-1, 1]]), 12, VOCABULARY)
    expected = {
        "tokens_BT": [
            [CLS, 15, SEP, 16, SEP, CLS, 10, SEP, 11, SEP, PAD, PAD],
            [PAD] * 12,
            [CLS, 12, SEP, 13, 14, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
        ],
        "segments_BT": [[0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0], [0] * 12, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]],
        "positions_BT": [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0], [0] * 12, [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0]],
        "examples_BT": [[1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0], [0] * 12, [2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0]],
        "example_ids_BN": [[90, 70], [-1, -1], [-1, 80]],
        "summary_positions_BN": [[0, 5], [0, 0], [0, 0]],
    }
    batch = core(placed)
    assert batch.keys() == expected.keys()
    for name, array in batch.items():
        assert array.dtype == np.int32
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    np.testing.assert_array_equal(
        placed.examples_to_rows(ragged.labels["is_random"], fill=-1), [[1, 0], [-1, -1], [-1, 1]]
    )


def test_a_row_that_is_too_short_is_an_error(ragged):
    with pytest.raises(ValueError, match="have 11 tokens and the row has 10"):
        place(ragged, np.array([[0, 1], [2, -1]]), 10, VOCABULARY)


@pytest.mark.parametrize("first", [0, 2**31 - 2, 2**31, 2**32 - 1, 5 * 10**12])
def test_no_id_of_an_example_looks_like_an_empty_slot(ragged, first):
    """Several plans have more than 2**31 examples together; an accelerator has ids of 32 bits, and -1 means empty."""
    placed = place(dataclasses.replace(ragged, ids=first + np.arange(3)), np.array([[0, -1], [1, 2]]), 12, VOCABULARY)
    assert placed.ragged.ids.dtype == np.int64 and placed.ragged.ids[2] == first + 2
    ids_BN = core(placed)["example_ids_BN"]
    assert ((ids_BN >= 0) == [[True, False], [True, True]]).all() and len(np.unique(ids_BN)) == 4
