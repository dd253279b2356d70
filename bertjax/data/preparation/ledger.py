"""Conservation law for a preparation: everything read is either in the store or counted as left out.

Documents and characters are counted when they are read, and again wherever they leave: at a filter, as a duplicate,
outside `data.share`, without a token, or into the store. If the two sides differ, no store is published.
"""

from collections.abc import Mapping, Sequence

from bertjax.runtime.errors import RunFailed

# {source: {entry: [documents, characters]}}
Numbers = dict[str, dict[str, list[int]]]

READ, SKIPPED = "read", "skipped"
# Destinations of documents, with their label in the report. `changed` counts characters that filters removed from
# documents that stay, so its documents are 0. `skipped` documents were never read: [documents, bytes].
WAYS = {
    "train": "training",
    "heldout": "held out",
    "duplicates": "duplicates",
    "near_duplicates": "near-duplicates",
    "filtered": "dropped by filters",
    "changed": "removed within documents by filters",
    "outside_share": "outside of data.share",
    "no_token": "without a token",
}


class Ledger:
    """Document and character counters by source and entry."""

    def __init__(self) -> None:
        self._numbers: Numbers = {}

    @property
    def numbers(self) -> Numbers:
        """The counts, sorted by name: workers finish in any order, and the manifest must not depend on it."""
        return {source: dict(sorted(entries.items())) for source, entries in sorted(self._numbers.items())}

    def add(self, source: str, entry: str, documents: int, characters: int) -> None:
        """Add to one entry."""
        counts = self._numbers.setdefault(source, {}).setdefault(entry, [0, 0])
        counts[0] += documents
        counts[1] += characters

    def add_all(self, numbers: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        """Add another ledger's counts."""
        for source, entries in numbers.items():
            for entry, counts in entries.items():
                self.add(source, entry, *counts)


def check(numbers: Numbers) -> None:
    """Raise RunFailed unless, for every source, the counts over all `WAYS` add up to `read`."""
    for source, entries in numbers.items():
        read = entries.get(READ, [0, 0])
        found = [sum(entries.get(way, [0, 0])[i] for way in WAYS) for i in range(2)]
        if read != found:
            were, are = (f"{count:,} documents with {characters:,} characters" for count, characters in (read, found))
            remedy = "no store is made: check the disk and run the same command again"
            raise RunFailed(f"of source {source}, {were} were read, and {are} are accounted for; {remedy}")


def lines(numbers: Numbers) -> list[str]:
    """Return report lines: documents read from all sources together, and where they went."""
    total = Ledger()
    for entries in numbers.values():
        # Under one name, so that the counts of all sources add up.
        total.add_all({"": entries})
    entries = total.numbers.get("", {})
    if READ not in entries:
        return []
    ways = ", ".join(
        f"{words} {entries[way][0]:,} ({entries[way][1]:,})" for way, words in WAYS.items() if any(entries.get(way, ()))
    )
    documents, characters = entries[READ]
    result = [f"read {documents:,} documents ({characters:,} characters): {ways}"]
    if SKIPPED in entries:
        result.append("not read: {:,} bad documents, at least {:,} bytes".format(*entries[SKIPPED]))
    return result
