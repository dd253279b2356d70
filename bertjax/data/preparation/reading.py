"""First pass: all documents in order, once, to shards of text on disk, with a digest of each."""

import dataclasses
import json
import sys
from pathlib import Path

from tqdm import tqdm

from bertjax import storage
from bertjax.data import sources
from bertjax.data.config import DataConfig
from bertjax.data.preparation import duplicates, shards
from bertjax.data.preparation.sample import Sample
from bertjax.data.sources import Part
from bertjax.data.store import SPLITS
from bertjax.errors import UserError

HELDOUT_FILE = "heldout file"
NAMED_AT_MOST = 5


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the first pass found; with it on disk, the corpus is not read again.

    Attributes:
      groups: (split, source) of each group of documents.
      kept: documents of each group without duplicates.
      dropped: duplicates of each group.
      skipped: bad documents of each source.
      shard_bytes: text of each shard.
    """

    groups: tuple[tuple[str, str], ...]
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    skipped: dict[str, int]
    shard_bytes: tuple[int, ...]

    @classmethod
    def of_json(cls, fields: dict) -> "Reading":
        """The inverse of `dataclasses.asdict` through JSON."""
        tuples = {key: tuple(fields[key]) for key in ("kept", "dropped", "shard_bytes")}
        return cls(groups=tuple(map(tuple, fields["groups"])), skipped=fields["skipped"], **tuples)

    def documents(self, split: str) -> int:
        """How many documents a split has."""
        return sum(kept for (name, _), kept in zip(self.groups, self.kept, strict=True) if name == split)


@dataclasses.dataclass
class Bad:
    """What happens to bad documents: the first one stops, or all are counted and the first ones named.

    Attributes:
      reaction: `stop` or `skip`.
      skipped: how many were left out, by source.
    """

    reaction: str
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)

    def __call__(self, source: str, message: str) -> None:
        """Hears of one.

        Raises:
          UserError: it stops.
        """
        if self.reaction == "stop":
            raise UserError(message)
        self.skipped[source] = self.skipped.get(source, 0) + 1
        number = sum(self.skipped.values())
        if number <= NAMED_AT_MOST:
            tqdm.write(f"skipped: {message}", file=sys.stderr)
        if number == NAMED_AT_MOST:
            tqdm.write("more of them are counted without a word", file=sys.stderr)


def read(config: DataConfig, folder: Path, sample: Sample | None) -> tuple[Reading, list[str]]:
    """Reads every document, finds duplicates and gives the sentences to train a tokenizer on.

    Held-out files come first, so that a training document that equals a held-out one is the one that goes.

    Args:
      folder: where the shards of text and `dropped.npy` go.
      sample: what draws the sentences; None where no tokenizer is trained.

    Raises:
      UserError: a bad document, where that stops, or a source that cannot be read.
    """
    corpora = _corpora(config)
    groups, bad = [], Bad(config.on_bad_document)
    writer = shards.TextWriter(folder)
    total = sum(part.size for _, parts in corpora.values() for part in parts)
    with (
        open(folder / "documents.bin", "wb") as documents,
        tqdm(total=total, desc="reading", unit="B", unit_scale=True, disable=None) as bar,
    ):
        for source, (splits, parts) in corpora.items():
            group_of = {split: len(groups) + i for i, split in enumerate(splits)}
            groups += [(split, source) for split in splits]
            for part in parts:
                for document in part.documents(bar.update, lambda error, source=source: bad(source, str(error))):
                    digest = duplicates.digest_of(document.text)
                    split = splits[0]
                    if len(splits) > 1:
                        split = "heldout" if is_heldout(digest, config.heldout_share) else "train"
                    if sample and split == "train":
                        sample.add(writer.documents, digest, document.text)
                    documents.write(duplicates.record(digest, group_of[split]))
                    writer.append(document.id, group_of[split], document.text.encode())
    writer.close()
    marks, kept, dropped = duplicates.drop(folder / "documents.bin", shards.dropped_path(folder), len(groups))
    sentences = sample.sentences(config.splitter, marks.__getitem__) if sample else []
    return Reading(tuple(groups), kept, dropped, bad.skipped, tuple(writer.sizes)), sentences


def is_heldout(digest: bytes, share: float) -> bool:
    """Whether a document is held out: decided by its content alone, so equal documents stay on one side."""
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _corpora(config: DataConfig) -> dict[str, tuple[tuple[str, ...], list[Part]]]:
    """Parts of each source, and the splits that its documents go to."""
    splits = ("train",) if config.heldout else SPLITS
    corpora = {}
    if config.heldout:
        corpora[HELDOUT_FILE] = (("heldout",), sources.parts(config.heldout, config.text_field))
    for name, source in config.named_sources.items():
        corpora[name] = (splits, sources.parts(source.corpus, source.text_field))
    return corpora


def save(reading: Reading, spec: dict, path: Path) -> None:
    """Writes what the first pass found, all of it or nothing."""
    storage.write_text(path, json.dumps({"spec": spec, "reading": dataclasses.asdict(reading)}))


def load(path: Path, spec: dict) -> Reading | None:
    """What `save` wrote for the same spec, else None."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Reading.of_json(found["reading"]) if found["spec"] == spec else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
