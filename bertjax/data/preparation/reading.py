"""First pass: read every document once, in order, and write text shards and digests to disk.

A document passes through a chain of generators: read, cleaned, grouped, recorded, written. Documents outside
`data.share` skip only the last one, so tokenizer and duplicates always come from the whole corpus. Cleaning comes
first, so digests, splits and duplicates are computed on the text that filters leave.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bertjax.data import sources
from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, shards, steps
from bertjax.data.preparation.cleaning import Dropped, Entry, Ledger, Numbers
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.steps import Content, Key, ShardDocument
from bertjax.data.sources import Document, OnBad, OnRead, Part
from bertjax.data.store import SPLITS
from bertjax.data.text.ngrams import are_among
from bertjax.runtime import storage

# (split, source) per document group.
Groups = tuple[tuple[str, str], ...]
HELDOUT_FILE = "heldout file"
FORMAT_VERSION = 6
# Records that are compared to find duplicates and near-duplicates.
DOCUMENTS, NEAR = "documents.bin", "near.bin"
SAMPLE = "sample.json"


@dataclasses.dataclass(frozen=True)
class Reading:
    """Result of the first pass. Once it is on disk, the corpus is not read again.

    Attributes:
      groups: (split, source) per document group.
      kept: documents per group after deduplication, including those outside `data.share`.
      duplicates: exact duplicates per group.
      skipped: bad documents per source.
      shard_bytes: text bytes per shard.
      cleaning: empty without filters and near-duplicates. Else `dropped` {source: {filter: {reason: documents}}},
        `changed` {source: {filter: [documents, changes]}}, and, if near-duplicates are dropped, `near_duplicates`
        {source: documents}, `clusters` and `largest` [[documents, id of the one that stays, beginning of its text]].
      ledger: documents and characters that were read, and that were left out of the shards; see `ledger.Numbers`.
    """

    groups: Groups
    kept: tuple[int, ...]
    duplicates: tuple[int, ...]
    skipped: dict[str, int]
    shard_bytes: tuple[int, ...]
    cleaning: dict[str, Any]
    ledger: Numbers

    def documents(self, split: str) -> int:
        """Count a split's documents."""
        return sum(kept for (name, _), kept in zip(self.groups, self.kept, strict=True) if name == split)


class Source(NamedTuple):
    """One corpus: its name, parts and splits, and the group index of its first split."""

    name: str
    parts: list[Part]
    splits: tuple[str, ...]
    first_group: int


class _Grouped(NamedTuple):
    """A document with its identifying content, its group index, and its buckets (see `Entry`)."""

    key: Key
    document: Document
    content: Content
    group: int
    is_used: bool
    buckets: np.ndarray | None


def open_dropped(config: DataConfig, folder: Path) -> contextlib.AbstractContextManager[Dropped | None]:
    """Open `dropped.jsonl.gz` in `folder`; None if only exact duplicates are dropped."""
    is_cleaned = config.filters or config.near_duplicates.drop
    return Dropped(folder) if is_cleaned else contextlib.nullcontext()


def write(
    entries: Iterable[Entry], config: DataConfig, all_sources: list[Source], folder: Path, sample: Sample
) -> tuple[int, ...]:
    """Offer documents to the sample, and write text shards and deduplication records.

    Args:
      entries: documents in corpus order.
      folder: receives `documents.bin`, `near.bin` and the text shards.

    Returns:
      Text bytes per shard.
    """

    groups, near = groups_of(all_sources), config.near_duplicates
    with (
        open(folder / DOCUMENTS, "wb") as records,
        open(folder / NEAR, "wb") if near.drop else contextlib.nullcontext() as near_records,
    ):
        documents = _grouped(entries, all_sources, config)
        return shards.write_texts(folder, _recorded(documents, sample, groups, records, near_records))


