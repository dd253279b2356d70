"""Stratified random subset of a labeled file."""

import numpy as np

from bertjax.data.labeled import labels
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.random import bits


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
