"""Labels: missing ones, mixed types, class names and their order, the class names of a model, and schemes of tags."""

import decimal
import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from bertjax.data.labeled.base import WHERE, LabeledFormat, Record
from bertjax.runtime.errors import UserError, say, shorten

# SNLI and others write - if the annotators did not agree on a label; the copies in the `datasets` library write -1, and
# files made for transformers -100, which its losses ignore.
NO_GOLD_LABEL, NO_GOLD_NUMBERS = "-", ("-1", "-100")
IGNORED = NO_GOLD_NUMBERS[-1]
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
# White space and zero-width characters, which nobody sees at the edge of a name.
_INVISIBLE = r"\s\u00ad\u200b-\u200f\u2060\ufeff"
_EDGES = re.compile(rf"^[{_INVISIBLE}]+|[{_INVISIBLE}]+$")
_ANYWHERE = re.compile(f"[{_INVISIBLE}]+")
# pandas turns integer columns with a missing value into floats, so that 1 becomes 1.0. Codes such as 007 stay text.
_WHOLE_FLOAT = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# transformers gives these names to unnamed classes.
_UNNAMED = re.compile(r"^LABEL_(\d+)$")


def is_missing(label: Any) -> bool:
    """Return whether a label is empty, NaN, null or `-`."""
    if label is None or label != label:
        return True
    return isinstance(label, str) and _EDGES.sub("", label) in ("", NO_GOLD_LABEL)


def usual_kind(labels: Iterable[Any]) -> str:
    """Return the most common label type, such as `a number`; empty without labels."""
    kinds = Counter(kind for label in labels if (kind := _kind_of(label)))
    return kinds.most_common(1)[0][0] if kinds else ""


def check(record: Record, column: str, usual: str) -> None:
    """Raise UserError unless a label has the usual type: the text "1" beside the number 1 is a mistake in the file."""
    label = record[column]
    kind = "" if isinstance(label, str) and not label.strip() else _kind_of(label)
    if not kind or kind != usual:
        what = f"{str(label)[:40]!r} in {column!r}, which is {kind or 'blank, or neither a text nor a number'}"
        others = f" in all records, where most labels are {usual}" if usual else ""
        raise UserError(f"{record[WHERE]} has the label {what}; write a text or a number{others}")


def class_of(label: Any) -> str:
    """Return a label's class name: in NFC, stripped, and `1` for 1.0."""
    text = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
    # NFC: the same label has other code points if it was typed on macOS.
    name = _EDGES.sub("", unicodedata.normalize("NFC", text))
    return whole[1] if (whole := _WHOLE_FLOAT.fullmatch(name)) else name


def number_of(label: Any) -> float:
    """Return a label as a float; NaN if it is not a finite number, as true and false are not."""
    try:
        number = math.nan if isinstance(label, bool) else float(label)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return class names in index order: sorted, numerically if all are numbers.

    Numerical order makes class `10` output 10. In alphabetical order it would be output 2.
    """
    names = list(names)
    # Decimal compares numbers of more than 16 digits exactly, which float does not.
    if all(map(_NUMBER.fullmatch, names)):
        return tuple(sorted(names, key=lambda name: (decimal.Decimal(name), name)))
    return tuple(sorted(names))


def missing_beside(names: Collection[str]) -> tuple[str, ...]:
    """Return the numbers that mean "no label" beside these classes: -100 and, beside 0, 1, 2, ..., also -1."""
    # Models of transformers may have LABEL_0, LABEL_1 and so on.
    numbers = {_UNNAMED.sub(r"\1", name) for name in names}
    if len(numbers) > 1 and numbers == set(map(str, range(len(numbers)))):
        return NO_GOLD_NUMBERS
    # Among other numbers, -100 may be a class of its own.
    return () if any(map(_NUMBER.fullmatch, names)) else (IGNORED,)


# What people write between the names of several labels.
MARKS = ",;|#/+\t "


def mark_between(texts: Collection[str], most: int, marks: str = MARKS) -> str:
    """Return the mark in texts that divides them into the fewest names; empty if none gives fewer than `most`."""
    present = [mark for mark in marks if any(mark in text for text in texts)]
    counts = {mark: len({class_of(name) for text in texts for name in text.split(mark)}) for mark in present}
    best = min(present, key=counts.__getitem__, default="")
    return best if best and counts[best] < most else ""


def alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of names that differ only in case, white space or compatibility forms (NFKC)."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_key(name), []).append(name)
    return [tuple(sorted(group)) for group in groups.values() if len(group) > 1]


def matched(names: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """Match two sets of class names; return {name: class} for every name with exactly one counterpart.

    Equal names match. So do names that are `alike`, such as `ENTAILMENT` and `entailment`, and `LABEL_2`, which
    transformers writes for unnamed classes, and `2`.

    Args:
      names: class names in a file or a model.
      classes: class names in another one.
    """
    known = set(classes)
    exact = {name: name for name in names if name in known}
    # Exact matches come first, so that `Positive` and `positive` in one file stay two classes.
    ours = {name: _meaning(name) for name in names if name not in exact}
    theirs = {name: _meaning(name) for name in classes if name not in exact}
    of_meaning = {meaning: name for name, meaning in theirs.items()}
    # A meaning that either side has twice is ambiguous and matches nothing.
    times, their_times = Counter(ours.values()), Counter(theirs.values())
    is_clear = {meaning for meaning in times if times[meaning] == their_times[meaning] == 1}
    return exact | {name: of_meaning[meaning] for name, meaning in ours.items() if meaning in is_clear}


def places_of(names: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """Return the index in `classes` of each name; None unless both are the same set, see `matched`."""
    pairs = matched(names, classes)
    if len(names) != len(classes) or len(set(pairs.values())) != len(classes):
        return None
    places = {name: place for place, name in enumerate(classes)}
    return [places[pairs[name]] for name in names]


def _meaning(name: str) -> str:
    return _UNNAMED.sub(r"\1", _key(name).upper())


def _key(name: str) -> str:
    return _ANYWHERE.sub("", unicodedata.normalize("NFKC", name)).casefold()


def _kind_of(label: Any) -> str:
    return "" if label != label else _KINDS.get(type(label), "")


def with_names_of(classes: tuple[str, ...], records: list[Record], examples: LabeledFormat, path: str) -> list[Record]:
    """Rename labels to the model's class names, such as `1` to `LABEL_1`, if the match is unambiguous."""
    names = list(examples.class_counts(records))
    new = matched(names, classes)
    # Two labels that match one class would be merged, so such a file is left alone.
    if set(names) <= set(classes) or len(new) < len(names) or len(set(new.values())) < len(names):
        return records  # the labels that the model lacks are refused one by one
    changed = [f"{name} as {new[name]}" for name in ordered(names) if name != new[name]]
    say(f"{path}: labels are taken for the classes of the model: {shorten(changed, 8)}", file=sys.stderr)
    field = "tags" if examples.kind == "tagged" else getattr(examples, "label", "")

    def renamed(value: Any) -> Any:
        return [new[name] for name in value] if isinstance(value, list) else new[class_of(value)]

    return [record | {field: renamed(record[field])} for record in records]


