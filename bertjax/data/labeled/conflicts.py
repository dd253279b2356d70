"""Equal texts with different labels: at least one of the labels is wrong, or the text does not decide it."""

from collections.abc import Iterable

from bertjax.data.labeled.base import Record
from bertjax.data.labeled.split import text_key
from bertjax.data.labeled.texts import LabeledText

# The label of a record with an empty list of classes.
NO_CLASS = "no class"


def conflicts_of(records: Iterable[Record], format: LabeledText) -> list[tuple[str, list[str]]]:
    """Return (text, its labels) for each text that occurs with different labels, in the order of the records.

    Texts are equal as in `split.divide`: in any case, with any white space. Labels are class names; a record with
    several has them joined by commas, one to which no class applies has "no class". Unlabeled records are left out.
    """
    first: dict[str, str] = {}
    labels: dict[str, dict[str, None]] = {}
    for record in records:
        if format.label in record:
            classes = format.class_counts([record])
            key = text_key(texts := format.texts_of(record))
            first.setdefault(key, "\n".join(texts))
            labels.setdefault(key, {})[", ".join(sorted(classes)) or NO_CLASS] = None
    return [(first[key], list(each)) for key, each in labels.items() if len(each) > 1]