def compared(
    config: DataConfig, folder: Path, all_sources: list[Source], dropped: Dropped | None, ledger: Ledger
) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Find duplicates among all documents that `write` recorded; return `Reading.kept`, `duplicates`, `cleaning`.

    A held-out file has source 0 and so the lowest keys: a training document that equals a held-out one is the
    duplicate.

    Args:
      folder: holds `documents.bin` and `near.bin` for the corpus; receives the duplicates' keys.
      ledger: counts read, filtered and skipped documents; all other exclusions are added to it.
    """
    groups, near, cleaning = groups_of(all_sources), np.zeros(0, duplicates.PACKED_KEY), {}
    kept, copies = duplicates.find(folder / DOCUMENTS, duplicates.path(folder), len(groups))
    if dropped:
        for packed in duplicates.load(duplicates.path(folder)):
            source, name = _name(bytes(packed), all_sources)
            dropped.write(source=source, id=name, rule="duplicate", reason="equals an earlier document")
        cleaning = {"dropped": dropped.numbers, "changed": dropped.changes}
    if dropped and config.near_duplicates.drop:
        # Mapped while the file holds only exact duplicates; the others are added to it below.
        exact = duplicates.load(duplicates.path(folder))
        is_heldout = [split == "heldout" for split, _ in groups]
        clusters = duplicates.find_near(folder / NEAR, exact, config.near_duplicates.buckets, is_heldout)
        duplicates.add(duplicates.path(folder), clusters.dropped)
        dropped_G = np.bincount(clusters.groups, minlength=len(groups))
        kept = tuple((np.array(kept) - dropped_G).tolist())
        near = clusters.dropped
        cleaning |= _write_near(dropped, clusters, dropped_G, groups, all_sources)
    _account(folder, groups, near, ledger)
    return kept, copies, cleaning


def _account(folder: Path, groups: Groups, near: np.ndarray, ledger: Ledger) -> None:
    """Count recorded documents that will not be in the store: duplicates, and documents outside `data.share`.

    Args:
      near: packed keys for near-duplicates, sorted.
    """
    dropped = duplicates.load(duplicates.path(folder))
    for block in duplicates.blocks(folder / DOCUMENTS):
        is_dropped = are_among(block["key"], dropped)
        is_near = are_among(block["key"], near)
        for entry, is_here in (
            # The file of dropped keys has both kinds, so exact duplicates are what is left without the others.
            ("duplicates", is_dropped & ~is_near),
            ("near_duplicates", is_near),
            ("outside_share", ~is_dropped & ~block["is_used"]),
        ):
            here = block[is_here]
            for group in np.unique(here["group"]).tolist():
                characters = here["characters"][here["group"] == group]
                ledger.add(groups[group][1], entry, len(characters), int(characters.sum()))


def save_sample(texts: Iterable[str], folder: Path) -> None:
    """Write the tokenizer's training texts."""
    storage.write_text(folder / SAMPLE, json.dumps(list(texts), ensure_ascii=False))


def load_sample(folder: Path) -> list[str]:
    """Read the texts that `save_sample` wrote."""
    return json.loads((folder / SAMPLE).read_text(encoding="utf-8"))


def _write_near(
    dropped: Dropped, clusters: duplicates.Clusters, dropped_G: np.ndarray, groups: Groups, all_sources: list[Source]
) -> dict[str, Any]:
    """List the near-duplicates in `dropped.jsonl.gz`, and return their manifest entries."""
    for packed, packed_kept in zip(clusters.dropped.tolist(), clusters.kept.tolist(), strict=True):
        (source, name), (kept_source, kept) = _name(packed, all_sources), _name(packed_kept, all_sources)
        reason = "differs little from a document that stays"
        dropped.write(source=source, id=name, rule="near-duplicate", reason=reason, kept=kept, kept_source=kept_source)
    by_source = dict.fromkeys((source for _, source in groups), 0)
    for (_, source), number in zip(groups, dropped_G.tolist(), strict=True):
        by_source[source] += number
    largest = [[size, "/".join(_name(packed, all_sources)), text] for size, packed, text in clusters.largest]
    return {"near_duplicates": by_source, "clusters": clusters.number, "largest": largest}


def _name(packed: bytes, all_sources: list[Source]) -> tuple[str, str]:
    """Return source name and document id for a packed key."""
    key = Key.unpacked(packed)
    source = all_sources[key.source]
    return source.name, f"{source.parts[key.part].name}:{key.line}"


