"""Second pass: shards of text become shards of tokens, in any order and in any process."""

import contextlib
import dataclasses
import gc
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax.data.preparation import shards
from bertjax.data.store import COUNTS, SPLITS, token_dtype
from bertjax.data.text.sentences import split
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# Sentences are encoded so many characters at a time: enough to keep the tokenizer busy, little enough to hold.
BATCH_CHARACTERS = 1 << 20
BLOCK = 1 << 12
LONGEST = 10
LENGTH = np.dtype("<i4")


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The encoded sentences of the documents of a shard.

    Attributes:
      tokens: of all sentences: uint16 or uint32 [tokens].
      lengths: in tokens; 0 for a sentence of U+2581 alone, SentencePiece's own sign for a space: int64 [S].
      words: int64 [S].
      owners: index of the document: int64 [S].
    """

    tokens: np.ndarray
    lengths: np.ndarray
    words: np.ndarray
    owners: np.ndarray

    def counts(self, sizes: list[int], unk_id: int) -> dict[str, np.ndarray]:
        """`COUNTS` of each document, whose text has so many bytes; `documents` is False for one without a token."""
        tokens_D = _sums(self.owners, self.lengths, len(sizes))
        unk = np.flatnonzero(self.tokens == unk_id)
        return {
            "documents": tokens_D > 0,
            "sentences": _sums(self.owners, self.lengths > 0, len(sizes)),
            "words": _sums(self.owners, self.words, len(sizes)),
            "tokens": tokens_D,
            "unk": np.bincount(np.searchsorted(np.cumsum(tokens_D), unk, side="right"), minlength=len(sizes)),
            "bytes": np.array(sizes, np.int64),
        }


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Encodes shards; travels to the processes that do so.

    Attributes:
      folder: of the unfinished preparation.
      tokenizer: what encodes.
      splitter: see `sentences.split`.
      on_bad_document: `stop` or `skip` where a document holds no token.
      groups: (split, source) of each group.
    """

    folder: Path
    tokenizer: Tokenizer
    splitter: str
    on_bad_document: str
    groups: tuple[tuple[str, str], ...]

    def __call__(self, index: int) -> dict:
        """Encodes one shard, whose tokens then lie at `shards.tokens_path`, and returns the header of that file.

        The header says what the shard holds: `counts` {group: [COUNTS]}, `longest` [[tokens, group, document id]],
        `skipped` [[group, what is wrong]] and `sizes` {split: [tokens, sentences, documents]}. After it come, split by
        split, the tokens, the lengths of the sentences in tokens, and the lengths of the documents in sentences.

        Raises:
          UserError: a document holds no token, and that stops.
          Damaged: the text is not as it was written.
        """
        names, group_D, texts = self._documents(index)
        with _without_collector():
            sentences = self._encode(texts)
        columns = sentences.counts([len(text) for text in texts], self.tokenizer.unk_id)
        real_D = columns["documents"]
        skipped = [
            [int(group_D[d]), f"document {names[d]} holds no token: {str(texts[d], 'utf-8')[:40]!r}; remove it"]
            for d in np.flatnonzero(~real_D)
        ]
        if skipped and self.on_bad_document == "stop":
            raise UserError(skipped[0][1])

        tokens_D, sentences_D = columns["tokens"], columns["sentences"]
        longest = np.argsort(-tokens_D, kind="stable")[:LONGEST]
        split_D = np.array([SPLITS.index(name) for name, _ in self.groups])[group_D]
        arrays = {
            name: (
                sentences.tokens[np.repeat(split_D == s, tokens_D)],
                sentences.lengths[(sentences.lengths > 0) & (split_D[sentences.owners] == s)].astype(LENGTH),
                sentences_D[real_D & (split_D == s)].astype(LENGTH),
            )
            for s, name in enumerate(SPLITS)
        }
        header = {
            "counts": {
                group: [int(columns[name][real_D & (group_D == group)].sum()) for name in COUNTS]
                for group in np.unique(group_D).tolist()
            },
            "longest": [[int(tokens_D[d]), int(group_D[d]), names[d]] for d in longest if real_D[d]],
            "skipped": skipped,
            "sizes": {name: [len(array) for array in parts] for name, parts in arrays.items()},
        }
        payload = [memoryview(array).cast("B") for parts in arrays.values() for array in parts if len(array)]
        shards.write(shards.tokens_path(self.folder, index), header, payload)
        return header

    def _documents(self, index: int) -> tuple[list[str], np.ndarray, list[memoryview]]:
        """Ids, groups and texts of the documents of a shard that are no duplicates."""
        header, payload = shards.read(shards.text_path(self.folder, index))
        documents = header["documents"]
        dropped = np.load(shards.dropped_path(self.folder), mmap_mode="r")[header["first"] :]
        stops = itertools.accumulate(size for _, _, size in documents)
        texts = (payload[stop - size : stop] for stop, (_, _, size) in zip(stops, documents, strict=True))
        kept = [
            (name, group, text)
            for (name, group, _), text, is_dropped in zip(documents, texts, dropped[: len(documents)], strict=True)
            if not is_dropped
        ]
        return [name for name, _, _ in kept], np.array([group for _, group, _ in kept], np.int64), [t for *_, t in kept]

    def _encode(self, texts: list[memoryview]) -> "Sentences":
        dtype = token_dtype(self.tokenizer.vocab_size)
        tokens, per_sentence = [np.zeros(0, dtype)], [np.zeros((3, 0), np.int64)]
        for sentences, owners in self._batches(texts):
            encoded, lengths = self.tokenizer.encode_flat(sentences)
            # Sentences hold no white space but single spaces.
            words = 1 + np.fromiter(map(str.count, sentences, itertools.repeat(" ")), np.int64, len(sentences))
            tokens.append(encoded.astype(dtype))
            per_sentence.append(np.stack([lengths, words, owners]))
        return Sentences(np.concatenate(tokens), *np.concatenate(per_sentence, axis=1))

    def _batches(self, texts: list[memoryview]) -> Iterator[tuple[list[str], list[int]]]:
        """Sentences, each with the index of its text."""
        sentences, owners, characters = [], [], 0
        for owner, text in enumerate(texts):
            for piece in _pieces(text):
                found = split(piece, self.splitter)
                for first in range(0, len(found), BLOCK):  # a single line may hold all of a long document
                    block = found[first : first + BLOCK]
                    sentences += block
                    owners += [owner] * len(block)
                    characters += sum(map(len, block))
                    if characters >= BATCH_CHARACTERS:
                        yield sentences, owners
                        sentences, owners, characters = [], [], 0
        if sentences:
            yield sentences, owners


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keeps Python's collector of cycles away: it would walk through all there is whenever a few thousand sentences are
    encoded, for a tenth of the time, and they are in no cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _pieces(text: memoryview) -> Iterator[str]:
    """A long text, in UTF-8, in parts that end where a line does, and with it a sentence."""
    content, start = bytes(text), 0
    while start < len(content):
        stop = content.find(b"\n", start + BATCH_CHARACTERS) + 1 or len(content)
        yield str(content[start:stop], "utf-8")
        start = stop


def _sums(owners: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Sums of the values of each owner, exact below 2**53."""
    return np.bincount(owners, values, size).astype(np.int64)
