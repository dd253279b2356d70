"""The registry of example formats: kinds, labels, and errors of classes that do not fit."""

import dataclasses

import pytest

from bertjax.data.formats import FORMATS, KINDS, LABELED_KINDS, kinds_with
from bertjax.data.formats.base import TextFormat
from bertjax.data.formats.segments import SegmentPairs
from bertjax.runtime.errors import UserError


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


def test_formats_are_found_by_their_labels():
    assert kinds_with(("is_random",)) == ["segment_pairs", "sentence_pairs"]
    assert kinds_with(("is_swapped",)) == ["sentence_order"]
    assert kinds_with(("order",)) == ["sentence_structure"]
    assert kinds_with(()) == [*KINDS, *LABELED_KINDS]
    assert kinds_with(("answer",)) == []


@pytest.mark.parametrize(
    "kind, message",
    [
        ("nope", "^examples.kind='nope' is unknown; choose one of segment_pairs, .*, or name module:Class$"),
        ("no_such_module:X", "asks to import the module 'no_such_module', which runs its code; .* add --trust-code"),
        (
            "bertjax.data.formats:Nothing",
            "cannot be used: bertjax.data.formats has no class 'Nothing'; correct the name",
        ),
        (
            "bertjax.data.formats:KINDS",
            "is not a subclass of ExampleFormat; derive it from bertjax.data.formats.base.ExampleFormat$",
        ),
        (f"{__name__}:Renamed", "names a class whose own kind is 'short'; make them the same$"),
    ],
)
def test_unknown_formats_are_refused(kind, message):
    with pytest.raises(UserError, match=message):
        FORMATS.class_of(kind)


def test_a_missing_method_of_a_format_is_named():
    with pytest.raises(TypeError, match=r"^Elsewhere has no blocks\(\)$"):
        Elsewhere().blocks(None, 128, 0)
    with pytest.raises(TypeError, match=r"^Elsewhere has no open\(\)$"):
        Elsewhere().open(None, "train", None)
