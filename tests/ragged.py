"""Small ragged examples whose text depends only on their ids."""

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples, place
from bertjax.data.examples import Ragged, Vocabulary

PAD, UNK, SEP, CLS, MASK = 0, 1, 4, 5, 6
# Two of five ordinary ids continue a word: words have 5/3 tokens on average.
VOCABULARY = Vocabulary(507, PAD, CLS, SEP, MASK, (0, 1, 2, 3, 4, 5, 6), tuple(range(307, 507)))


def of(texts: list[np.ndarray], ids: np.ndarray, segments: list[np.ndarray] | None = None) -> Ragged:
    """Return examples with these tokens, which include [CLS] and [SEP]."""
    tokens = np.concatenate(texts).astype(np.int32)
    segments = np.zeros_like(tokens) if segments is None else np.concatenate(segments).astype(np.int32)
    offsets = np.cumsum([0, *map(len, texts)])
    return Ragged(tokens, segments, VOCABULARY.is_special[tokens], offsets, {}, np.asarray(ids, np.int64))


def random(lengths: np.ndarray, ids: np.ndarray, vocabulary: Vocabulary = VOCABULARY) -> Ragged:
    """Return examples [CLS] text [SEP] of random ordinary tokens."""
    texts = [np.random.default_rng(id).integers(7, vocabulary.size, length) for id, length in zip(ids, lengths)]
    return of([np.concatenate([[CLS], text[2:], [SEP]]) for text in texts], ids)


def one_a_row(ragged: Ragged, vocabulary: Vocabulary = VOCABULARY) -> PlacedExamples:
    return place(ragged, np.arange(len(ragged.ids))[:, None], int(ragged.lengths.max()), vocabulary)


def first_epoch(ragged: Ragged, seed: int = 0) -> Draw:
    return Draw(seed, np.zeros(len(ragged.ids), np.int64))
