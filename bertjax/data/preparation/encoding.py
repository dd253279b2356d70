"""Texts as sentences of tokens, in batches that keep the tokenizer busy and memory small."""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.data.store import token_dtype
from bertjax.data.text import unicode
from bertjax.data.text.sentences import split
from bertjax.data.tokenizer import Tokenizer

# Characters that are encoded at a time: enough to keep the tokenizer busy, few enough to hold in memory.
BATCH_CHARACTERS = 1 << 20
BLOCK_SENTENCES = 1 << 12


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The encoded sentences of D texts.

    Attributes:
      tokens: token ids of all sentences: uint16 or uint32 [tokens].
      lengths: tokens of each sentence; 0 for a sentence of U+2581 alone, SentencePiece's own sign for a space:
        int64 [S].
      words: words of each sentence; a character of a script without spaces is a word: int64 [S].
      owners: index of the text of each sentence: int64 [S].
    """

    tokens: np.ndarray
    lengths: np.ndarray
    words: np.ndarray
    owners: np.ndarray

    def counts(self, contents: Sequence[memoryview], unk_id: int) -> dict[str, np.ndarray]:
        """Return `store.COUNTS` of each text, [D] each; `documents` is False for a text without a token.

        Args:
          contents: the texts in UTF-8.
        """
        texts = len(contents)
        tokens_D = _sums(self.owners, self.lengths, texts)
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
    """Return the sentences of texts (UTF-8) as tokens."""
    dtype = token_dtype(tokenizer.vocab_size)
    tokens, per_sentence = [np.zeros(0, dtype)], [np.zeros((3, 0), np.int64)]
    with _no_garbage_collection():
        for sentences, owners in _batches(texts, splitter):
            encoded, lengths = tokenizer.encode_flat(sentences)
            words = np.fromiter(map(unicode.count_words, sentences), np.int64, len(sentences))
            tokens.append(encoded.astype(dtype))
            per_sentence.append(np.stack([lengths, words, owners]))
    return Sentences(np.concatenate(tokens), *np.concatenate(per_sentence, axis=1))


def _batches(texts: Sequence[memoryview], splitter: str) -> Iterator[tuple[list[str], list[int]]]:
    """Yield sentences, and the index of the text of each."""
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
    """Yield a long text in parts. Each part ends at the end of a line, which is the end of a sentence."""
    content, start = bytes(text), 0
    while start < len(content):
        stop = content.find(b"\n", start + BATCH_CHARACTERS) + 1 or len(content)
        yield str(content[start:stop], "utf-8")
        start = stop


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn off Python's collector of reference cycles.

    It takes a tenth of the time, because it visits all objects whenever a few thousand sentences are encoded, and no
    sentence is in a cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _characters(text: memoryview) -> int:
    """Return the characters of a text in UTF-8: its bytes without those that continue a character, 0b10xxxxxx."""
    return int(np.count_nonzero(np.frombuffer(text, np.int8) >= -64))


def _sums(owners: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Return the sum of the values of each owner, exact below 2**53."""
    return np.bincount(owners, values, size).astype(np.int64)
