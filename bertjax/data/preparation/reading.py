"""First pass: every document once, in order, to shards of text on disk, with a digest of each.

A document runs through a pipe of generators: read, cleaned, grouped, sampled, recorded, written. Documents outside of
`data.share` run through all of it but the last, so the tokenizer and the duplicates are those of the whole corpus.
Cleaning comes first, so digests, splits and duplicates are those of the text that filters leave.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from bertjax import storage
from bertjax.data import sources
from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, near_duplicates, shards, steps, workers
from bertjax.data.preparation.cleaning import Cleaner, Entry, cleaned
from bertjax.data.preparation.dropped import Dropped
from bertjax.data.preparation.duplicates import Duplicates
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import Key, ShardDocument
from bertjax.data.sources import Document, OnBad, OnRead, Part
from bertjax.data.sources.bad import BadRecords
from bertjax.data.store import SPLITS

HELDOUT_FILE = "heldout file"
FORMAT_VERSION = 3
# What is compared to find duplicates and near-duplicates.
DOCUMENTS, NEAR = "documents.bin", "near.bin"


@dataclasses.dataclass(frozen=True)
class Reading:
    """The result of the first pass; when it is on disk, the corpus is not read again.

    Attributes:
      groups: (split, source) of each group of documents.
      kept: documents of each group without duplicates and near-duplicates, also those outside of `data.share`.
      duplicates: duplicates of each group.
      skipped: bad documents of each source.
      shard_bytes: bytes of text in each shard.
      cleaning: empty without filters and near-duplicates. Else `dropped` {source: {filter: {reason: documents}}},
        `changed` {source: {filter: [documents, changes]}}, and, if near-duplicates are dropped, `near_duplicates`
        {source: documents}, `clusters` and `largest` [[documents, id of the one that stays, beginning of its text]].
    """

    groups: tuple[tuple[str, str], ...]
    kept: tuple[int, ...]
    duplicates: tuple[int, ...]
    skipped: dict[str, int]
    shard_bytes: tuple[int, ...]
    cleaning: dict[str, Any]

    @classmethod
    def from_json(cls, fields: dict) -> "Reading":
        """Return the inverse of `dataclasses.asdict` after a round trip through JSON."""
        tuples = {key: tuple(fields[key]) for key in ("kept", "duplicates", "shard_bytes")}
        groups = tuple(map(tuple, fields["groups"]))
        return cls(groups=groups, skipped=fields["skipped"], cleaning=fields["cleaning"], **tuples)

    def documents(self, split: str) -> int:
        """Return the number of documents of a split."""
        return sum(kept for (name, _), kept in zip(self.groups, self.kept, strict=True) if name == split)


class Source(NamedTuple):
    """A source: its name, its parts, the splits that its documents may be in and the index of the first one's group."""

    name: str
    parts: list[Part]
    splits: tuple[str, ...]
    first_group: int


class _Grouped(NamedTuple):
    """A document with its digest, the index of its group, and its buckets (see `Entry`)."""

    key: Key
    document: Document
    digest: bytes
    group: int
    buckets: np.ndarray | None


def read(config: DataConfig, folder: Path, sample: Sample) -> tuple[Reading, list[str]]:
    """Read every document, find duplicates and return the sentences that a tokenizer trains on.

    Held-out files come first, so a training document that equals a held-out one is the duplicate.

    Args:
      folder: receives the shards of text and the keys of the duplicates.
      sample: draws the sentences.

    Raises:
      UserError: a source cannot be read, or a document is bad and bad documents stop the preparation.
    """
    all_sources = sources_of(config)
    bad = BadRecords(config.on_bad_document, "documents")
    size = sum(part.size for source in all_sources for part in source.parts)
    with open_dropped(config, folder / "store") as dropped:
        with tqdm(total=size, desc="reading", unit="B", unit_scale=True, disable=None) as bar:
            entries = _read(all_sources, bar.update, bad)
            processes = workers.number(config.workers)
            shard_bytes = write(entries, config, all_sources, folder, sample, dropped, processes)
        return compared(config, folder, all_sources, sample, dropped, bad.skipped, shard_bytes)


