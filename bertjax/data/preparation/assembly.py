"""The end: shards of tokens, one after the other, become the files of a store."""

import contextlib
from pathlib import Path

import numpy as np

from bertjax.data.preparation import shards
from bertjax.data.preparation.encoding import LENGTH, LONGEST
from bertjax.data.preparation.reading import Reading
from bertjax.data.store import COUNTS, SPLITS, SplitWriter


def assemble(folder: Path, reading: Reading, dtype: np.dtype, store: Path) -> dict:
    """Writes the splits into the folder `store` and returns what its manifest says about them.

    Args:
      folder: of the unfinished preparation, all of whose shards are encoded.
      dtype: of the tokens.

    Raises:
      Damaged: a shard is not as it was written.
    """
    counts_GC = np.zeros((len(reading.groups), len(COUNTS)), np.int64)
    longest, skipped = [], dict.fromkeys((source for _, source in reading.groups), 0) | reading.skipped
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(contextlib.closing(SplitWriter(store, name))) for name in SPLITS}
        for index in range(len(reading.shard_bytes)):
            header, payload = shards.read(shards.tokens_path(folder, index))
            for group, counts in header["counts"].items():
                counts_GC[int(group)] += counts
            for group, _ in header["skipped"]:
                skipped[reading.groups[group][1]] += 1
            longest = sorted(longest + header["longest"], key=lambda entry: -entry[0])[:LONGEST]
            for name in SPLITS:
                arrays = []
                for size, kind in zip(header["sizes"][name], (dtype, LENGTH, LENGTH), strict=True):
                    arrays.append(np.frombuffer(payload[: size * kind.itemsize], kind))
                    payload = payload[size * kind.itemsize :]
                writers[name].append(*arrays)
    counts, duplicates = {name: {} for name in SPLITS}, dict.fromkeys(skipped, 0)
    for (split, source), counts_C, dropped in zip(reading.groups, counts_GC, reading.dropped, strict=True):
        counts[split][source] = dict(zip(COUNTS, counts_C.tolist(), strict=True))
        duplicates[source] += dropped
    longest = [[tokens, reading.groups[group][1], name] for tokens, group, name in longest]
    return {"counts": counts, "duplicates": duplicates, "skipped": skipped, "longest": longest}
