"""Find the columns of the text and of the label in a table, if only one column can be each."""

import re
import sys
from collections.abc import Collection, Sequence
from typing import Any

from bertjax.data.labeled import json_objects, labels, tables
from bertjax.data.text.unicode import has_unspaced
from bertjax.runtime.errors import UserError, say, shorten

# The value of `examples.text` and `examples.label` that asks for a guess.
AUTO = "auto"
# A label column has at least this many rows per class on average.
_EXAMPLES_A_CLASS = 3
# No class name is longer.
_LONGEST_NAME = 80
# The border of two words of letters: numbers, dates, codes and addresses of mail have none.
_WORDS = re.compile(r"[^\W\d_]\W{0,4}\s\W{0,4}[^\W\d_]")


def columns(path: str, text: str, label: str, taken: Collection[str], quoted: bool) -> tuple[str, str]:
    """Return the columns of text and label in a table, and print them.

    A column that is called `text` or `label` wins. Otherwise the text is the only column whose values are mostly
    different and have several words, and the label is the only one with few values. If the first line is not a header,
    because its label is one that other lines have too, the columns are numbers.

    Args:
      path: the training file.
      text, label: names; `AUTO` for those to find.
      taken: further columns that are known, such as that of a second text.
      quoted: see `tables.read`.

    Raises:
      UserError: the file cannot be read or has no rows; or no column or several columns can be the one, and the message
        lists all columns.
    """
    names, rows = tables.preview(path, quoted)
    if not rows:
        raise UserError(f"{path} has no rows; give a file with at least one")
    # pandas writes an index as a column without a name.
    values = {name: [row[name] for row in rows if not labels.is_missing(row.get(name))] for name in names if name}
    free = [name for name in values if name not in taken]
    if label == AUTO:
        label = _only("label", [name for name in free if name != text and _is_label(values[name])], values, path)
    if text == AUTO:
        text = _only("text", [name for name in free if name != label and _is_text(values[name])], values, path)
    is_numbered = any(name.isdecimal() and name not in names for name in (text, label))
    is_class = label in values and _is_class(label, values[label]) and not json_objects.holds_objects(path)
    # A first line such as `text,spam` names the columns, although `spam` is one of the classes.
    has_one_word = _WORDS.search(text) is None
    if is_class and has_one_word and not is_numbered:
        say(
            f"{path}: its first line, {text!r} and {label!r}, is taken for the names of columns; if it is an example, "
            f"set examples.text={names.index(text)} and examples.label={names.index(label)}",
            file=sys.stderr,
        )
    if is_numbered or (is_class and not has_one_word):
        text, label = (str(names.index(name)) if name in values else name for name in (text, label))
        say(f"{path}: its first line is an example and not the names of columns", file=sys.stderr)
    say(f"{path}: the column of the text is {text!r}{f', that of the label {label!r}' * bool(label)}", file=sys.stderr)
    return text, label


def _only(role: str, candidates: Sequence[str], values: dict[str, list[Any]], path: str) -> str:
    """Return the only candidate for a role, or the column that is called like it."""
    if role in values:
        return role
    if len(candidates) == 1:
        return candidates[0]
    shown = shorten([_described(name, column) for name, column in values.items()], 12)
    which = f"{' and '.join(map(repr, candidates))} may each be" if candidates else "none looks like"
    raise UserError(
        f"{path} has the columns {shown}; {which} the {role}: set examples.{role}={(candidates or list(values))[0]}"
    )


def _described(name: str, values: list[Any]) -> str:
    return f"{name!r} ({'text' if _is_text(values) else f'{len(set(map(labels.class_of, values))):,} values'})"


def _is_label(values: list[Any]) -> bool:
    if not values or not all(isinstance(value, (str, int, float)) for value in values):
        return False
    classes = set(map(labels.class_of, values))
    is_short = max(map(len, classes)) <= _LONGEST_NAME
    return is_short and 1 < len(classes) <= max(2, len(values) // _EXAMPLES_A_CLASS)


def _is_text(values: list[Any]) -> bool:
    if not values or not all(isinstance(value, str) for value in values):
        return False
    are_words = sum(bool(_WORDS.search(value)) or has_unspaced(value) for value in values)
    return 2 * len(set(values)) > len(values) and 2 * are_words > len(values)


def _is_class(name: str, values: list[Any]) -> bool:
    """Return whether the name of a column is one of its values, so that the first line is an example."""
    return labels.class_of(name) in set(map(labels.class_of, values))
