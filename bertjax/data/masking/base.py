"""What all maskings share: how chosen tokens are replaced, and how they become the predicted positions of a row."""

import abc
import dataclasses
import math

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.random import bits_after, states
from bertjax.data.store import TokenStore
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which tokens of a batch are predicted.

    Attributes:
      tokens: int64 [m], indices into the ragged tokens, ascending.
      deciders: int64 [m], for each of them the token whose random number decides how it is replaced; tokens with the
        same decider are masked, replaced or left unchanged together.
    """

    tokens: np.ndarray
    deciders: np.ndarray


@dataclasses.dataclass(frozen=True)
class Masking(abc.ABC):
    """Settings of a masking; its subclasses determine which tokens are chosen.

    Attributes:
      kind: name of the masking in a configuration; each subclass sets its own as the default.
      rate: share of the tokens of an example that are predicted; the share is rounded and is at least one token.
      mask: share of the predicted tokens that become [MASK].
      random: share of the predicted tokens that become a random other token; the rest stay unchanged.
      static: 0 draws new masks in every epoch; d repeats the masks of d epochs (BERT's ten duplicates).
    """

    kind: str = dataclasses.field(init=False)
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    static: int = 0

    def __post_init__(self):
        if not 0.0 < self.rate < 1.0:
            raise UserError(f"masking.rate={self.rate} must be between 0 and 1")
        if min(self.mask, self.random) < 0.0 or self.mask + self.random > 1.0:
            raise UserError(
                f"masking.mask={self.mask} and masking.random={self.random} are shares; they must not be "
                "negative and must sum to 1 at most"
            )
        if self.static < 0:
            raise UserError(f"masking.static={self.static} must be 0 (new masks in every epoch) or a number of epochs")

    @abc.abstractmethod
    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Return the tokens to predict: a function of the seed, the epoch and the example only."""

    @abc.abstractmethod
    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Return a number of tokens that the choices in a row of T tokens and N examples almost never exceed."""

    def capacity(self, seq_len: int, row_examples: int) -> int:
        """Return K, the places for predictions in a row of T tokens and N examples: a multiple of 8, at least rate * T.

        Chosen tokens without a place are dropped and counted, see `gather_masked`.
        """
        most = max(self.rate * seq_len, self.most_predicted(seq_len, row_examples))
        return 8 * math.ceil(min(most, seq_len) / 8)

    def bind(self, store: TokenStore | None) -> "Masking":
        """Return the same masking with what it reads in addition to the batch; empty without a store."""
        return self

    @property
    def fingerprints(self) -> dict[str, str]:
        """{name of what `bind` read: its fingerprint}."""
        return {}


@dataclasses.dataclass(frozen=True)
class Masked:
    """Tokens as the encoder sees them (int32 [n]) and which of them it must predict (bool [n])."""

    tokens: np.ndarray
    chosen: np.ndarray


def mask(placed: PlacedExamples, draw: Draw, masking: Masking) -> Masked:
    """Choose tokens of every example and replace them, independently of rows, packing and the rest of the batch."""
    ragged = placed.ragged
    if masking.static:
        draw = dataclasses.replace(draw, epochs=draw.epochs % masking.static)
    choice = masking.choose(placed, draw)
    originals = ragged.tokens[choice.tokens]
    others = _others(token_shares(ragged, draw, "mask/other", choice.tokens), originals, placed.vocabulary)
    action = token_shares(ragged, draw, "mask/action", choice.deciders)

    tokens, chosen = ragged.tokens.copy(), np.zeros(len(ragged.tokens), bool)
    replaced = np.where(action < masking.mask + masking.random, others, originals)
    tokens[choice.tokens] = np.where(action < masking.mask, placed.vocabulary.mask_id, replaced)
    chosen[choice.tokens] = True
    return Masked(tokens, chosen)


def token_bits(ragged: Ragged, draw: Draw, stream: str, tokens: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return 32 random bits per token, uint32, determined by epoch, example id and place in the example."""
    examples = states(draw.seed, stream, draw.epochs, ragged.ids)
    return bits_after(examples[ragged.token_examples[tokens]], ragged.token_index[tokens])


def token_shares(ragged: Ragged, draw: Draw, stream: str, tokens: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return `token_bits` as multiples of 2**-32 in [0, 1); float64."""
    return token_bits(ragged, draw, stream, tokens) * 2.0**-32


def budget(ragged: Ragged, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the maskable tokens of each example, and the share to predict: rounded half up, at least 1; int64 [M]."""
    maskable = np.diff(np.append(0, np.cumsum(~ragged.special))[ragged.offsets])
    return maskable, np.minimum(np.maximum(np.floor(rate * maskable + 0.5), 1), maskable).astype(np.int64)


def gather_masked(placed: PlacedExamples, chosen: np.ndarray, places: int) -> dict[str, np.ndarray]:
    """Gather the chosen tokens (bool [n]) of each row, by ascending position, into K `places`.

    Returns:
      `positions_BK` (int32, their columns), `labels_BK` (int32, their ids), `weights_BK` (float32, 1 each; a place
      without a token has 0 in all three) and `dropped_B` (int32, the number of chosen tokens without a place).
    """
    tokens = np.flatnonzero(chosen)
    cells = placed.token_cells[tokens]
    order = np.argsort(cells, kind="stable")  # usually in order already, which makes a stable sort fast
    rows, columns = np.divmod(cells[order], placed.seq_len)
    counts_B = np.bincount(rows, minlength=placed.shape[0])
    rank = np.arange(len(rows)) - (np.cumsum(counts_B) - counts_B)[rows]
    kept = rank < places
    place = (rows * places + rank)[kept]

    def gather(values: np.ndarray, dtype: type) -> np.ndarray:
        gathered_BK = np.zeros((placed.shape[0], places), dtype)
        gathered_BK.ravel()[place] = values[kept]
        return gathered_BK

    return {
        "positions_BK": gather(columns, np.int32),
        "labels_BK": gather(placed.ragged.tokens[tokens[order]], np.int32),
        "weights_BK": gather(np.ones(len(rows)), np.float32),
        "dropped_B": np.maximum(counts_B - places, 0).astype(np.int32),
    }


def _others(share: np.ndarray, originals: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Return for each token the ordinary id at `share` (in [0, 1)) of all ordinary ids except its own."""
    rank = (share * (len(vocabulary.ordinary) - 1)).astype(np.int64)
    return vocabulary.ordinary[rank + (rank >= vocabulary.ordinary_before[originals])]
