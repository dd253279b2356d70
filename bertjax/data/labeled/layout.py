"""Token ids of one or two segments as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""

import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.tokenizer import Tokenizer

Ids = Sequence[Sequence[int]]


def lay_out(first: Ids, second: Ids | None, tokenizer: Tokenizer, labels: dict[str, np.ndarray]) -> Ragged:
    """M examples from the ids of their segments.

    Args:
      first: M segments A.
      second: M segments B; None where there are none.
      tokenizer: of the ids.
      labels: name -> array [M].
    """
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    if second is None:
        pieces = [(cls, ids, sep) for ids in first]
    else:
        pieces = [(cls, a, sep, b, sep) for a, b in zip(first, second, strict=True)]
    chained = itertools.chain.from_iterable(itertools.chain.from_iterable(pieces))
    tokens = np.fromiter(chained, np.int32)
    lengths = np.array([sum(map(len, parts)) for parts in pieces], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts_of_second = lengths if second is None else np.array([len(ids) + 2 for ids in first], np.int64)
    within = np.arange(len(tokens)) - np.repeat(offsets[:-1], lengths)
    special = np.zeros(len(tokens), bool)
    special[offsets[:-1]] = special[offsets[1:] - 1] = True
    if second is not None:
        special[offsets[:-1] + starts_of_second - 1] = True
    return Ragged(
        tokens=tokens,
        segments=(within >= np.repeat(starts_of_second, lengths)).astype(np.int32),
        special=special | (tokens == tokenizer.unk_id),
        offsets=offsets,
        labels=labels,
        ids=np.arange(len(lengths), dtype=np.int64),
    )


def cut(first: Ids, second: Ids | None, seq_len: int) -> tuple[Ids, Ids | None, int]:
    """Segments that fit in a row: of a pair, the longer one loses its last token until they do (Devlin et al., 2019).

    Returns:
      The segments A and B, and how many examples were cut.
    """
    if second is None:
        room = seq_len - 2
        return [ids[:room] for ids in first], None, sum(len(ids) > room for ids in first)
    room, cut_examples, pairs = seq_len - 3, 0, []
    for a, b in zip(first, second, strict=True):
        if len(a) + len(b) > room:
            cut_examples += 1
            kept = max(room - len(b), min(len(a), room - room // 2))
            a, b = a[:kept], b[: room - kept]
        pairs.append((a, b))
    return [a for a, _ in pairs], [b for _, b in pairs], cut_examples
