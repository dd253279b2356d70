"""Divide one labeled file: into training and held-out records, into folds, or to a stratified random part."""

import hashlib
import unicodedata
from collections import Counter, defaultdict

import numpy as np

from bertjax.data.labeled import labels
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.random import bits

# Classes whose share is less than one record still give one, up to this multiple of the held-out share.
_MOST_HELD_OUT = 1.2


def divide(records: list[Record], format: LabeledFormat, has_classes: bool) -> tuple[list[Record], list[Record]]:
    """Return training and held-out records, each in file order; about `format.heldout` of the records are held out.

    Classes keep their proportions. A class whose share is less than one record gives one if it has two different texts,
    as long as at most 1.2 times `format.heldout` of all records are held out: a file of many classes with two records
    each would otherwise lose half of them. Records with equal texts (in any case, with any white space) are in one
    part: otherwise the score would reward memory. A group of equal texts counts for its rarest class, as rare labels
    come first in Sechidis et al. (2011). The choice depends on the texts and `format.limit_seed`, and not on the order
    of the file.

    Args:
      records: all records of the file.
      format: the format that read them; its `heldout` is the share.
      has_classes: whether labels are class names. Numbers form one class.
    """
    heldout: set[int] = set()
    smallest: list[list[int]] = []  # the smallest group of each class that has given none
    for of_class in _strata(records, format, has_classes).values():
        size = sum(map(len, of_class))
        target, held = min(round(format.heldout * size), size - 1), []
        for group in of_class:
            if len(held) + len(group) <= target:
                held += group
        if not held and len(of_class) > 1:
            smallest.append(min(of_class, key=len))
        heldout.update(held)
    most = _MOST_HELD_OUT * format.heldout * len(records)
    for group in smallest:
        if not heldout or len(heldout) + len(group) <= most:
            heldout.update(group)
    parts = ([], [])
    for index, record in enumerate(records):
        parts[index in heldout].append(record)
    return parts


def folds(records: list[Record], format: LabeledFormat, has_classes: bool) -> list[list[Record]]:
    """Return the records of each of `format.folds` folds, in file order; every record is in one fold.

    Each class is spread over the folds as evenly as its groups of equal texts allow. Groups, classes and the choice are
    those of `divide`. A fold is empty if there are fewer groups than folds.

    Args:
      records, has_classes: see `divide`.
      format: the format that read the records.
    """
    fold_of, sizes = {}, [0] * format.folds
    for of_class in _strata(records, format, has_classes).values():
        own = [0] * format.folds
        # The largest groups first, so that the small ones even out.
        for group in sorted(of_class, key=len, reverse=True):
            fold = min(range(format.folds), key=lambda fold: (own[fold], sizes[fold]))
            fold_of |= dict.fromkeys(group, fold)
            own[fold] += len(group)
            sizes[fold] += len(group)
    parts: list[list[Record]] = [[] for _ in range(format.folds)]
    for index, record in enumerate(records):
        parts[fold_of[index]].append(record)
    return parts


def _strata(records: list[Record], format: LabeledFormat, has_classes: bool) -> dict[str, list[list[int]]]:
    """Return {class: groups of records with equal texts, in random order}; groups are indices in file order."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        groups[text_key(format.texts_of(record))].append(index)
    counts = format.class_counts(records) if has_classes else Counter()
    strata: dict[str, list[list[int]]] = defaultdict(list)
    for key in sorted(groups, key=lambda key: _random(key, format.limit_seed)):
        members = [records[index] for index in groups[key]]
        classes = format.class_counts(members) if has_classes else {}
        strata[min(classes, key=lambda name: (counts[name], name), default="")].append(groups[key])
    return strata


def text_key(texts: list[str]) -> str:
    """Return a form of a record's texts that is equal for texts that a reader would call the same, in any order."""
    return "\n".join(sorted(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts))


def _random(key: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {key}".encode()).digest()


def limited(records: list[Record], format: LabeledFormat) -> list[Record]:
    """Return `format.limit` random records in file order, or all if the limit is 0.

    Records are sorted by class, shuffled within a class, and taken at equal distances, so class proportions are kept up
    to rounding. Every class or tag gets at least one record if the limit is large enough.

    Args:
      records: all records in the file.
      format: the format that read them.
    """
    if not format.limit or format.limit >= len(records):
        return records
    counts = [format.class_counts([record]) for record in records]
    names = [tuple(name for name, count in of_record.items() if count) for of_record in counts]
    random = bits(format.limit_seed, "limit", 0, np.arange(len(records)), 0)
    # One random record for every class, so that rare classes are not lost.
    first_of: dict[str, int] = {}
    for index in np.argsort(random, kind="stable").tolist():
        for name in names[index]:
            first_of.setdefault(name, index)
    classes = {name: number for number, name in enumerate(labels.ordered(first_of))}
    chosen = set(first_of.values())
    if len(chosen) > format.limit:
        chosen = set()
    # Records with several tags or without a class form one stratum.
    strata = np.array([classes[of_record[0]] if len(of_record) == 1 else -1 for of_record in names])
    rest = [index for index in np.lexsort((random, strata)).tolist() if index not in chosen]
    count = format.limit - len(chosen)
    # The centers of `count` equal intervals over the sorted records.
    places = ((np.arange(count) + 0.5) * len(rest) / max(1, count)).astype(int)
    return [records[index] for index in sorted(chosen.union(rest[place] for place in places))]
