"""A random part of a labeled file, with the classes in the proportions of the file."""

import numpy as np

from bertjax.data.labeled import labels
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.random import bits


def limited(records: list[Record], format: LabeledFormat) -> list[Record]:
    """Return `format.limit` random records in the order of the file, or all of them if the limit is 0.

    Records are drawn at equal distances from all records sorted by class, in random order within a class. So each class
    has its share of the file, rounded. If the limit allows it, every class, or every tag, has at least one record.

    Args:
      records: all records of the file.
      format: the format that has read them.
    """
    if not format.limit or format.limit >= len(records):
        return records
    counts = [format.class_counts([record]) for record in records]
    names = [tuple(name for name, count in of_record.items() if count) for of_record in counts]
    random = bits(format.limit_seed, "limit", 0, np.arange(len(records)), 0)
    first_of: dict[str, int] = {}
    for index in np.argsort(random, kind="stable").tolist():
        for name in names[index]:
            first_of.setdefault(name, index)
    classes = {name: number for number, name in enumerate(labels.ordered(first_of))}
    chosen = set(first_of.values())
    if len(chosen) > format.limit:
        chosen = set()
    # Records with several tags, or without a class, are one stratum.
    strata = np.array([classes[of_record[0]] if len(of_record) == 1 else -1 for of_record in names])
    rest = [index for index in np.lexsort((random, strata)).tolist() if index not in chosen]
    count = format.limit - len(chosen)
    places = ((np.arange(count) + 0.5) * len(rest) / max(1, count)).astype(int)
    return [records[index] for index in sorted(chosen.union(rest[place] for place in places))]
