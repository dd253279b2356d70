"""Which columns of a table hold the text, the second text and the label, if the settings leave that to the file."""

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bertjax.data.labeled import labels, tables
from bertjax.data.labeled.base import not_empty
from bertjax.data.text.unicode import has_unspaced
from bertjax.runtime.errors import UserError, say, shorten

# The value of `examples.text`, `examples.pair` and `examples.label` that asks for a guess.
AUTO = "auto"
# A label column has at least this many rows per class on average.
_EXAMPLES_A_CLASS = 3
# Usual names of the columns of a pair.
_PAIR = ("sentence1", "sentence2")
# No class name is longer.
_LONGEST_NAME = 80
# A text has at least this many borders of words if nothing else tells it from the name of a column.
_BORDERS_OF_A_TEXT = 3
# The border of two words of letters: numbers, dates, codes and addresses of mail have none.
_WORDS = re.compile(r"[^\W\d_]\W{0,4}\s\W{0,4}[^\W\d_]")


def settle(
    path: str, roles: Mapping[str, str], taken: Collection[str], quoted: bool, is_label: Callable[[list[Any]], bool]
) -> dict[str, str]:
    """Return {role: column} for the roles `text`, `pair` and `label`, and print it.

    A column that is called `text` or `label` wins. Otherwise the text is the only column whose values are mostly
    different and have several words, or with a second text the first of two (`sentence1` and `sentence2` win), and the
    label is the only one that can be one. If the first line is not a header, because its label is one that other lines
    have too or a number beside numbers, or because a pair without a label is two texts, the columns are numbers.

    Args:
      path: the training file.
      roles: {role: column}; `AUTO` for a column to find, empty for none.
      taken: further columns that are known.
      quoted: see `tables.read`.
      is_label: whether the values of a column can be labels.

    Raises:
      UserError: the file cannot be read or has no rows; or no column or several columns can be the one, and the message
        lists all columns.
    """
    names, rows = tables.preview(path, quoted)
    not_empty(rows, path, "rows")
    # pandas writes an index as a column without a name.
    values = {name: [row[name] for row in rows if not labels.is_missing(row.get(name))] for name in names if name}
    text, pair, label = (roles[role] for role in ("text", "pair", "label"))
    free = [name for name in values if name not in {*taken, *roles.values()} - {AUTO}]
    if label == AUTO:
        label = _only("label", free, is_label, values, path)
    free = [name for name in free if name != label]
    if pair == AUTO:
        pairs = [name for name in _PAIR if text == AUTO and name in values]
        if len(pairs) < 2:
            pairs = [text] * (text != AUTO) + [name for name in free if _is_text(values[name])]
        if len(pairs) != 2:
            remedy = "set examples.text=COLUMN and examples.pair=COLUMN"
            raise UserError(f"{path} has the columns {_described(values)}, and not two of texts; {remedy}")
        text, pair = pairs
    if text == AUTO:
        text = _only("text", free, _is_text, values, path)
    found = {"text": text, "pair": pair, "label": label}
    has_no_header = any(name.isdecimal() and name not in names for name in found.values())
    named = [name for name in (text, pair, label) if name]
    if values.keys() >= set(named) and not tables.holds_objects(path):
        is_class = bool(label) and labels.class_of(label) in set(map(labels.class_of, values[label]))
        is_value = is_class or (bool(label) and is_label is are_scores and are_scores([*values[label], label]))
        # A first line such as `text,spam` names the columns, although `spam` is one of the classes.
        borders = min(len(_WORDS.findall(name)) for name in named if name != label)
        has_no_header |= borders >= _BORDERS_OF_A_TEXT if not label else is_value and borders > 0
        if is_class and not has_no_header:
            taken = f"its first line, {text!r} and {label!r}, is taken for the names of columns"
            numbers = f"set examples.text={names.index(text)} and examples.label={names.index(label)}"
            say(f"{path}: {taken}; if it is an example, {numbers}", file=sys.stderr)
    if has_no_header:
        found = {role: str(names.index(name)) if name in values else name for role, name in found.items()}
        say(f"{path}: its first line is an example and not the names of columns", file=sys.stderr)
    second = f", that of the second {found['pair']!r}" if pair else ""
    of_label = f", that of the label {found['label']!r}" if label else ""
    say(f"{path}: the column of the text is {found['text']!r}{second}{of_label}", file=sys.stderr)
    return found


def _only(
    role: str, free: list[str], fits: Callable[[list[Any]], bool], values: Mapping[str, list[Any]], path: str
) -> str:
    """Return the free column that is called like a role, or else the only one whose values fit it."""
    if role in free and not (fits is are_scores and not are_scores(values[role])):
        return role
    candidates = [name for name in free if fits(values[name])]
    if len(candidates) == 1:
        return candidates[0]
    which = f"{' and '.join(map(repr, candidates))} may each be" if candidates else "none looks like"
    remedy = f"set examples.{role}={candidates[0] if candidates else 'COLUMN'}"
    if len(candidates) > 1 and all(labels.class_of(value) in "01" for name in candidates for value in values[name]):
        remedy += f", or examples.label_columns={candidates} if each is a class (finetune/classify:multi_label)"
    raise UserError(f"{path} has the columns {_described(values)}; {which} the {role}: {remedy}")


def _described(values: Mapping[str, list[Any]]) -> str:
    counts = {name: f"{len(set(map(labels.class_of, column))):,} values" for name, column in values.items()}
    return shorten([f"{name!r} ({'text' if _is_text(values[name]) else count})" for name, count in counts.items()], 12)


def are_class_names(values: list[Any]) -> bool:
    """Return whether the values of a column can be labels that are class names."""
    if not values or not all(isinstance(value, (str, int, float)) for value in values):
        return False
    classes = set(map(labels.class_of, values))
    is_short = max(map(len, classes)) <= _LONGEST_NAME
    return is_short and 1 < len(classes) <= max(2, len(values) // _EXAMPLES_A_CLASS)


def are_scores(values: list[Any]) -> bool:
    """Return whether the values of a column can be scores: different numbers, and not those of the rows."""
    numbers = [labels.number_of(value) if isinstance(value, (str, int, float)) else math.nan for value in values]
    are_ids = len(set(numbers)) == len(numbers) and all(map(float.is_integer, numbers))
    return len(set(numbers)) > 1 and not any(map(math.isnan, numbers)) and not are_ids


def _is_text(values: list[Any]) -> bool:
    if not values or not all(isinstance(value, str) for value in values):
        return False
    are_words = sum(bool(_WORDS.search(value)) or has_unspaced(value) for value in values)
    return 2 * len(set(values)) > len(values) and 2 * are_words > len(values)