# Tagging schemes of entities: IOB1, IOB2, IOBES, BILOU and BMES, in all common spellings. A tag combines a word's
# position in an entity with the entity type: `B-PER`, `B_PER`, `PER-B`, `PER_B`, or only `B` if there is one type.
# Every scheme maps to the positions in IOBES (`B`egin, `I`nside, `E`nd, `S`ingle): BILOU writes `L`ast and `U`nit
# (Ratinov & Roth, 2009), BMES writes `M`iddle, and BMEWO writes `W`hole.
OUTSIDE = "O"
_PLACES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I", "W": "S"}
_LETTERS = "".join(_PLACES)
# Position and type, most popular spelling first.
_SPELLINGS = (
    re.compile(rf"(?P<place>[{_LETTERS}])[-_](?P<type>.+)", re.IGNORECASE),
    re.compile(rf"(?P<type>.+)[-_](?P<place>[{_LETTERS}])", re.IGNORECASE),
    re.compile(rf"(?P<place>[{_LETTERS}])(?P<type>)", re.IGNORECASE),
)

Canonical = Callable[[str], str]


def canonical_of(tags: Iterable[str]) -> Canonical | None:
    """Return a function that rewrites tags to IOBES, such as `U_PER` to `S-PER`; None if there is no scheme.

    Args:
      tags: all tags in a file or a model. They follow a scheme if all except `O` have one spelling and some tag can
        start an entity. Part-of-speech tags do not, although some are single letters.
    """
    tags = [tag for tag in tags if tag.upper() != OUTSIDE]
    for spelling in _SPELLINGS:
        matches = [spelling.fullmatch(tag) for tag in tags]
        if tags and all(matches) and {_PLACES[match["place"].upper()] for match in matches} & set("BIS"):
            # Single letters may be parts of speech, or mark upper and lower case (U, L). Entities begin with B or I.
            if spelling is _SPELLINGS[-1] and not {"b", "i"} & {tag.lower() for tag in tags}:
                continue
            return lambda tag, spelling=spelling: _canonical(tag, spelling)
    return None


def misfits(tags: Iterable[str]) -> list[str]:
    """Return the tags that are spelled unlike most others, which follow a scheme: a typo, or another sign than `O`."""
    tags = sorted({tag for tag in tags if tag.upper() != OUTSIDE})
    for spelling in _SPELLINGS[:2]:
        fitting = [tag for tag in tags if spelling.fullmatch(tag)]
        if 2 * len(fitting) >= len(tags) and canonical_of(fitting):
            return [tag for tag in tags if tag not in fitting]
    return []


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (type, first word, last word) for each entity in a sentence; `tags` are in IOB or IOBES."""
    found, before = [], OUTSIDE
    for word, tag in enumerate(tags):
        if tag != OUTSIDE:
            if _starts(before, tag):
                found.append((tag[2:], word, word))
            else:  # the last entity goes on
                kind, first, _ = found[-1]
                found[-1] = (kind, first, word)
        before = tag
    return set(found)


def _starts(before: str, tag: str) -> bool:
    """Return whether a tag other than O starts a new entity, given the tag before it."""
    # A change of type also starts one, which covers IOB1, where B appears only between entities of one type.
    return before == OUTSIDE or before[0] in "ES" or tag[0] in "BS" or before[2:] != tag[2:]


def _canonical(tag: str, spelling: re.Pattern) -> str:
    match = spelling.fullmatch(tag)
    return f"{_PLACES[match['place'].upper()]}-{match['type']}" if match else OUTSIDE
