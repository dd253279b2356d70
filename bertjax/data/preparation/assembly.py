"""Last preparation stage: join the token shards into store files."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bertjax.data.preparation import ledger
from bertjax.data.preparation.ledger import Ledger
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.steps import LONGEST, EncodedShard
from bertjax.data.store import COUNTS, SPLITS, SplitWriter


def assemble(shards: Iterable[EncodedShard], reading: Reading, store: Path) -> dict:
    """Write the splits into the folder `store` and return their description for the manifest.

    Args:
      shards: all shards in corpus order. Their boundaries have no effect.

    Raises:
      RunFailed: documents were read, but are neither in the store nor counted as left out; see `ledger`.
    """
    accounts = Ledger()
    accounts.add_all(reading.ledger)
    counts_GC = np.zeros((len(reading.groups), len(COUNTS)), np.int64)
    # Every source is listed, also those with 0, so that manifests of one corpus always have the same keys.
    longest, skipped = [], dict.fromkeys((source for _, source in reading.groups), 0) | reading.skipped
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(contextlib.closing(SplitWriter(store, name))) for name in SPLITS}
        for shard in shards:
            for group, counts in shard.counts.items():
                counts_GC[group] += counts
            for group, _, characters in shard.skipped:
                skipped[reading.groups[group][1]] += 1
                accounts.add(reading.groups[group][1], "no_token", 1, characters)
            # Stable, so equally long documents stay in corpus order, wherever shards end.
            longest = sorted(longest + shard.longest, key=lambda entry: -entry[0])[:LONGEST]
            for name in SPLITS:
                writers[name].append(*shard.arrays[name])
    counts, duplicates = {name: {} for name in SPLITS}, dict.fromkeys(skipped, 0)
    for (split, source), counts_C, number in zip(reading.groups, counts_GC, reading.duplicates, strict=True):
        counts[split][source] = dict(zip(COUNTS, counts_C.tolist(), strict=True))
        accounts.add(source, split, counts[split][source]["documents"], counts[split][source]["characters"])
        duplicates[source] += number
    # Before the manifest is written: without one, the folder is not a store.
    ledger.check(accounts.numbers)
    longest = [[tokens, reading.groups[group][1], name] for tokens, group, name in longest]
    contents = {"counts": counts, "duplicates": duplicates, "skipped": skipped, "longest": longest}
    contents["ledger"] = {source: dict(sorted(entries.items())) for source, entries in sorted(accounts.numbers.items())}
    return contents | ({"cleaning": reading.cleaning} if reading.cleaning else {})
