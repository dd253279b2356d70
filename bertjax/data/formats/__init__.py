"""Example formats: they turn data into examples, and keep what a plan stores of them.

The registry lists them; name a format from outside bertjax as `module:Class`. Formats in this package read token
stores, block by block; `bertjax.data.labeled` has the ones for labeled files.
"""

import copy
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertjax.config.registry import Kind, Union
from bertjax.data.examples import Examples, Ragged, Vocabulary
from bertjax.data.framing import special_tokens
from bertjax.data.store import Split, TokenStore, at_random
from bertjax.runtime.setting import OF_INPUT, check, setting

# Sentences per block, approximately. Bounds memory for any split size.
BLOCK_SENTENCES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Block:
    """E consecutive examples in a plan.

    Conservation: example tokens = tokens in the block's documents - lost + repeated.

    Attributes:
      ranges: int64 [E, columns], token ranges in the store's split; the format defines the columns.
      lost_tokens: tokens in the block's documents that no example contains.
      repeated_tokens: additional tokens in examples, from partners elsewhere.
    """

    ranges: np.ndarray
    lost_tokens: int
    repeated_tokens: int


@dataclasses.dataclass(frozen=True)
class ExampleFormat(Kind):
    """Turns data into examples; a subclass's fields are its settings.

    Attributes:
      max_tokens: maximum example length, special tokens included; 0 means the row length. Longer rows hold several
        examples, and only an example must fit the model's position table.
      labels: label names that every example carries.
      labels_by_class: whether a label is an array with one entry per class.
      shortest: minimum length for a whole example, special tokens included.
      token_settings: names of settings that count tokens in an example.
    """

    max_tokens: int = setting(0, kw_only=True, least=0, metadata=OF_INPUT)
    labels: ClassVar[tuple[str, ...]] = ()
    labels_by_class: ClassVar[bool] = False
    shortest: ClassVar[int] = 1 + special_tokens(1)
    token_settings: ClassVar[tuple[str, ...]] = ("max_tokens",)

    def __post_init__(self):
        check(self, "examples")

    def longest(self, seq_len: int) -> int:
        """Return the maximum example length in rows with T tokens."""
        return min(self.max_tokens or seq_len, seq_len)


@dataclasses.dataclass(frozen=True)
class TextFormat(ExampleFormat):
    """Turns a token store's text into examples.

    Attributes:
      version: plan version, raised when the same settings give different examples.
      is_random: whether examples depend on the seed.
      orders_sentences: whether labels depend on the sentence order within a document.
      is_of_one_source: whether an example must stay within one source. With several sources, the model could recognize
        a random partner by its script alone.
    """

    version: ClassVar[int] = 2
    is_random: ClassVar[bool] = True
    orders_sentences: ClassVar[bool] = False
    is_of_one_source: ClassVar[Any] = False

    def identity(self) -> dict:
        """Return the settings that determine the examples, as plain values."""
        settings = dataclasses.asdict(self)
        if not self.max_tokens:  # keeps the fingerprints of plans made before this setting existed
            del settings["max_tokens"]
        return settings

    def blocks(self, split: Split, seq_len: int, seed: int) -> Iterator[Block]:
        """Yield one pass over a split. Block size affects neither the examples nor their order.

        Args:
          split: its `documents` may cover only a part of `sentences`; the rest is ignored.
          seq_len: maximum example length, see `longest`.
          seed: seed for all random numbers.

        Raises:
          UserError: the format cannot make examples from this split or with this `seq_len`.
        """
        raise TypeError(f"{type(self).__name__} has no blocks()")

    def open(self, store: TokenStore, split: str, ranges: Path) -> Examples:
        """Open the examples of a plan; the .npy file `ranges` holds the ranges from all blocks."""
        raise TypeError(f"{type(self).__name__} has no open()")


def document_runs(split: Split) -> Iterator[tuple[Split, int, int]]:
    """Divide documents into runs with about BLOCK_SENTENCES sentences, at least one document each.

    Yields:
      (split, start, stop): documents start..stop-1 form a run. The split is a copy with its own memory maps, so that
      pages read for one run are freed before the next.
    """
    documents = np.asarray(split.documents)
    start, end = 0, len(documents) - 1
    while start < end:
        reached = int(np.searchsorted(documents, documents[start] + BLOCK_SENTENCES, side="right")) - 1
        stop = max(start + 1, reached)
        yield copy.copy(split), start, stop
        start = stop


