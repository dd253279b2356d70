"""The registry of example formats: kinds, labels, and errors of classes that do not fit."""

import pytest

from bertjax.data.formats import FORMATS
from bertjax.runtime.errors import UserError
from tests.data.formats.splits import made, split_of


@pytest.mark.parametrize(
    "kind, documents, seq_len, message",
    [
        ("segment_pairs", [[5], [5, 5]], 4, "seq_len=4 cannot hold a sentence pair; use at least 5"),
        ("doc_sentences", [[5], [5]], 2, "seq_len=2 cannot hold a sentence; use at least 3"),
        ("sentence_reordering", [[3], [4]], 4, "seq_len=4 cannot hold three segments; use at least 5"),
        ("sentence_order", [[5], [6], [7]], 64, "examples.kind=sentence_order pairs sentences, but no"),
        ("segment_pairs", [[5, 5]], 64, "sentence pairs need at least two documents and there is 1; add documents"),
        ("sentence_pairs", [[5, 5]], 64, "sentence pairs need at least two documents and there is 1"),
        ("sentence_structure", [[5, 5]], 64, "sentence pairs need at least two documents and there is 1"),
    ],
)
def test_text_and_rows_without_an_example_are_refused(kind, documents, seq_len, message):
    with pytest.raises(UserError, match=f"^{message}"):
        made(FORMATS.class_of(kind)(), split_of(documents), seq_len)
