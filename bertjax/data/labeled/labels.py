"""Labels of the records of a table: what is no label, their types, and the names of classes."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from bertjax.data.labeled.base import WHERE, Record
from bertjax.errors import UserError

_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text"}


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
    """Return the name of the class of a label; 1.0 is `1`."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def number_of(label: Any) -> float:
    """Return a label as a number, NaN if it is not finite or not a number."""
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _kind_of(label: Any) -> str:
    return "" if label != label else _KINDS.get(type(label), "")
