"""The steps of a preparation as pure functions of documents: no files, no order, no state.

A result depends only on the content and the keys of one document, or of the documents of one shard. A runner decides
where and when the steps run.
"""

import dataclasses
import hashlib
import re
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
_KEY = struct.Struct(">IIQQ")
PACKED_BYTES = _KEY.size
# White space that a clean text does not have: all but single spaces, line ends and blank lines.
_ASCII_UNCLEAN = ("  ", " \n", "\n ", "\n\n\n", *"\t\r\x0b\x0c\x1c\x1d\x1e\x1f")
_OTHER_UNCLEAN = tuple(chr(code) for code in range(128, 0x3001) if chr(code).isspace())
_BLANK_LINES = re.compile("\n{3,}")
LENGTH = np.dtype("<i4")


class Key(NamedTuple):
    """Where a document is in the corpus. Keys, and their packed form, sort as the documents of the corpus do.

    Attributes:
      source: index of its source; that of a held-out file is 0.
      part: index of its part among the parts of the source.
      number: its ordinal among the documents of the part, from 1. It is not the number of its line: documents between
        the line ends of old Macs share one.
      line: number of its first line, or of its record, for messages; it follows from the other three.
    """

    source: int
    part: int
    number: int
    line: int = 0

    def packed(self) -> bytes:
        """Return the key as `PACKED_BYTES` bytes."""
        return _KEY.pack(*self)

    @classmethod
    def unpacked(cls, packed: bytes) -> "Key":
        """Return the inverse of `packed`; zero bytes at the end may be missing, as numpy leaves them out."""
        return cls(*_KEY.unpack(packed.ljust(PACKED_BYTES, b"\0")))


class Content(NamedTuple):
    """What identifies a document.

    Attributes:
      text: the document in NFC, with single spaces within its lines and at most one blank line between two.
      digest: the `digest` of this text, which chooses its split.
      words: that of the same text without line ends. Documents with equal ones are duplicates: their tokens are equal,
        and only the ends of sentences may differ.
    """

    text: str
    digest: bytes
    words: bytes


def content(text: str) -> Content:
    """Return what identifies a document.

    A store keeps neither the kind of white space, blank lines nor another form than NFC, so texts that differ in these
    only would be the same rows, perhaps in both splits.
    """
    text = unicodedata.normalize("NFC", text)
    if not _is_clean(text):
        lines = "\n".join(" ".join(line.split()) for line in text.splitlines())
        text = _BLANK_LINES.sub("\n\n", lines).strip("\n")
    split_by = _hash(text)
    words = text.replace("\n\n", " ").replace("\n", " ")
    return Content(text, split_by, _hash(words) if "\n" in text else split_by)


def _is_clean(text: str) -> bool:
    """Return whether a text is as `Content` has it. Looking for what is not is ten times as fast as making it so."""
    if text[:1].isspace() or text[-1:].isspace():
        return False
    unclean = _ASCII_UNCLEAN if text.isascii() else _ASCII_UNCLEAN + _OTHER_UNCLEAN
    return not any(space in text for space in unclean)


def digest(text: str) -> bytes:
    """Return 16 bytes for a text: the first half of the SHA-256 of its NFC form in UTF-8."""
    return _hash(unicodedata.normalize("NFC", text))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


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
      skipped: (group, error message, characters) of each document without a token.
      arrays: split -> tokens (uint16 or uint32), lengths of the sentences in tokens (int32, none of them 0), lengths of
        the documents in sentences (int32).
    """

    counts: dict[int, list[int]]
    longest: list[tuple[int, int, str]]
    skipped: list[tuple[int, str, int]]
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]

    def with_groups(self, groups: Sequence[int]) -> "EncodedShard":
        """Return the shard with group `groups[g]` in place of g."""
        return dataclasses.replace(
            self,
            counts={groups[group]: counts for group, counts in self.counts.items()},
            longest=[(tokens, groups[group], name) for tokens, group, name in self.longest],
            skipped=[(groups[group], *rest) for group, *rest in self.skipped],
        )


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
    columns = sentences.counts(texts, tokenizer.unk_id)
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
            (
                int(group_D[d]),
                f"document {ids[d]} holds no token: {str(texts[d], 'utf-8')[:40]!r}; remove it",
                int(columns["characters"][d]),
            )
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
