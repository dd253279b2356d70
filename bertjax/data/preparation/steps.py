"""Preparation steps as pure functions on documents: no files, no order, no state.

Results depend only on contents and keys, within one document or one shard. The runner decides where and when the steps
run.
"""

import dataclasses
import gc
import hashlib
import re
import struct
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.store import COUNTS, SPLITS, token_dtype
from bertjax.data.text import unicode
from bertjax.data.text.sentences import split
from bertjax.data.tokenizer import Tokenizer

# Runs with any seed share a store, so the sample is drawn by a fixed name and by content, not by a seed.
SAMPLE_NAME = b"bertjax/sample"
_SAMPLE_STATE = hashlib.blake2b(digest_size=8, key=SAMPLE_NAME)  # copying it takes half the time of creating one
LONGEST = 10
_KEY = struct.Struct(">IIQQ")
PACKED_BYTES = _KEY.size
# White space that marks a text as unclean. A clean text has only single spaces, line ends and single blank lines.
_ASCII_UNCLEAN = (" \n", "\n ", "\n\n\n", *"\t\r\x0b\x0c\x1c\x1d\x1e\x1f")
_OTHER_UNCLEAN = tuple(chr(code) for code in range(128, 0x3001) if chr(code).isspace())
_BLANK_LINES = re.compile("\n{3,}")
LENGTH = np.dtype("<i4")


class Key(NamedTuple):
    """A document's place in the corpus. Keys, and their packed form, sort in corpus order.

    Attributes:
      source: source index; a held-out file has 0.
      part: part index within the source.
      number: ordinal within the part, from 1. Line numbers would not be unique: documents that are separated by old Mac
        line ends share one line.
      line: number of its first line or record, for messages; determined by the other three.
    """

    source: int
    part: int
    number: int
    line: int = 0

    def packed(self) -> bytes:
        """Return the key as `PACKED_BYTES` bytes, big-endian so that bytes compare like keys."""
        return _KEY.pack(*self)

    @classmethod
    def unpacked(cls, packed: bytes) -> "Key":
        """Return the inverse of `packed`. Trailing zero bytes may be missing, because numpy strips them."""
        return cls(*_KEY.unpack(packed.ljust(PACKED_BYTES, b"\0")))


class Content(NamedTuple):
    """A document's normalized content and its digests.

    Attributes:
      text: the document in NFC, with single spaces within lines and at most one blank line between two lines.
      digest: digest over `text`; it chooses the split.
      words: digest over the same text with spaces for line ends, see `_folded`. Documents with equal `words` are
        duplicates: tokenizers that ignore case, accents and invisible characters give them the same tokens.
    """

    text: str
    digest: bytes
    words: bytes


def content(text: str) -> Content:
    """Normalize a document's text and compute its digests.

    A store does not keep kinds of white space, blank lines, or Unicode forms other than NFC. Texts that differ only in
    these would become equal rows, perhaps in both splits.
    """
    text = unicodedata.normalize("NFC", text)
    if not _is_clean(text):
        lines = "\n".join(" ".join(line.split()) for line in text.splitlines())
        text = _BLANK_LINES.sub("\n\n", lines).strip("\n")
    split_by = _hash(text)
    return Content(text, split_by, _hash(_folded(text.replace("\n\n", " ").replace("\n", " "))))


def _folded(text: str) -> str:
    """Return a text without case, accents, format characters and compatibility forms, as BERT's tokenizer reads it."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", text.casefold())
    ignored = [character for character in set(text) if unicodedata.category(character) in ("Mn", "Cf")]
    return text.translate(dict.fromkeys(map(ord, ignored))) if ignored else text


def _is_clean(text: str) -> bool:
    """Return whether white space is already as in `Content`. Checking is ten times as fast as normalizing."""
    if text[:1].isspace() or text[-1:].isspace() or "  " in text:
        return False
    if text.isascii():
        # Most short documents are a single line. One look is enough: line ends and tabs are not printable.
        return text.isprintable() or not any(space in text for space in _ASCII_UNCLEAN)
    return not any(space in text for space in _ASCII_UNCLEAN + _OTHER_UNCLEAN)


def digest(text: str) -> bytes:
    """Hash a text in NFC and UTF-8: the first 16 bytes of SHA-256."""
    return _hash(unicodedata.normalize("NFC", text))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def split_of(digest: bytes, heldout_share: float) -> str:
    """Return a document's split. It depends only on content, so equal documents are in the same split."""
    return "heldout" if int.from_bytes(digest[:8], "big") < heldout_share * 2**64 else "train"


def is_in_share(digest: bytes, share: float) -> bool:
    """Return whether a training document is within `data.share`.

    This reads the digest half that `split_of` does not, so the two choices are independent.
    """
    return int.from_bytes(digest[8:], "big") < share * 2**64


def sample_priority(digest: bytes, stretch: int) -> int:
    """Return a stretch's priority in the tokenizer's sample, 64 bits. The lowest are drawn."""
    # Keyed with a name of its own, so the sample is independent of split and share, which use the same digest.
    state = _SAMPLE_STATE.copy()
    state.update(digest + stretch.to_bytes(8, "little"))
    return int.from_bytes(state.digest(), "little")


class ShardDocument(NamedTuple):
    """A document in a text shard.

    Attributes:
      key: its place in the corpus.
      id: its readable name, see `sources.Document`.
      group: index for its (split, source) pair.
      text: UTF-8.
    """

    key: Key
    id: str
    group: int
    text: bytes | memoryview


