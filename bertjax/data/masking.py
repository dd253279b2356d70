"""Which tokens an encoder must guess, and what it sees in their place: pure functions of (seed, example id, epoch)."""

import dataclasses
import math

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.random import bits, uniform
from bertjax.errors import UserError

KINDS = ("tokens",)


@dataclasses.dataclass(frozen=True)
class TokenMasking:
    """Masking of single tokens (Devlin et al. 2019, section 3.1, task 1).

    Attributes:
      kind: `tokens`.
      rate: share of the tokens of an example that are predicted; at least one token is.
      mask: share of those that become [MASK].
      random: share of those that become a random other token; the rest stays as it is.
      static: 0 draws new masks in every epoch; d repeats the masks of d epochs (BERT's ten duplicates).
    """

    kind: str = "tokens"
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    static: int = 0

    def __post_init__(self):
        if self.kind not in KINDS:
            raise UserError(f"masking.kind={self.kind!r} is unknown; choose one of {', '.join(KINDS)}")
        if not 0.0 < self.rate < 1.0:
            raise UserError(f"masking.rate={self.rate} must lie between 0 and 1")
        if min(self.mask, self.random) < 0.0 or self.mask + self.random > 1.0:
            raise UserError(
                f"masking.mask={self.mask} and masking.random={self.random} are shares; they must not be negative "
                "nor sum to more than 1"
            )
        if self.static < 0:
            raise UserError(f"masking.static={self.static} must be 0 (new masks in every epoch) or a number of epochs")

    def capacity(self, seq_len: int) -> int:
        """K, the places for predictions in a row of T tokens: rate * T, rounded up to a multiple of 8.

        An example of its own row always fits, since [CLS] and [SEP] are never predicted; examples that share a row
        each round their own share, and what the rounding up leaves is their slack.
        """
        return 8 * math.ceil(self.rate * seq_len / 8)


@dataclasses.dataclass(frozen=True)
class Masked:
    """Tokens as the encoder sees them (int32 [n]) and which of them it must predict (bool [n])."""

    tokens: np.ndarray
    chosen: np.ndarray


def mask(placed: PlacedExamples, draw: Draw, masking: TokenMasking) -> Masked:
    """Chooses tokens of every example and hides them. Rows, packing and the rest of the batch play no part in it."""
    ragged, mask_id = placed.ragged, placed.vocabulary.mask_id
    owners = ragged.token_examples
    epochs = draw.epochs % masking.static if masking.static else draw.epochs
    key = (epochs[owners], ragged.ids[owners], ragged.token_index)

    chosen = _choose(bits(draw.seed, "mask/choose", *key), ragged, masking.rate)
    key = tuple(words[chosen] for words in key)
    originals = ragged.tokens[chosen]
    others = _others(uniform(draw.seed, "mask/other", *key), originals, placed.vocabulary.ordinary)
    action = uniform(draw.seed, "mask/action", *key)

    tokens = ragged.tokens.copy()
    replaced = np.where(action < masking.mask + masking.random, others, originals)
    tokens[chosen] = np.where(action < masking.mask, mask_id, replaced)
    return Masked(tokens, chosen)


def predictions(placed: PlacedExamples, chosen: np.ndarray, places: int) -> dict[str, np.ndarray]:
    """Gathers the chosen tokens (bool [n]) of each row, by ascending position, into K `places`.

    Returns:
      `positions_BK` (int32, their columns), `labels_BK` (int32, their ids), `weights_BK` (float32, 1 each; a place
      without a token has 0 in all three) and `dropped_B` (int32, chosen tokens that found no place).
    """
    chosen_BT = placed.tokens_to_rows(chosen)
    rows, columns = np.nonzero(chosen_BT)
    labels = placed.tokens_to_rows(placed.ragged.tokens)[rows, columns]
    counts_B = chosen_BT.sum(axis=1)
    rank = np.arange(len(rows)) - (np.cumsum(counts_B) - counts_B)[rows]
    kept = rank < places

    def gather(values: np.ndarray, dtype: type) -> np.ndarray:
        gathered_BK = np.zeros((len(chosen_BT), places), dtype)
        gathered_BK[rows[kept], rank[kept]] = values[kept]
        return gathered_BK

    return {
        "positions_BK": gather(columns, np.int32),
        "labels_BK": gather(labels, np.int32),
        "weights_BK": gather(np.ones(len(rows)), np.float32),
        "dropped_B": np.maximum(counts_B - places, 0).astype(np.int32),
    }


def _choose(priority: np.ndarray, ragged: Ragged, rate: float) -> np.ndarray:
    """The share `rate` of the maskable tokens of each example with the lowest `priority` (uint32 [n]); bool [n].

    Tokens that tie for the last place are all chosen, since nothing but their keys may decide.
    """
    owners = ragged.token_examples
    maskable = np.bincount(owners[~ragged.special], minlength=len(ragged.ids))
    wanted = np.minimum(np.maximum(np.floor(rate * maskable + 0.5), 1), maskable).astype(np.int64)
    # One sort for all examples: each keeps its stretch, with the special tokens at the end of it.
    keys = (2 * owners + ragged.special).astype(np.uint64) << np.uint64(32) | priority
    last = np.sort(keys)[ragged.offsets[:-1] + wanted - 1]
    return (keys <= last[owners]) & ~ragged.special


def _others(share: np.ndarray, originals: np.ndarray, ordinary: np.ndarray) -> np.ndarray:
    """For each token the ordinary id at `share` (in [0, 1)) of all ordinary ids but its own."""
    rank = (share * (len(ordinary) - 1)).astype(np.int64)
    return ordinary[rank + (rank >= np.searchsorted(ordinary, originals))]
