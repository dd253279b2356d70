"""Examples: ragged `[CLS] ... [SEP]` sequences with random access, the common form for all data."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bertjax.data import framing
from bertjax.data.framing import Frame, Ids
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError

# XLNet's code gives [CLS] its own segment: SEG_ID_CLS in data_utils.py of zihangdai/xlnet.
_SEGMENT_OF_LAST_CLS = 2


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The token ids that batches need, without the tokenizer itself.

    Attributes:
      size: number of ids.
      pad_id, cls_id, sep_id, mask_id: token ids for [PAD], [CLS], [SEP] and [MASK].
      special_ids: all ids without text, including these four.
      continuation_ids: ids that continue the previous token's word.
      cls_last: whether examples end with [CLS], as in XLNet.
      pair_separators: number of [SEP] between two paired texts; two in RoBERTa.
    """

    size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...] = ()
    cls_last: bool = False
    pair_separators: int = 1

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        return cls(
            size=tokenizer.vocab_size,
            pad_id=tokenizer.pad_id,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            mask_id=tokenizer.mask_id,
            special_ids=tuple(sorted(tokenizer.special_ids)),
            continuation_ids=tuple(sorted(tokenizer.continuation_ids)),
            cls_last=tokenizer.cls_last,
            pair_separators=tokenizer.pair_separators,
        )

    @functools.cached_property
    def is_special(self) -> np.ndarray:
        """Return whether each id is special; bool [size]."""
        return np.isin(np.arange(self.size), self.special_ids)

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """Return whether each id continues the previous token's word; bool [size]."""
        return np.isin(np.arange(self.size), self.continuation_ids)

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """Return all ids with text in ascending order; int32."""
        return np.flatnonzero(~self.is_special).astype(np.int32)

    @functools.cached_property
    def ordinary_before(self) -> np.ndarray:
        """Return how many ordinary ids are below each id; int64 [size]."""
        # Minus its own entry: an exclusive sum, which is the rank of an ordinary id in `ordinary`.
        return np.cumsum(~self.is_special) - ~self.is_special


