"""Divide one labeled file into training and held-out records."""

import hashlib
import unicodedata
from collections import Counter, defaultdict

from bertjax.data.labeled.base import LabeledFormat, Record


def divide(records: list[Record], format: LabeledFormat, has_classes: bool) -> tuple[list[Record], list[Record]]:
    """Return training and held-out records, each in file order; about `format.heldout` of the records are held out.

    Classes keep their proportions, and every class with two different texts has a record in both parts. Records with
    equal texts (in any case, with any white space) are in one part: otherwise the score would reward memory. A group
    of equal texts counts for its rarest class, as rare labels come first in Sechidis et al. (2011). The choice depends
    on the texts and `format.limit_seed`, and not on the order of the file.

    Args:
      records: all records of the file.
      format: the format that read them; its `heldout` is the share.
      has_classes: whether labels are class names. Numbers form one class.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        groups[text_key(format.texts_of(record))].append(index)
    counts = format.class_counts(records) if has_classes else Counter()
    strata: dict[str, list[list[int]]] = defaultdict(list)
    for key in sorted(groups, key=lambda key: _random(key, format.limit_seed)):
        members = [records[index] for index in groups[key]]
        classes = format.class_counts(members) if has_classes else {}
        strata[min(classes, key=lambda name: (counts[name], name), default="")].append(groups[key])
    heldout = set()
    for of_class in strata.values():
        size = sum(map(len, of_class))
        target, held = min(round(format.heldout * size), size - 1), []
        for group in of_class:
            if len(held) + len(group) <= target:
                held += group
        if not held and len(of_class) > 1:
            held = min(of_class, key=len)
        heldout.update(held)
    parts = ([], [])
    for index, record in enumerate(records):
        parts[index in heldout].append(record)
    return parts


def text_key(texts: list[str]) -> str:
    """Return a form of a record's texts that is equal for texts that a reader would call the same."""
    return "\n".join(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)


def _random(key: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {key}".encode()).digest()
