"""Base class for maskings, the replacement of chosen tokens, and the gathering of predicted positions per row."""

import abc
import dataclasses
import math

import numpy as np

from bertjax.config.registry import Kind
from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.random import bits_after, states
from bertjax.data.store import TokenStore
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check, setting


@dataclasses.dataclass(frozen=True)
class Choice:
    """The tokens to predict in a batch.

    Attributes:
      tokens: int64 [m], indices into the ragged tokens, ascending.
      deciders: int64 [m], for each chosen token, the token whose random number decides its replacement. Tokens with
        the same decider are masked, replaced or left unchanged together.
    """

    tokens: np.ndarray
    deciders: np.ndarray


@dataclasses.dataclass(frozen=True)
class Masking(Kind, abc.ABC):
    """Settings common to all maskings; subclasses determine which tokens are chosen.

    Attributes:
      rate: share of tokens to predict per example, rounded to whole tokens, at least one.
      mask: share of predicted tokens that become [MASK].
      random: share of predicted tokens that become a random other token; the rest stay unchanged.
      static: 0 draws new masks in every epoch; d cycles through the masks from d epochs (BERT's ten duplicates).
    """

    rate: float = setting(0.15, above=0, below=1)
    mask: float = setting(0.8, least=0, most=1)
    random: float = setting(0.1, least=0, most=1)
    static: int = setting(0, least=0)

    def __post_init__(self):
        check(self, "masking")
        if self.mask + self.random > 1.0:
            raise UserError(
                f"masking.mask={self.mask} and masking.random={self.random} are shares; they must sum to 1 at most"
            )

    @abc.abstractmethod
    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Choose the tokens to predict, depending on nothing but seed, epoch and example."""

    @abc.abstractmethod
    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Return a bound that the chosen tokens in a row with T tokens and N examples almost never exceed."""

    def capacity(self, seq_len: int, row_examples: int) -> int:
        """Return K, the prediction slots for a row with T tokens and N examples: a multiple of 8, at least rate * T.

        Chosen tokens beyond K are dropped and counted, see `gather_masked`.
        """
        most = max(self.rate * seq_len, self.most_predicted(seq_len, row_examples))
        # Padded to 8, the sublane count of a TPU register for float32.
        return 8 * math.ceil(min(most, seq_len) / 8)

    def bind(self, store: TokenStore | None) -> "Masking":
        """Load what the masking reads besides the batch, such as a lexicon; without a store, leave that empty."""
        return self

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the resources that `bind` read, by name."""
        return {}


@dataclasses.dataclass(frozen=True)
class Masked:
    """Encoder input tokens (int32 [n]) and whether each is to be predicted (bool [n])."""

    tokens: np.ndarray
    chosen: np.ndarray


def mask(placed: PlacedExamples, draw: Draw, masking: Masking) -> Masked:
    """Choose and replace tokens in each example, independently of rows, packing and the rest of the batch."""
    ragged = placed.ragged
    if masking.static:  # epochs share their masks, as in BERT's duplicated training data
        draw = dataclasses.replace(draw, epochs=draw.epochs % masking.static)
    choice = masking.choose(placed, draw)
    originals = ragged.tokens[choice.tokens]
    others = _others(token_shares(ragged, draw, "mask/other", choice.tokens), originals, placed.vocabulary)
    action = token_shares(ragged, draw, "mask/action", choice.deciders)

    tokens, chosen = ragged.tokens.copy(), np.zeros(len(ragged.tokens), bool)
    # BERT's 80/10/10 (Devlin et al. 2019, section 3.1): fine-tuning has no [MASK], so some chosen tokens stay visible.
    replaced = np.where(action < masking.mask + masking.random, others, originals)
    tokens[choice.tokens] = np.where(action < masking.mask, placed.vocabulary.mask_id, replaced)
    chosen[choice.tokens] = True
    return Masked(tokens, chosen)


def token_bits(ragged: Ragged, draw: Draw, stream: str, tokens: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return 32 random bits per token, uint32, determined by seed, epoch, example id and index within the example."""
    examples = states(draw.seed, stream, draw.epochs, ragged.ids)
    return bits_after(examples[ragged.token_examples[tokens]], ragged.token_index[tokens])


def token_shares(ragged: Ragged, draw: Draw, stream: str, tokens: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return `token_bits` as multiples of 2**-32 in [0, 1); float64."""
    return token_bits(ragged, draw, stream, tokens) * 2.0**-32


def budget(ragged: Ragged, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return, per example, the maskable tokens and how many to predict: rounded half up, at least 1; int64 [M]."""
    maskable = np.diff(np.append(0, np.cumsum(~ragged.special))[ragged.offsets])
    return maskable, np.minimum(np.maximum(np.floor(rate * maskable + 0.5), 1), maskable).astype(np.int64)


def gather_masked(placed: PlacedExamples, chosen: np.ndarray, places: int) -> dict[str, np.ndarray]:
    """Gather each row's chosen tokens (bool [n]) into K slots, by ascending position.

    A fixed K keeps shapes static for XLA; the vocabulary product then runs at K positions only, not at all T.

    Args:
      places: K.

    Returns:
      `positions_BK` (int32, columns), `labels_BK` (int32, ids), `weights_BK` (float32, 1 each); unused slots hold 0 in
      all three. `dropped_B` (int32) counts chosen tokens beyond K.
    """
    tokens = np.flatnonzero(chosen)
    cells = placed.token_cells[tokens]
    # Cells number the batch row by row, so sorting by cell sorts by row and column at once.
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
    """Return a random ordinary id for each token, never its own; `share`, in [0, 1), is the random number."""
    # Draw from one id fewer, then step over the token's own id: uniform without rejection.
    rank = (share * (len(vocabulary.ordinary) - 1)).astype(np.int64)
    return vocabulary.ordinary[rank + (rank >= vocabulary.ordinary_before[originals])]
