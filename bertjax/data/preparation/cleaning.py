"""Filters and MinHash signatures: a step in the first pass, batch by batch.

`dropped.jsonl.gz`: documents that were dropped from a store, with reasons and counts.

Each line has `source`, `id` (`<part>:<number>`, as in messages), `rule` (a filter's name, `duplicate` or
`near-duplicate`) and `reason`. Filters also write `text`, the beginning of the document. For near-duplicates, `kept`
and `kept_source` name the document that stays instead.

`Ledger`: everything read is either in the store or counted as left out. Documents and characters are counted when they
are read, and again wherever they leave: at a filter, as a duplicate, outside `data.share`, without a token, or into the
store. If the two sides differ, no store is published.
"""

import collections
import dataclasses
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.data.config import DataConfig
from bertjax.data.filters import Filter
from bertjax.data.preparation import duplicates
from bertjax.data.preparation.steps import Key
from bertjax.data.sources import Document
from bertjax.runtime.errors import RunFailed, UserError, printable, reason

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


def check_ledger(numbers: Numbers) -> None:
    """Raise RunFailed unless, for every source, the counts over all `WAYS` add up to `read`."""
    for source, entries in numbers.items():
        read = entries.get(READ, [0, 0])
        found = [sum(entries.get(way, [0, 0])[i] for way in WAYS) for i in range(2)]
        if read != found:
            were, are = (f"{count:,} documents with {characters:,} characters" for count, characters in (read, found))
            remedy = "no store is made: check the disk and run the same command again"
            raise RunFailed(f"of source {source}, {were} were read, and {are} are accounted for; {remedy}")


def ledger_lines(numbers: Numbers) -> list[str]:
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


NAME = "dropped.jsonl.gz"
TEXT_CHARACTERS = 200
# A filter with more reasons probably mentions the document in them, so counting by reason would be useless.
MOST_REASONS = 100


