"""Labels of the records of a table: missing ones, their types, and the names and the order of classes."""

import decimal
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from bertjax.data.labeled.base import WHERE, Record
from bertjax.errors import UserError

# What SNLI and others write in place of a label on which the annotators did not agree; their copy in the package
# `datasets` writes the number.
NO_GOLD_LABEL, NO_GOLD_NUMBER = "-", "-1"
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
# White space, and characters without width: no reader sees them at the edge of a name.
_INVISIBLE = r"\s\u00ad\u200b-\u200f\u2060\ufeff"
_EDGES = re.compile(rf"^[{_INVISIBLE}]+|[{_INVISIBLE}]+$")
_ANYWHERE = re.compile(f"[{_INVISIBLE}]+")
# A whole number as pandas writes it into a column that lacks a value: 1.0. Codes such as 007 stay texts.
_WHOLE_FLOAT = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# The names that transformers gives to classes without one.
_UNNAMED = re.compile(r"LABEL_(\d+)")


def is_missing(label: Any) -> bool:
    """Return whether a label is empty, NaN, null or `-`."""
    if label is None or label != label:
        return True
    return isinstance(label, str) and _EDGES.sub("", label) in ("", NO_GOLD_LABEL)


def usual_kind(labels: Iterable[Any]) -> str:
    """Return what most labels of a file are, such as `a number`; empty if none is a label."""
    kinds = Counter(kind for label in labels if (kind := _kind_of(label)))
    return kinds.most_common(1)[0][0] if kinds else ""


def check(record: Record, column: str, usual: str) -> None:
    """Raise UserError unless a record has a label of the usual kind: the text "1" and the number 1 are two classes."""
    label, where = record[column], record[WHERE]
    if label is None or label != label or (isinstance(label, str) and not label.strip()):
        raise UserError(f"{where} has no label in {column!r}; fill it in or leave the row out")
    if not (kind := _kind_of(label)):
        raise UserError(f"{where} has the label {str(label)[:40]!r} in {column!r}; write a text or a number")
    if kind != usual:
        raise UserError(
            f"{where} has the label {str(label)[:40]!r}, which is {kind}, and other labels of the file are {usual}; "
            "write all labels in the same way"
        )


def class_of(label: Any) -> str:
    """Return the name of the class of a label, in NFC and without white space at its edges; 1.0 is `1`."""
    text = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
    name = _EDGES.sub("", unicodedata.normalize("NFC", text))
    return whole[1] if (whole := _WHOLE_FLOAT.fullmatch(name)) else name


def number_of(label: Any) -> float:
    """Return a label as a number, NaN if it is not finite or not a number."""
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of classes in the order of their numbers: sorted, as numbers if all of them are numbers.

    So the class `10` of a file is the output 10 of a model, and not output 2.
    """
    names = list(names)
    if all(map(_NUMBER.fullmatch, names)):
        return tuple(sorted(names, key=lambda name: (decimal.Decimal(name), name)))
    return tuple(sorted(names))


def are_counted(names: Collection[str]) -> bool:
    """Return whether names are the numbers 0, 1, 2 and so on, at least two of them."""
    return len(names) > 1 and set(names) == set(map(str, range(len(names))))


def alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of names that a reader takes for one: equal but for case, white space or compatible forms."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_key(name), []).append(name)
    return [tuple(sorted(group)) for group in groups.values() if len(group) > 1]


def matched(names: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """Return {name: the class that it means} for all names that mean exactly one class.

    Equal names mean each other. So do names that differ only as `alike` ones do, such as `ENTAILMENT` and `entailment`,
    and `LABEL_2`, which transformers writes for a class without a name, and the number `2`.

    Args:
      names: names of the classes of a file or of a model.
      classes: names of the classes of another one.
    """
    exact = {name: name for name in names if name in set(classes)}
    ours = {name: _meaning(name) for name in names if name not in exact}
    theirs = {name: _meaning(name) for name in classes if name not in exact}
    of_meaning = {meaning: name for name, meaning in theirs.items()}
    times, their_times = Counter(ours.values()), Counter(theirs.values())
    is_clear = {meaning for meaning in times if times[meaning] == their_times[meaning] == 1}
    return exact | {name: of_meaning[meaning] for name, meaning in ours.items() if meaning in is_clear}


def _meaning(name: str) -> str:
    return _UNNAMED.sub(r"\1", _key(name).upper())


def _key(name: str) -> str:
    return _ANYWHERE.sub("", unicodedata.normalize("NFKC", name)).casefold()


def _kind_of(label: Any) -> str:
    return "" if label != label else _KINDS.get(type(label), "")