def is_cleaned(config: DataConfig) -> bool:
    """Return whether a preparation drops documents other than exact duplicates."""
    return bool(config.filters) or config.near_duplicates.drop


def open_dropped(config: DataConfig, folder: Path) -> contextlib.AbstractContextManager[Dropped | None]:
    """Open the list of the dropped documents in `folder`; None if only exact duplicates are dropped."""
    return Dropped(folder) if is_cleaned(config) else contextlib.nullcontext()


def write(
    entries: Iterable[Entry],
    config: DataConfig,
    all_sources: list[Source],
    folder: Path,
    sample: Sample,
    dropped: Dropped | None,
    processes: int,
) -> tuple[int, ...]:
    """Clean documents, offer them to the sample, write them to shards of text, and write what is compared.

    Args:
      entries: documents in the order of the corpus.
      folder: receives `documents.bin`, `near.bin` and the shards of text.
      processes: number of processes that clean.

    Returns:
      Bytes of text in each shard.
    """

    def is_train(group: int) -> bool:
        return groups[group][0] == "train"

    groups, near = groups_of(all_sources), config.near_duplicates
    with (
        open(folder / DOCUMENTS, "wb") as records,
        open(folder / NEAR, "wb") if near.drop else contextlib.nullcontext() as near_records,
    ):
        if dropped:
            names = [source.name for source in all_sources]
            entries = cleaned(entries, Cleaner(config.filters, near), processes, dropped, names)
        documents = _grouped(entries, all_sources, config.heldout_share)
        documents = _sampled(documents, sample, is_train)
        documents = _recorded(documents, records, near_records)
        used = _in_share(documents, config.share, is_train)
        return shards.write_texts(folder, map(_to_shard, used))


def compared(
    config: DataConfig,
    folder: Path,
    all_sources: list[Source],
    sample: Sample,
    dropped: Dropped | None,
    skipped: dict[str, int],
    shard_bytes: tuple[int, ...],
) -> tuple[Reading, list[str]]:
    """Find the duplicates among all documents that `write` has recorded, and return what `read` returns."""
    groups = groups_of(all_sources)
    kept, copies, cleaning = _find_duplicates(config, folder, groups, all_sources, dropped)
    is_duplicate = Duplicates(duplicates.path(folder)).__contains__
    sentences = sample.sentences(config.splitter, is_duplicate)
    return Reading(groups, kept, copies, skipped, shard_bytes, cleaning), sentences


