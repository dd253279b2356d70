"""Layout of every example, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, and truncation.

Token stores, labeled files, inference and `Tokenizer.rows` all use this module. XLNet's layout is
`A [SEP] B [SEP] [CLS]`, see `with_cls_last`. RoBERTa's is `[CLS] A [SEP][SEP] B [SEP]` in labeled files and inference;
the number of separators between two texts belongs to the tokenizer (`Tokenizer.pair_separators`). RoBERTa was
pretrained without such pairs.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.runtime.errors import UserError

Ids = Sequence[Sequence[int]]


def special_tokens(parts: int, separators: int = 1) -> int:
    """Return how many special tokens an example has.

    Args:
      parts: text parts per example. Each is followed by a [SEP].
      separators: [SEP] tokens between two parts.
    """
    return 1 + parts + (parts - 1) * (separators - 1)


@dataclasses.dataclass(frozen=True)
class Frame:
    """Token positions of M examples laid end to end, n in total: [CLS], then text parts with a [SEP] after each.

    Attributes:
      offsets: int64 [M + 1], example m has the positions offsets[m]:offsets[m + 1].
      separators: int64, [SEP] positions: one after each part, and the additional ones between parts.
      part_lengths: int64 [P], tokens per part, its [SEP] included. An example's first part also includes [CLS], the
        others the additional [SEP] in front of them.
    """

    offsets: np.ndarray
    separators: np.ndarray
    part_lengths: np.ndarray

    @classmethod
    def of(cls, text_lengths: np.ndarray, parts: np.ndarray, separators: int = 1) -> "Frame":
        """Lay out examples.

        Args:
          text_lengths: int64 [P], text tokens per part.
          parts: int64 [M], parts per example, at least 1.
          separators: [SEP] tokens between two parts.
        """
        next_first = np.cumsum(parts)
        is_first = np.zeros(len(text_lengths), bool)
        is_first[next_first - parts] = True
        # In front of its text, an example's first part has [CLS], and every other part the additional separators.
        part_lengths = text_lengths + 1 + np.where(is_first, 1, separators - 1)
        ends = np.cumsum(part_lengths)
        # An example ends where its last part ends.
        offsets = np.concatenate([[0], ends[next_first - 1]]).astype(np.int64)
        starts = (ends - part_lengths)[~is_first]
        further = [starts + number for number in range(separators - 1)]
        return cls(offsets, separators=np.concatenate([ends - 1, *further]), part_lengths=part_lengths)

    @property
    def is_text(self) -> np.ndarray:
        """False at [CLS] and [SEP]; bool [n]."""
        is_text = np.ones(self.offsets[-1], bool)
        is_text[self.offsets[:-1]] = is_text[self.separators] = False
        return is_text

    def tokens(self, text: np.ndarray, cls_id: int, sep_id: int) -> np.ndarray:
        """Insert [CLS] and [SEP] into concatenated text tokens; int32 [n]."""
        tokens = np.empty(self.offsets[-1], np.int32)
        tokens[self.offsets[:-1]] = cls_id
        tokens[self.separators] = sep_id
        tokens[self.is_text] = text
        return tokens


def with_cls_last(offsets: np.ndarray) -> np.ndarray:
    """Return source positions that move every [CLS] from the front of its example to the end; int64 [n].

    Args:
      offsets: int64 [M + 1], see `Frame`.
    """
    # Shift everything one to the left; the last position of each example then receives its [CLS].
    places = np.arange(1, offsets[-1] + 1)
    places[offsets[1:] - 1] = offsets[:-1]
    return places


def frame(first: Ids, second: Ids | None = None, separators: int = 1) -> tuple[Frame, np.ndarray]:
    """Return the frame for M examples and their concatenated text tokens, int32.

    Args:
      first: token ids per segment A, without special tokens.
      second: token ids per segment B; None for single-segment examples.
      separators: [SEP] tokens between A and B.
    """
    parts = list(first) if second is None else [ids for pair in zip(first, second, strict=True) for ids in pair]
    text_lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    text = np.fromiter(itertools.chain.from_iterable(parts), np.int32, text_lengths.sum())
    return Frame.of(text_lengths, np.full(len(first), 1 if second is None else 2), separators), text


def kept_of_pair(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens a pair with segment lengths a and b keeps of each, if both together get `room` tokens.

    This equals removing tokens one by one from the longer segment, from B in a tie (Devlin et al., 2019).
    """
    fits = a + b <= room
    # If B is shorter than half of the room it stays whole, and A gets the rest; else A gets half, rounded up.
    a_kept = np.minimum(a, np.maximum(room - b, (room + 1) // 2))
    return np.where(fits, a, a_kept), np.where(fits, b, room - a_kept)


def whole_lengths(first: Ids, second: Ids | None, separators: int = 1) -> np.ndarray:
    """Return the tokens of each example before `truncate`, special tokens included; int64 [M].

    Args:
      first, second, separators: see `truncate`.
    """
    lengths = np.fromiter(map(len, first), np.int64, len(first))
    if second is None:
        return lengths + special_tokens(1, separators)
    return lengths + np.fromiter(map(len, second), np.int64, len(second)) + special_tokens(2, separators)


def truncate(
    first: Ids, second: Ids | None, seq_len: int, separators: int = 1
) -> tuple[Ids, Ids | None, dict[str, int]]:
    """Truncate segments at their ends so that no example exceeds T tokens, special tokens included.

    Args:
      first: token ids per segment A, without special tokens.
      second: token ids per segment B; None for single-segment examples.
      seq_len: T.
      separators: [SEP] tokens between A and B.

    Returns:
      Segments A, segments B, and a note {description: examples that were cut}, which is empty if nothing was cut.

    Raises:
      UserError: T is too small for the special tokens.
    """
    room = seq_len - special_tokens(1 if second is None else 2, separators)
    if room < 0:
        raise UserError(f"seq_len={seq_len} is too short; [CLS] and [SEP] take {seq_len - room}: raise it above that")
    if second is None:
        cut = sum(len(ids) > room for ids in first)
        first = [ids[:room] for ids in first]
    else:
        a, b = (np.fromiter(map(len, segments), np.int64, len(segments)) for segments in (first, second))
        # Only the total counts: a long text with a short partner need not be cut.
        cut = int(np.count_nonzero(a + b > room))
        a_kept, b_kept = kept_of_pair(a, b, room)
        first = [ids[:kept] for ids, kept in zip(first, a_kept)]
        second = [ids[:kept] for ids, kept in zip(second, b_kept)]
    return first, second, {f"cut to {seq_len} tokens": cut} if cut else {}


# Tie break: of two windows with equal context, the longer one wins. Its weight is far below one token of context.
_LENGTH_WEIGHT = 0.01


def windows(length: int, room: int, stride: int) -> np.ndarray:
    """Cut a text into windows that start min(`stride`, `room`) tokens apart.

    Args:
      length: number of tokens in the text, at least 1.
      room: maximum window length, at least 1.
      stride: at least 1.

    Returns:
      int64 [W, 2]: tokens [start, stop) per window. Every token is in at least one window.
    """
    # A stride above `room` would leave gaps between windows.
    later = max(0, length - room)
    starts = np.arange(1 + -(-later // min(stride, room))) * min(stride, room)
    return np.stack([starts, np.minimum(starts + room, length)], axis=1)


def most_context(bounds: np.ndarray) -> np.ndarray:
    """Return for each token the window that gives it the most context on its shorter side; int64 [length].

    Args:
      bounds: the result of `windows`; ties go to the first window.
    """
    owners, most = np.zeros(bounds[-1, 1], np.int64), np.full(bounds[-1, 1], -1.0)
    # Window by window: all windows at once would take memory with the square of a long text.
    for window, (start, stop) in enumerate(bounds):
        before = np.arange(stop - start)
        context = np.minimum(before, before[::-1]) + _LENGTH_WEIGHT * (stop - start)
        owners[start:stop] = np.where(context > most[start:stop], window, owners[start:stop])
        most[start:stop] = np.maximum(context, most[start:stop])
    return owners