def sources_of(config: DataConfig) -> list[Source]:
    """Return the sources in corpus order."""
    named = [
        (name, sources.parts(source.corpus, source.text_field, source.group_field))
        for name, source in config.named_sources.items()
    ]
    if not config.heldout:
        return [Source(name, parts, SPLITS, index * len(SPLITS)) for index, (name, parts) in enumerate(named)]
    # Source 0, so its keys are the lowest and its documents win against equal training documents.
    heldout = Source(HELDOUT_FILE, sources.parts(config.heldout, config.text_field), ("heldout",), 0)
    return [heldout, *(Source(name, parts, ("train",), index) for index, (name, parts) in enumerate(named, start=1))]


def groups_of(all_sources: list[Source]) -> Groups:
    """Return (split, source) per document group."""
    return tuple((split, source.name) for source in all_sources for split in source.splits)


def read_part(all_sources: list[Source], source: int, part: int, on_read: OnRead, on_bad: OnBad) -> Iterator[Entry]:
    """Yield a part's documents; see `Part.documents`.

    Args:
      source: index in `all_sources`.
      part: index in the source's `parts`.
    """
    is_filtered = all_sources[source].name != HELDOUT_FILE
    for number, document in enumerate(all_sources[source].parts[part].documents(on_read, on_bad), start=1):
        yield Entry(Key(source, part, number, document.number), document, is_filtered)


def _grouped(documents: Iterable[Entry], all_sources: list[Source], config: DataConfig) -> Iterator[_Grouped]:
    """Choose split and share by content hash, so the choice depends neither on order nor on file names."""
    for key, document, _, buckets in documents:
        content, source = steps.content(document.text), all_sources[key.source]
        # With a unit, such as a book, all of its documents are in one split: no training on half of a held-out book.
        decides = steps.digest(document.unit) if document.unit else content.digest
        if source.name == HELDOUT_FILE and config.heldout == config.corpus:
            # The corpus itself is scored whole, beside baselines of its own: both copies of a document stay.
            content = content._replace(words=bytes(reversed(content.words)))
        split = source.splits[0] if len(source.splits) == 1 else steps.split_of(decides, config.heldout_share)
        is_used = split != "train" or config.share == 1 or steps.is_in_share(content.digest, config.share)
        yield _Grouped(key, document, content, source.first_group + source.splits.index(split), is_used, buckets)


def _recorded(
    documents: Iterable[_Grouped], sample: Sample, groups: Groups, records: IO[bytes], near_records: IO[bytes] | None
) -> Iterator[ShardDocument]:
    """Offer training documents to the sample, write deduplication records, and yield the documents within the share."""
    for entry in documents:
        if groups[entry.group][0] == "train":
            sample.add(entry.key, entry.content.digest, entry.content.text)
        text, characters = entry.document.text.encode(), len(entry.document.text)
        # By the digest of the words: a copy with other line ends is a duplicate too.
        records.write(duplicates.record(entry.content.words, entry.key, entry.group, characters, entry.is_used))
        if near_records:
            near_records.write(
                duplicates.near_record(entry.key, entry.content.digest, entry.group, text, entry.buckets)
            )
        # Documents outside `data.share` were sampled and recorded like all others, and end here.
        if entry.is_used:
            yield ShardDocument(entry.key, entry.document.id, entry.group, text)


def save(reading: Reading, spec: dict, path: Path) -> None:
    """Write the first pass's result for `load`, beside the duplicates' keys."""
    storage.flush(duplicates.path(path.parent))  # the seal must not survive a crash of the machine without it
    content = {"format_version": FORMAT_VERSION, "spec": spec, "reading": dataclasses.asdict(reading)}
    storage.write_text(path, json.dumps(content | {"duplicates": duplicates.fingerprint(path.parent)}))


def load(path: Path, spec: dict) -> Reading | None:
    """Read the result that `save` wrote for the same spec; None if there is none.

    Raises:
      DamagedShard: the duplicates' keys have changed since they were written, so wrong documents would be dropped.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format_version"] != FORMAT_VERSION or content["spec"] != spec:
            return None
        fields, digest = content["reading"], content["duplicates"]
        tuples = {name: tuple(fields[name]) for name in ("kept", "duplicates", "shard_bytes")}
        read = Reading(**fields | tuples | {"groups": tuple(map(tuple, fields["groups"]))})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if duplicates.fingerprint(path.parent) != digest:
        raise DamagedShard(f"{duplicates.path(path.parent)} differs from what was written; check the disk")
    return read