def _find_duplicates(
    config: DataConfig,
    folder: Path,
    groups: tuple[tuple[str, str], ...],
    all_sources: list[Source],
    dropped: Dropped | None,
) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Return `Reading.kept`, `duplicates` and `cleaning`; the keys of what is dropped are on disk then."""
    kept, copies = duplicates.find(folder / DOCUMENTS, duplicates.path(folder), len(groups))
    if not dropped:
        return kept, copies, {}
    _write_exact(dropped, folder, all_sources)
    cleaning = {"dropped": dropped.numbers, "changed": dropped.changes}
    if config.near_duplicates.drop:
        exact = Duplicates(duplicates.path(folder))
        is_heldout = [split == "heldout" for split, _ in groups]
        clusters = near_duplicates.find(folder / NEAR, exact, config.near_duplicates.buckets, is_heldout)
        duplicates.add(duplicates.path(folder), clusters.dropped)
        dropped_G = np.bincount(clusters.groups, minlength=len(groups))
        kept = tuple((np.array(kept) - dropped_G).tolist())
        cleaning |= _write_near(dropped, clusters, dropped_G, groups, all_sources)
    return kept, copies, cleaning


def _write_exact(dropped: Dropped, folder: Path, all_sources: list[Source]) -> None:
    """List the exact duplicates."""
    for packed in Duplicates(duplicates.path(folder)).packed():
        source, name = _name(packed, all_sources)
        dropped.write(source=source, id=name, rule="duplicate", reason="equals an earlier document")


def _write_near(
    dropped: Dropped,
    clusters: near_duplicates.Clusters,
    dropped_G: np.ndarray,
    groups: tuple[tuple[str, str], ...],
    all_sources: list[Source],
) -> dict[str, Any]:
    """List the near-duplicates and return what a manifest has of them."""
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
    """Return the source and the id of the document with a packed key."""
    key = Key.unpacked(packed)
    source = all_sources[key.source]
    return source.name, f"{source.parts[key.part].name}:{key.number}"


def sources_of(config: DataConfig) -> list[Source]:
    """Return the sources in the order of the corpus."""
    named = [(name, sources.parts(source.corpus, source.text_field)) for name, source in config.named_sources.items()]
    if not config.heldout:
        return [Source(name, parts, SPLITS, index * len(SPLITS)) for index, (name, parts) in enumerate(named)]
    heldout = Source(HELDOUT_FILE, sources.parts(config.heldout, config.text_field), ("heldout",), 0)
    return [heldout, *(Source(name, parts, ("train",), index) for index, (name, parts) in enumerate(named, start=1))]


def groups_of(all_sources: list[Source]) -> tuple[tuple[str, str], ...]:
    """Return (split, source) of each group of documents."""
    return tuple((split, source.name) for source in all_sources for split in source.splits)


def _read(all_sources: list[Source], on_read: OnRead, bad: BadRecords) -> Iterator[Entry]:
    for index, source in enumerate(all_sources):
        on_bad = functools.partial(bad.add, source.name)
        for part_index in range(len(source.parts)):
            yield from read_part(all_sources, index, part_index, on_read, on_bad)


def read_part(all_sources: list[Source], source: int, part: int, on_read: OnRead, on_bad: OnBad) -> Iterator[Entry]:
    """Yield the documents of a part; see `Part.documents`.

    Args:
      source: index of its source.
      part: index of the part among those of the source.
    """
    is_filtered = all_sources[source].name != HELDOUT_FILE
    for document in all_sources[source].parts[part].documents(on_read, on_bad):
        yield Entry(Key(source, part, document.number), document, is_filtered)


def _grouped(documents: Iterable[Entry], all_sources: list[Source], heldout_share: float) -> Iterator[_Grouped]:
    for key, document, _, buckets in documents:
        digest, source = steps.digest(document.text), all_sources[key.source]
        split = source.splits[0] if len(source.splits) == 1 else steps.split_of(digest, heldout_share)
        yield _Grouped(key, document, digest, source.first_group + source.splits.index(split), buckets)


def _sampled(documents: Iterable[_Grouped], sample: Sample, is_train: Callable[[int], bool]) -> Iterator[_Grouped]:
    """Offer the training documents to the sample on their way."""
    for entry in documents:
        if is_train(entry.group):
            sample.add(entry.key, entry.digest, entry.document.text)
        yield entry


def _recorded(documents: Iterable[_Grouped], records: IO[bytes], near_records: IO[bytes] | None) -> Iterator[_Grouped]:
    """Write what is compared to find duplicates and near-duplicates."""
    for entry in documents:
        records.write(duplicates.record(entry.digest, entry.key, entry.group))
        if near_records:
            text = entry.document.text.encode()
            near_records.write(near_duplicates.record(entry.key, entry.digest, entry.group, text, entry.buckets))
        yield entry


def _in_share(documents: Iterable[_Grouped], share: float, is_train: Callable[[int], bool]) -> Iterator[_Grouped]:
    """Leave out the training documents outside of the share."""
    for entry in documents:
        if not is_train(entry.group) or steps.is_in_share(entry.digest, share):
            yield entry


def _to_shard(entry: _Grouped) -> ShardDocument:
    return ShardDocument(entry.key, entry.document.id, entry.group, entry.document.text.encode())


def save(reading: Reading, spec: dict, path: Path) -> None:
    """Write the result of the first pass for `load`."""
    content = {"format_version": FORMAT_VERSION, "spec": spec, "reading": dataclasses.asdict(reading)}
    storage.write_text(path, json.dumps(content))


def load(path: Path, spec: dict) -> Reading | None:
    """Return what `save` wrote for the same spec, or None."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format_version"] != FORMAT_VERSION or content["spec"] != spec:
            return None
        return Reading.from_json(content["reading"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
