"""Filters and MinHash signatures: a step in the first pass, batch by batch."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.config import NearDuplicates
from bertjax.data.filters import Filter
from bertjax.data.preparation import near_duplicates
from bertjax.data.preparation.dropped import Dropped
from bertjax.data.preparation.ledger import Ledger
from bertjax.data.preparation.steps import Key
from bertjax.data.sources import Document
from bertjax.runtime.errors import UserError, printable, reason

BATCH_CHARACTERS = 1 << 20
NOTHING_LEFT = "nothing is left"


class Entry(NamedTuple):
    """A document in the first pass.

    Attributes:
      is_filtered: False for held-out files, which are never filtered.
      buckets: see `near_duplicates.buckets`, uint64 [buckets]; None if near-duplicates stay.
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
            raise UserError(
                f"the filter data.filters.{name} ({rule.kind}) failed on document {printable(document.id)}: "
                f"{type(error).__name__}: {printable(reason(error))}; correct the filter, or remove it"
            ) from error
        if why is not None:
            return Verdict(document.text, name, why, changes)
    return Verdict(document.text, "", "", changes)


def cleaned(
    entries: Iterable[Entry],
    filters: Mapping[str, Filter],
    near: NearDuplicates,
    dropped: Dropped,
    ledger: Ledger,
    source_names: Sequence[str],
) -> Iterator[Entry]:
    """Yield the documents that filters keep, rewritten and with their buckets. The others are recorded in `dropped`.

    Args:
      filters: filters by name, applied in this order.
      near: settings for the buckets.

    Raises:
      UserError: a filter failed.
    """
    for batch in _batches(entries):
        verdicts = [
            judge(entry.document, filters) if entry.is_filtered else Verdict(entry.document.text, "", "", {})
            for entry in batch
        ]
        # MinHash is fast on many texts at once, so also on those that a filter drops.
        buckets_DB = near_duplicates.buckets([verdict.text for verdict in verdicts], near) if near.drop else None
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
