"""The conservation law of a preparation: what was read is what the store holds and what was left out, counted twice.

Documents and characters are counted when they are read, and again wherever they leave: by a filter, as a duplicate,
outside of `data.share`, without a token, or into the store. A store whose two sides differ is never published.
"""

from collections.abc import Mapping, Sequence

from bertjax.errors import RunFailed

# {source: {entry: [documents, characters]}}
Numbers = dict[str, dict[str, list[int]]]

READ, SKIPPED = "read", "skipped"
# Where documents go, with the words of the report. `changed` counts characters that filters removed from documents that
# stay, so it has no documents. Entries of `skipped` were never read: [documents, bytes].
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
    """Counts documents and characters by source and entry."""

    def __init__(self) -> None:
        self._numbers: Numbers = {}

    @property
    def numbers(self) -> Numbers:
        """The counts, sorted: workers finish in any order, and the manifest of a store does not show in which."""
        return {source: dict(sorted(entries.items())) for source, entries in sorted(self._numbers.items())}

    def add(self, source: str, entry: str, documents: int, characters: int) -> None:
        """Add documents to an entry of a source."""
        counts = self._numbers.setdefault(source, {}).setdefault(entry, [0, 0])
        counts[0] += documents
        counts[1] += characters

    def add_all(self, numbers: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        """Add the numbers of another ledger."""
        for source, entries in numbers.items():
            for entry, counts in entries.items():
                self.add(source, entry, *counts)


def check(numbers: Numbers) -> None:
    """Raise RunFailed unless all that was read of each source is in the store or counted as left out."""
    for source, entries in numbers.items():
        read = entries.get(READ, [0, 0])
        found = [sum(entries.get(way, [0, 0])[i] for way in WAYS) for i in range(2)]
        if read != found:
            raise RunFailed(
                f"of source {source}, {read[0]:,} documents with {read[1]:,} characters were read, and {found[0]:,} "
                f"with {found[1]:,} are in the store or counted as left out; no store is made: check the disk and run "
                "the same command again, and report a second failure as a fault of bertjax"
            )


def lines(numbers: Numbers) -> list[str]:
    """Return lines of a report: what was read of all sources together, and where it went."""
    total = Ledger()
    for entries in numbers.values():
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
