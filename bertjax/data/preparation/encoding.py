"""Encode texts into sentences of tokens, in batches large enough for the tokenizer and small enough for memory."""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.data.store import token_dtype
from bertjax.data.text import unicode
from bertjax.data.text.sentences import split
from bertjax.data.tokenizer import Tokenizer

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
    with _no_garbage_collection():
        for sentences, owners in _batches(texts, splitter):
            encoded, lengths = tokenizer.encode_flat(sentences)
            words = np.array(unicode.count_words(sentences), np.int64)
            tokens.append(encoded.astype(dtype))
            per_sentence.append(np.stack([lengths, words, owners]))
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


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn off Python's garbage collection of reference cycles.

    It would take a tenth of the time: it visits all objects whenever a few thousand sentences have been created, and
    sentences are never in a cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _characters(text: memoryview) -> int:
    """Count characters in UTF-8 text: all bytes except continuation bytes, 0b10xxxxxx, which are below -64 as int8."""
    return int(np.count_nonzero(np.frombuffer(text, np.int8) >= -64))


def _sums(owners: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Sum values by owner. `bincount` sums in float64, exact below 2**53."""
    return np.bincount(owners, values, size).astype(np.int64)
