"""Labels of a file under the class names of a model."""

import sys
from typing import Any

from bertjax.data.labeled import labels
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.runtime.errors import say, shorten


def with_names_of(classes: tuple[str, ...], records: list[Record], examples: LabeledFormat, path: str) -> list[Record]:
    """Rename labels to the model's class names, such as `1` to `LABEL_1`, if the match is unambiguous."""
    names = list(examples.class_counts(records))
    new = labels.matched(names, classes)
    # Two labels that match one class would be merged, so such a file is left alone.
    if set(names) <= set(classes) or len(new) < len(names) or len(set(new.values())) < len(names):
        return records  # the labels that the model lacks are refused one by one
    changed = [f"{name} as {new[name]}" for name in labels.ordered(names) if name != new[name]]
    say(f"{path}: labels are taken for the classes of the model: {shorten(changed, 8)}", file=sys.stderr)
    field = "tags" if examples.kind == "tagged" else getattr(examples, "label", "")

    def renamed(value: Any) -> Any:
        return [new[name] for name in value] if isinstance(value, list) else new[labels.class_of(value)]

    return [record | {field: renamed(record[field])} for record in records]