def walk(following: np.ndarray, start: int = 0) -> np.ndarray:
    """Follow links from `start` to the end: return start, following[start], ...; `following` is int [n]."""
    # The only sequential step in planning, so on a Python list: element access into an array is slower.
    steps, index, visited = following.tolist(), start, []
    while index < len(steps):
        visited.append(index)
        index = steps[index]
    return np.array(visited, np.int64)


_LENGTHS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class StoredExamples:
    """`Examples` in a plan. Subclasses define `_lengths_of` and `take`.

    Attributes:
      store: token store.
      split: `train` or `heldout`.
      ranges: .npy file with the ranges from the format's blocks.
      vocabulary: the store's vocabulary.
    """

    store: TokenStore
    split: str
    ranges: Path
    vocabulary: Vocabulary

    def __getstate__(self) -> dict:
        """Pickle only the fields: a receiving process opens the memory maps itself."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _ranges(self) -> np.ndarray:
        return at_random(np.load(self.ranges, mmap_mode="r"))

    @functools.cached_property
    def _source(self) -> Split:
        return self.store.split(self.split)

    @functools.cached_property
    def _tokens(self) -> np.ndarray:
        return at_random(self._source.tokens)

    def __len__(self) -> int:
        return len(self._ranges)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the lengths of examples `start` to `stop` (default: the end), [CLS] and [SEP] included; int32."""
        ranges = np.load(self.ranges, mmap_mode="r")[start:stop]  # in order, see `at_random`
        lengths = np.empty(len(ranges), np.int32)
        for first in range(0, len(ranges), _LENGTHS_AT_ONCE):
            lengths[first : first + _LENGTHS_AT_ONCE] = self._lengths_of(
                np.asarray(ranges[first : first + _LENGTHS_AT_ONCE])
            )
        return lengths

    def _lengths_of(self, ranges: np.ndarray) -> np.ndarray:
        """Return the example lengths for these ranges; int64 [M]."""
        raise TypeError(f"{type(self).__name__} has no _lengths_of()")

    def _assemble(self, indices, frame, sources, segments, labels) -> Ragged:
        """Assemble examples with text from the store.

        Args:
          indices: int64 [M], example numbers.
          frame: layout with the part lengths.
          sources: int64, where to read the text in the store's tokens, part by part.
          segments: int32 [n].
          labels: as in `Ragged`.
        """
        return Ragged.framed(frame, self._tokens[sources], self.vocabulary, segments, labels, indices)


def concatenated(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Concatenate start, ..., stop - 1 over all ranges; int64."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


KINDS = {
    "segment_pairs": "bertjax.data.formats.pairs:SegmentPairs",
    "sentence_pairs": "bertjax.data.formats.pairs:SentencePairs",
    "full_sentences": "bertjax.data.formats.runs:FullSentences",
    "doc_sentences": "bertjax.data.formats.runs:DocSentences",
    "sentence_order": "bertjax.data.formats.pairs:SentenceOrder",
    "sentence_structure": "bertjax.data.formats.pairs:SentenceStructure",
    "sentence_distance": "bertjax.data.formats.pairs:SentenceDistance",
    "sentence_reordering": "bertjax.data.formats.runs:SentenceReordering",
    "token_document": "bertjax.data.formats.runs:TokenDocument",
}
LABELED_KINDS = {
    "labeled_text": "bertjax.data.labeled.texts:LabeledText",
    "label_sets": "bertjax.data.labeled.label_sets:LabelSets",
    "tagged": "bertjax.data.labeled.tagged:Tagged",
    "questions": "bertjax.data.labeled.questions:Questions",
    "siamese_pairs": "bertjax.data.labeled.texts:SiamesePairs",
    "repeated_text": "bertjax.data.labeled.texts:RepeatedText",
    "choices": "bertjax.data.labeled.choices:Choices",
    "race": "bertjax.data.labeled.choices:Race",
}

FORMATS = Union("examples", ExampleFormat, default="segment_pairs", kinds=KINDS | LABELED_KINDS)


def kinds_with(labels: tuple[str, ...]) -> list[str]:
    """Return the registered kinds with examples that carry all these labels."""
    return [kind for kind in FORMATS.kinds if set(labels) <= set(FORMATS.class_of(kind)().labels)]