@dataclasses.dataclass(frozen=True)
class Ragged:
    """M examples with n tokens in total, concatenated.

    Attributes:
      tokens: int32 [n], [CLS] and [SEP] included.
      segments: int32 [n], 0 for segment A and 1 for segment B; a [CLS] at the end has 2.
      special: bool [n], tokens that are never masked ([CLS], [SEP] and every other special id).
      offsets: int64 [M + 1], example m is tokens[offsets[m]:offsets[m + 1]].
      labels: name -> array [M, ...].
      token_labels: name -> array [n].
      ids: int64 [M]. An example has the same id in all runs with the same store, format, T and seed.
      cls_last: whether examples end with [CLS] instead of starting with it.
    """

    tokens: np.ndarray
    segments: np.ndarray
    special: np.ndarray
    offsets: np.ndarray
    labels: dict[str, np.ndarray]
    ids: np.ndarray
    token_labels: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    cls_last: bool = False

    @classmethod
    def framed(
        cls,
        frame: Frame,
        text: np.ndarray,
        vocabulary: Vocabulary,
        segments: np.ndarray,
        labels: dict[str, np.ndarray],
        ids: np.ndarray,
        token_labels: dict[str, np.ndarray] | None = None,
    ) -> "Ragged":
        """Build examples from their layout and their text.

        Args:
          frame: positions for special tokens and text.
          text: int, concatenated text tokens from all parts.
          vocabulary: special token ids, and whether [CLS] comes last.
          segments, labels, ids, token_labels: as in `Ragged`, with [CLS] at the front.

        Raises:
          UserError: a token is outside of the vocabulary.
        """
        if (largest := int(text.max(initial=0))) >= vocabulary.size:
            raise UserError(
                f"a text has the token id {largest}, and the vocabulary has {vocabulary.size} ids, so the token store "
                "is damaged; python -m bertjax prepare --verify, with the flags of the run, names the file"
            )
        tokens, token_labels = frame.tokens(text, vocabulary.cls_id, vocabulary.sep_id), token_labels or {}
        if vocabulary.cls_last:
            places = framing.with_cls_last(frame.offsets)
            tokens, segments = tokens[places], segments[places]
            # Indexing with an array has copied, so this does not change the segments of the caller.
            segments[frame.offsets[1:] - 1] = _SEGMENT_OF_LAST_CLS
            token_labels = {name: values[places] for name, values in token_labels.items()}
        # Special ids in the text itself are never masked either.
        special, ids = vocabulary.is_special[tokens], np.asarray(ids, np.int64)
        return cls(tokens, segments, special, frame.offsets, labels, ids, token_labels, vocabulary.cls_last)

    @classmethod
    def join(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """Concatenate one or more example batches. All have the same label names."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(
            tokens=np.concatenate([part.tokens for part in parts]),
            segments=np.concatenate([part.segments for part in parts]),
            special=np.concatenate([part.special for part in parts]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            labels={name: np.concatenate([part.labels[name] for part in parts]) for name in parts[0].labels},
            ids=np.concatenate([part.ids for part in parts]),
            token_labels={
                name: np.concatenate([part.token_labels[name] for part in parts]) for name in parts[0].token_labels
            },
            cls_last=parts[0].cls_last,
        )

    def token_lists(self) -> list[np.ndarray]:
        """Return each example's tokens, as views."""
        # Inner offsets only: `np.split` takes cut points and adds both ends itself.
        return np.split(self.tokens, self.offsets[1:-1])

    def take(self, indices: np.ndarray) -> "Ragged":
        """Return the examples at `indices` (int64 [M]), in that order."""
        lengths = self.lengths[indices]
        # Source positions of all tokens: a running index, shifted per example from its new offset to its old one.
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][indices] - offsets[:-1], lengths)
        return Ragged(
            tokens=self.tokens[places],
            segments=self.segments[places],
            special=self.special[places],
            offsets=offsets,
            labels={name: values[indices] for name, values in self.labels.items()},
            ids=self.ids[indices],
            token_labels={name: values[places] for name, values in self.token_labels.items()},
            cls_last=self.cls_last,
        )

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Return tokens per example; int64 [M]."""
        return np.diff(self.offsets)

    @functools.cached_property
    def token_examples(self) -> np.ndarray:
        """Return each token's example index; int64 [n]."""
        return self.spread(np.arange(len(self.ids)))

    @functools.cached_property
    def token_index(self) -> np.ndarray:
        """Return each token's index within its example; int64 [n]."""
        return np.arange(len(self.tokens)) - self.spread(self.offsets[:-1])

    @property
    def cls_index(self) -> np.ndarray:
        """Return the [CLS] index within each example; int64 [M]."""
        return self.lengths - 1 if self.cls_last else np.zeros_like(self.lengths)

    @property
    def text_index(self) -> int:
        """Return the index at which text starts in every example."""
        return 0 if self.cls_last else 1

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Repeat per-example values [M] for each token; [n]."""
        return np.repeat(values, self.lengths)


class Examples(Protocol):
    """Examples with random access, never longer than a row. Picklable, so that worker processes can open them."""

    def __len__(self) -> int: ...

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return tokens per example from `start` to `stop` (default: the end); int32."""

    def take(self, indices: np.ndarray) -> Ragged:
        """Return the examples at `indices` (int64 [M]), in that order."""


def add_special_tokens(
    first: Ids,
    second: Ids | None,
    vocabulary: Vocabulary,
    labels: dict[str, np.ndarray],
    token_labels: dict[str, tuple[np.ndarray, int]] | None = None,
) -> Ragged:
    """Build M examples with ids 0..M-1 from tokenized segments.

    Args:
      first: M segments A, without special tokens.
      second: M segments B; None for single-segment examples.
      vocabulary: vocabulary that both segments use.
      labels: name -> array [M].
      token_labels: name -> (concatenated values for tokens in last segments; value for all other tokens).
    """
    frame, text = framing.frame(first, second, vocabulary.pair_separators)
    count = 1 if second is None else 2
    # Parts alternate: A, B, A, B, ... Their lengths include the special tokens, which get the segment of their part.
    segments = np.repeat(np.tile(np.arange(count, dtype=np.int32), len(first)), frame.part_lengths)
    in_last = frame.is_text & (segments == count - 1)
    of_tokens = {}
    for name, (values, other) in (token_labels or {}).items():
        of_tokens[name] = np.full(len(in_last), other, values.dtype)
        of_tokens[name][in_last] = values
    return Ragged.framed(frame, text, vocabulary, segments, labels, np.arange(len(first)), of_tokens)
