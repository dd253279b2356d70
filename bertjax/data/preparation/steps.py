"""The steps of a preparation as pure functions of documents: no files, no order, no state.

A result depends only on the content and the keys of one document, or of the documents of one shard. A runner decides
where and when the steps run.
"""

import dataclasses
import hashlib
import struct
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.preparation.encoding import encode
from bertjax.data.store import COUNTS, SPLITS
from bertjax.data.tokenizer import Tokenizer

# Runs of all seeds share a store, so its sample depends on a fixed name and on content, and not on a seed.
SAMPLE_NAME = b"bertjax/sample"
LONGEST = 10
LENGTH = np.dtype("<i4")


class Key(NamedTuple):
    """Where a document is in the corpus. Keys, and their packed form, sort as the documents of the corpus do.

    Attributes:
      source: index of its source; that of a held-out file is 0.
      part: index of its part among the parts of the source.
      number: its number within the part, see `sources.Document`.
    """

    source: int
    part: int
    number: int

    def packed(self) -> bytes:
        """Return the key as 16 bytes."""
        return struct.pack(">IIQ", *self)

    @classmethod
    def unpacked(cls, packed: bytes) -> "Key":
        """Return the inverse of `packed`; zero bytes at the end may be missing, as numpy leaves them out."""
        return cls(*struct.unpack(">IIQ", packed.ljust(16, b"\0")))


def digest(text: str) -> bytes:
    """Return 16 bytes for the content of a document: the first half of the SHA-256 of its NFC form in UTF-8."""
    return hashlib.sha256(unicodedata.normalize("NFC", text).encode()).digest()[:16]


def split_of(digest: bytes, heldout_share: float) -> str:
    """Return the split of a document. It depends only on the content, so equal documents are in one split."""
    return "heldout" if int.from_bytes(digest[:8], "big") < heldout_share * 2**64 else "train"


def is_in_share(digest: bytes, share: float) -> bool:
    """Return whether a training document is used if `share` of them are.

    It depends on the half of the digest that `split_of` does not read, so the share of any split is the same.
    """
    return int.from_bytes(digest[8:], "big") < share * 2**64


def sample_priority(digest: bytes, stretch: int) -> int:
    """Return the priority of a stretch of a document in the tokenizer's sample: 64 bits, the lowest are drawn."""
    content = digest + stretch.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=SAMPLE_NAME).digest(), "little")


class ShardDocument(NamedTuple):
    """A document as shards of text hold it.

    Attributes:
      key: where it is in the corpus.
      id: its name for people, see `sources.Document`.
      group: index of its group, a pair of split and source.
      text: its text in UTF-8.
    """

    key: Key
    id: str
    group: int
    text: bytes | memoryview


@dataclasses.dataclass(frozen=True)
class EncodedShard:
    """The documents of a shard as tokens.

    Attributes:
      counts: group -> `COUNTS` of its documents that hold a token.
      longest: (tokens, group, document id) of the longest documents, longest first.
      skipped: (group, error message) of each document without a token.
      arrays: split -> tokens (uint16 or uint32), lengths of the sentences in tokens (int32, none of them 0), lengths of
        the documents in sentences (int32).
    """

    counts: dict[int, list[int]]
    longest: list[tuple[int, int, str]]
    skipped: list[tuple[int, str]]
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def encode_shard(
    documents: Sequence[ShardDocument], split_of_group: Sequence[str], tokenizer: Tokenizer, splitter: str
) -> EncodedShard:
    """Return the tokens of documents, in their order.

    Args:
      documents: without duplicates.
      split_of_group: `train` or `heldout` for each group.
      splitter: see `sentences.split`.
    """
    ids, texts = [document.id for document in documents], [document.text for document in documents]
    group_D = np.array([document.group for document in documents], np.int64)
    sentences = encode(texts, tokenizer, splitter)
    columns = sentences.counts([len(text) for text in texts], tokenizer.unk_id)
    has_tokens_D, tokens_D, sentences_D = columns["documents"], columns["tokens"], columns["sentences"]
    split_D = np.array([SPLITS.index(split) for split in split_of_group])[group_D]
    return EncodedShard(
        counts={
            group: [int(columns[name][has_tokens_D & (group_D == group)].sum()) for name in COUNTS]
            for group in np.unique(group_D).tolist()
        },
        longest=[
            (int(tokens_D[d]), int(group_D[d]), ids[d])
            for d in np.argsort(-tokens_D, kind="stable")[:LONGEST]
            if has_tokens_D[d]
        ],
        skipped=[
            (int(group_D[d]), f"document {ids[d]} holds no token: {str(texts[d], 'utf-8')[:40]!r}; remove it")
            for d in np.flatnonzero(~has_tokens_D)
        ],
        arrays={
            name: (
                sentences.tokens[np.repeat(split_D == s, tokens_D)],
                sentences.lengths[(sentences.lengths > 0) & (split_D[sentences.owners] == s)].astype(LENGTH),
                sentences_D[has_tokens_D & (split_D == s)].astype(LENGTH),
            )
            for s, name in enumerate(SPLITS)
        },
    )