@dataclasses.dataclass(frozen=True)
class EncodedShard:
    """A shard's encoded documents.

    Attributes:
      counts: group -> `COUNTS` over its documents that hold a token.
      longest: (tokens, group, document id) for the longest documents, longest first.
      skipped: (group, error message, characters) per document without a token.
      arrays: split -> tokens (uint16 or uint32), sentence lengths in tokens (int32, never 0), document lengths in
        sentences (int32).
    """

    counts: dict[int, list[int]]
    longest: list[tuple[int, int, str]]
    skipped: list[tuple[int, str, int]]
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]

    def with_groups(self, groups: Sequence[int]) -> "EncodedShard":
        """Return the shard with its groups renumbered: g becomes `groups[g]`."""
        return dataclasses.replace(
            self,
            counts={groups[group]: counts for group, counts in self.counts.items()},
            longest=[(tokens, groups[group], name) for tokens, group, name in self.longest],
            skipped=[(groups[group], *rest) for group, *rest in self.skipped],
        )


def encode_shard(
    documents: Sequence[ShardDocument], split_of_group: Sequence[str], tokenizer: Tokenizer, splitter: str
) -> EncodedShard:
    """Encode documents, in order.

    Args:
      documents: one shard's documents, without duplicates.
      split_of_group: `train` or `heldout` per group.
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
            # Stable, so equally long documents stay in corpus order.
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
                # Tokens are in document order, so one flag per document, repeated, selects the tokens of a split.
                sentences.tokens[np.repeat(split_D == s, tokens_D)],
                sentences.lengths[(sentences.lengths > 0) & (split_D[sentences.owners] == s)].astype(LENGTH),
                sentences_D[has_tokens_D & (split_D == s)].astype(LENGTH),
            )
            for s, name in enumerate(SPLITS)
        },
    )


# Characters per call of the tokenizer: enough to keep it busy, few enough to hold in memory.
BATCH_CHARACTERS = 1 << 20
BLOCK_SENTENCES = 1 << 12


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Encoded sentences from D texts.

    Attributes:
      tokens: concatenated token ids: uint16 or uint32 [tokens].
      lengths: tokens per sentence; 0 for a sentence that is only U+2581, SentencePiece's sign for a space: int64 [S].
      words: words per sentence; in scripts without spaces each character is a word: int64 [S].
      owners: text index per sentence: int64 [S].
    """

    tokens: np.ndarray
    lengths: np.ndarray
    words: np.ndarray
    owners: np.ndarray

    def counts(self, contents: Sequence[memoryview], unk_id: int) -> dict[str, np.ndarray]:
        """Return `store.COUNTS` for each text, [D] each; `documents` is False for a text without a token.

        Args:
          contents: texts in UTF-8.
        """
        texts = len(contents)
        tokens_D = _sums(self.owners, self.lengths, texts)
        # The text of a token is the first one that ends behind it.
        unk = np.flatnonzero(self.tokens == unk_id)
        return {
            "documents": tokens_D > 0,
            "sentences": _sums(self.owners, self.lengths > 0, texts),
            "words": _sums(self.owners, self.words, texts),
            "tokens": tokens_D,
            "unk": np.bincount(np.searchsorted(np.cumsum(tokens_D), unk, side="right"), minlength=texts),
            "bytes": np.fromiter(map(len, contents), np.int64, texts),
            "characters": np.fromiter(map(_characters, contents), np.int64, texts),
        }


def encode(texts: Sequence[memoryview], tokenizer: Tokenizer, splitter: str) -> Sentences:
    """Split texts (UTF-8) into sentences and encode these."""
    dtype = token_dtype(tokenizer.vocab_size)
    # `concatenate` needs at least one array, and a shard may consist of duplicates only.
    tokens, per_sentence = [np.zeros(0, dtype)], [np.zeros((3, 0), np.int64)]
    # Garbage collection would take a tenth of the time: it visits all objects whenever a few thousand sentences have
    # been created, and sentences are never in a cycle.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for sentences, owners in _batches(texts, splitter):
            encoded, lengths = tokenizer.encode_flat(sentences)
            words = np.array(unicode.count_words(sentences), np.int64)
            tokens.append(encoded.astype(dtype))
            per_sentence.append(np.stack([lengths, words, owners]))
    finally:
        if was_enabled:
            gc.enable()
    return Sentences(np.concatenate(tokens), *np.concatenate(per_sentence, axis=1))


def _batches(texts: Sequence[memoryview], splitter: str) -> Iterator[tuple[list[str], list[int]]]:
    """Yield sentences in batches, with a text index for each."""
    batch, owners, characters = [], [], 0
    for owner, text in enumerate(texts):
        for piece in _pieces(text):
            sentences = split(piece, splitter)
            for first in range(0, len(sentences), BLOCK_SENTENCES):  # one line may hold all of a long document
                block = sentences[first : first + BLOCK_SENTENCES]
                batch += block
                owners += [owner] * len(block)
                characters += sum(map(len, block))
                if characters >= BATCH_CHARACTERS:
                    yield batch, owners
                    batch, owners, characters = [], [], 0
    if batch:
        yield batch, owners


def _pieces(text: memoryview) -> Iterator[str]:
    """Yield a long text in parts that end at line ends, where every sentence ends too."""
    content, start = bytes(text), 0
    while start < len(content):
        # `find` returns -1 without a line end, and -1 + 1 is 0. In UTF-8 the byte of a line end is never part of
        # another character, so cutting bytes is safe.
        stop = content.find(b"\n", start + BATCH_CHARACTERS) + 1 or len(content)
        yield str(content[start:stop], "utf-8")
        start = stop


def _characters(text: memoryview) -> int:
    """Count characters in UTF-8 text: all bytes except continuation bytes, 0b10xxxxxx, which are below -64 as int8."""
    return int(np.count_nonzero(np.frombuffer(text, np.int8) >= -64))


def _sums(owners: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Sum values by owner. `bincount` sums in float64, exact below 2**53."""
    return np.bincount(owners, values, size).astype(np.int64)
