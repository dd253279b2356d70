"""The registry of example formats: kinds, labels, and errors of classes that do not fit."""

import dataclasses

import pytest

from bertjax.data.formats import FORMATS, KINDS, LABELED_KINDS, TextFormat, kinds_with
from bertjax.data.formats.segments import SegmentPairs
from bertjax.runtime.errors import UserError
from tests.data.formats.splits import made, split_of


@dataclasses.dataclass(frozen=True)
class Elsewhere(TextFormat):
    """A format of a module outside of bertjax."""


@dataclasses.dataclass(frozen=True)
class Renamed(TextFormat):
    """A format with another kind than its name."""

    kind: str = dataclasses.field(init=False, default="short")


def test_every_kind_finds_its_class():
    assert {kind: FORMATS.class_of(kind)().kind for kind in KINDS} == {kind: kind for kind in KINDS}
    assert FORMATS.class_of(None) is SegmentPairs
    assert FORMATS.class_of(f"{__name__}:Elsewhere") is Elsewhere and Elsewhere().kind == f"{__name__}:Elsewhere"
    with pytest.raises(UserError, match="names a class whose own kind is 'short'; make them the same$"):
        FORMATS.class_of(f"{__name__}:Renamed")


def test_formats_are_found_by_their_labels():
    assert kinds_with(("is_random",)) == ["segment_pairs", "sentence_pairs"]
    assert kinds_with(("is_swapped",)) == ["sentence_order"]
    assert kinds_with(("order",)) == ["sentence_structure"]
    assert kinds_with(()) == [*KINDS, *LABELED_KINDS]
    assert kinds_with(("answer",)) == []


def test_a_missing_method_of_a_format_is_named():
    with pytest.raises(TypeError, match=r"^Elsewhere has no blocks\(\)$"):
        Elsewhere().blocks(None, 128, 0)
    with pytest.raises(TypeError, match=r"^Elsewhere has no open\(\)$"):
        Elsewhere().open(None, "train", None)


@pytest.mark.parametrize(
    "kind, settings, message",
    [
        ("sentence_order", {"trim": "outer_ends"}, "outer_ends.*random_end"),
        ("sentence_structure", {"trim": "outer_ends"}, "outer_ends.*random_end"),
    ],
)
def test_bad_settings_are_refused(kind, settings, message):
    with pytest.raises(UserError, match=message):
        FORMATS.class_of(kind)(**settings)


@pytest.mark.parametrize(
    "kind, documents, seq_len, message",
    [
        ("segment_pairs", [[5], [5, 5]], 4, "seq_len=4 cannot hold a sentence pair; use at least 5"),
        ("doc_sentences", [[5], [5]], 2, "seq_len=2 cannot hold a sentence; use at least 3"),
        ("sentence_reordering", [[3], [4]], 4, "seq_len=4 cannot hold three segments; use at least 5"),
        (
            "sentence_order",
            [[5], [6], [7]],
            64,
            "examples.kind=sentence_order pairs consecutive sentences, but no",
        ),
        ("segment_pairs", [[5, 5]], 64, "sentence pairs need at least two documents and there is 1; add documents"),
        ("sentence_pairs", [[5, 5]], 64, "sentence pairs need at least two documents and there is 1"),
        ("sentence_structure", [[5, 5]], 64, "sentence pairs need at least two documents and there is 1"),
    ],
)
def test_text_and_rows_without_an_example_are_refused(kind, documents, seq_len, message):
    with pytest.raises(UserError, match=f"^{message}"):
        made(FORMATS.class_of(kind)(), split_of(documents), seq_len)