class Dropped:
    """Writes `dropped.jsonl.gz` and counts dropped documents by source, rule and reason.

    Attributes:
      numbers: {source: {rule: {reason: documents}}}.
      changes: {source: {filter: [changed documents, changes]}}.
    """

    def __init__(self, folder: Path):
        self._file = open(folder / NAME, "wb")  # noqa: SIM115
        # Neither file name nor time in the gzip header, so the same documents give the same bytes.
        self._gzip = gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._file, mtime=0)
        self._reasons: dict[str, set[str]] = collections.defaultdict(set)
        self.numbers: dict[str, dict[str, dict[str, int]]] = {}
        self.changes: dict[str, dict[str, list[int]]] = {}

    def __enter__(self) -> "Dropped":
        return self

    def __exit__(self, *_: object) -> None:
        self._gzip.close()
        self._file.close()

    def add(self, source: str, document: str, rule: str, reason: str, text: str) -> None:
        """Record a document that a filter dropped.

        Raises:
          UserError: the filter gave more than `MOST_REASONS` reasons.
        """
        self._reasons[rule].add(reason)
        if len(self._reasons[rule]) > MOST_REASONS:
            many = f"more than {MOST_REASONS} different reasons, such as {printable(reason)[:60]!r}"
            raise UserError(f"the filter data.filters.{rule} gave {many}; let a reason name the rule, not the document")
        by_reason = self.numbers.setdefault(source, {}).setdefault(rule, {})
        by_reason[reason] = by_reason.get(reason, 0) + 1
        self.write(source=source, id=document, rule=rule, reason=reason, text=text[:TEXT_CHARACTERS])

    def add_all(self, lines: Iterable[bytes], changes: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        """Add the records from the next piece.

        Args:
          lines: lines from the piece's `dropped.jsonl.gz`.
          changes: the piece's `changes`.
        """
        for line in lines:
            fields = json.loads(line)
            self.add(fields["source"], fields["id"], fields["rule"], fields["reason"], fields["text"])
        for source, by_rule in changes.items():
            for rule, (documents, number) in by_rule.items():
                self._count(source, rule, documents, number)

    def count_changes(self, source: str, changes: Mapping[str, int]) -> None:
        """Count one changed document, and the changes by filter."""
        for rule, number in changes.items():
            self._count(source, rule, 1, number)

    def _count(self, source: str, rule: str, documents: int, number: int) -> None:
        counts = self.changes.setdefault(source, {}).setdefault(rule, [0, 0])
        counts[0] += documents
        counts[1] += number

    def write(self, **fields: Any) -> None:
        """Write a line."""
        self._gzip.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")


def read_dropped(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a store's records.

    Raises:
      UserError: the store was made without filters and near-duplicates, or the file is damaged.
    """
    path = folder / NAME
    if not path.exists():
        raise UserError(f"{path} does not exist; a store has it if data.filters or data.near_duplicates.drop is set")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)
    # gzip raises EOFError for a file that was cut short, and an OSError for a wrong checksum.
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete the folder and prepare again") from None


BATCH_CHARACTERS = 1 << 20
NOTHING_LEFT = "nothing is left"


class Entry(NamedTuple):
    """A document in the first pass.

    Attributes:
      is_filtered: False for held-out files, which are never filtered.
      buckets: see `duplicates.buckets`, uint64 [buckets]; None if near-duplicates stay.
    """

    key: Key
    document: Document
    is_filtered: bool
    buckets: np.ndarray | None = None


class Verdict(NamedTuple):
    """The filters' decision on one document.

    Attributes:
      text: the remaining text; for a dropped document, the text that the dropping filter saw.
      rule: name of the filter that drops the document; empty if it is kept.
      reason: why this filter drops it.
      changes: changes by filter name.
    """

    text: str
    rule: str
    reason: str
    changes: dict[str, int]


def judge(document: Document, filters: Mapping[str, Filter]) -> Verdict:
    """Apply filters to one document, until one drops it.

    Raises:
      UserError: a filter failed; the message names the filter and the document.
    """
    changes = {}
    for name, rule in filters.items():
        try:
            text, number = rule.rewrite(document.text)
            if number:
                changes[name] = number
                document = dataclasses.replace(document, text=text)
            # A rewrite may leave only white space; a user's `keep` need not expect that.
            why = rule.keep(document) if text.strip() else NOTHING_LEFT
            # A filter that returns True or False by mistake would drop every document, because neither is None.
            if not (why is None or (isinstance(why, str) and why)):
                raise TypeError(f"keep returned {why!r}, not a reason or None")
        except UserError:
            raise
        except Exception as error:  # the filter is a program of the user and may fail in any way
            where = f"the filter data.filters.{name} ({rule.kind}) failed on document {printable(document.id)}"
            what = f"{type(error).__name__}: {printable(reason(error))}"
            raise UserError(f"{where}: {what}; correct the filter, or remove it") from error
        if why is not None:
            return Verdict(document.text, name, why, changes)
    return Verdict(document.text, "", "", changes)


def cleaned(
    entries: Iterable[Entry], config: DataConfig, dropped: Dropped, ledger: Ledger, source_names: Sequence[str]
) -> Iterator[Entry]:
    """Yield the documents that filters keep, rewritten and with their buckets. The others are recorded in `dropped`.

    Args:
      config: has the filters by name, applied in this order, and the settings for the buckets.

    Raises:
      UserError: a filter failed.
    """
    near = config.near_duplicates
    for batch in _batches(entries):
        verdicts = [
            judge(entry.document, config.filters) if entry.is_filtered else Verdict(entry.document.text, "", "", {})
            for entry in batch
        ]
        # MinHash is fast on many texts at once, so also on those that a filter drops.
        buckets_DB = duplicates.buckets([verdict.text for verdict in verdicts], near) if near.drop else None
        for d, (entry, verdict) in enumerate(zip(batch, verdicts, strict=True)):
            source = source_names[entry.key.source]
            dropped.count_changes(source, verdict.changes)
            characters = len(entry.document.text)
            if verdict.rule:
                ledger.add(source, "filtered", 1, characters)
                dropped.add(source, entry.document.id, verdict.rule, verdict.reason, verdict.text)
                continue
            if len(verdict.text) != characters:
                # A rewritten document stays: only its removed characters leave the balance.
                ledger.add(source, "changed", 0, characters - len(verdict.text))
            document = dataclasses.replace(entry.document, text=verdict.text) if verdict.changes else entry.document
            yield entry._replace(document=document, buckets=None if buckets_DB is None else buckets_DB[d])


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield consecutive documents in batches with at least `BATCH_CHARACTERS` characters; the last may be shorter."""
    batch, characters = [], 0
    for entry in entries:
        batch.append(entry)
        characters += len(entry.document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
