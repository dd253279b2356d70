"""Masking for masked language modeling: choose the tokens to predict and replace them.

Everything here is a pure function of (seed, example id, epoch).
"""

import abc
import dataclasses
import math
from typing import ClassVar

import numpy as np

from bertjax.config.registry import Kind, Union
from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.random import bits, bits_after, states
from bertjax.data.store import TokenStore
from bertjax.data.text import lexicon
from bertjax.data.text.lexicon import Words
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import PLACE, TRAINING_ONLY, check, setting


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
    static: int = setting(0, least=0, metadata=TRAINING_ONLY)

    def __post_init__(self):
        check(self, "masking")
        if self.mask + self.random > 1.0:
            raise UserError(
                f"masking.mask={self.mask} and masking.random={self.random} are shares; lower them to 1 at most"
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
        """Return a copy with loaded resources, such as a lexicon; without a store, nothing is loaded."""
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


_LAST = np.iinfo(np.uint32).max


@dataclasses.dataclass(frozen=True)
class TokenMasking(Masking):
    """Single tokens, each replaced independently (Devlin et al. 2019, section 3.1, task 1; arXiv 1810.04805).

    Every example gets exactly its share, see `budget`. Fields: see `Masking`.
    """

    kind: str = dataclasses.field(init=False, default="tokens")

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Choose the tokens with the lowest random numbers in each example.

        All tokens that tie for last place are chosen, because nothing but the random number may decide.
        """
        ragged = placed.ragged
        real = ~ragged.special
        counts = self.counts(ragged, draw)
        priority = token_bits(ragged, draw, "mask/choose")
        # One padded line per example, sorted; special tokens and padding have the largest value and end up last.
        lines = np.full((len(ragged.ids), ragged.lengths.max(initial=1)), _LAST, np.uint32)
        lines[np.arange(lines.shape[1]) < ragged.lengths[:, None]] = np.where(real, priority, _LAST)
        lines.sort(axis=1)
        # The count-th smallest number is the threshold; one comparison then selects tokens without a scatter.
        last = lines[np.arange(len(lines)), counts - 1]
        tokens = np.flatnonzero((priority <= ragged.spread(last)) & real)
        return Choice(tokens, tokens)

    def counts(self, ragged: Ragged, draw: Draw) -> np.ndarray:
        """Return the number of tokens to predict in each example; int64 [M]."""
        _, counts = budget(ragged, self.rate)
        return counts

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Bound: each of N examples has two special tokens or more, and rounding adds at most half a token.

        Only very short examples can exceed it: they predict one token although their share is smaller.
        """
        return math.floor(self.rate * (seq_len - 2 * row_examples) + 0.5 * row_examples)


@dataclasses.dataclass(frozen=True)
class UniformMasking(TokenMasking):
    """A random share of each example, new in each epoch (Nie et al., 2025, LLaDA, section 2.1; arXiv 2502.09992).

    The number of predicted tokens is uniform from 1 to `rate` times the maskable ones. All of them become [MASK].

    Attributes:
      rate: largest share of tokens to predict.
    """

    kind: str = dataclasses.field(init=False, default="uniform")
    rate: float = setting(1.0, above=0, most=1)
    mask: float = setting(1.0, least=0, most=1)
    random: float = setting(0.0, least=0, most=1)

    def counts(self, ragged: Ragged, draw: Draw) -> np.ndarray:
        _, most = budget(ragged, self.rate)
        share = bits(draw.seed, "mask/count", draw.epochs, ragged.ids, 0) * 2.0**-32
        return np.minimum(1 + np.floor(share * most).astype(np.int64), most)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Bound: one example can fill the row, and any example can be hidden whole."""
        return self.rate * seq_len


_DEVIATIONS = 2  # a normal variable exceeds its mean by more than two standard deviations with probability 2.3%


@dataclasses.dataclass(frozen=True)
class UnitMasking(Masking):
    """Masking in units, each one whole word or more. No unit crosses a special token or a segment edge.

    Attributes:
      one_decision: whether a unit is masked, replaced or left unchanged as a whole, not token by token.
      spread: standard deviation, in tokens, between an example's chosen tokens and its share, measured on English and
        Korean texts; it sets the slack in `capacity`.
    """

    one_decision: ClassVar[bool]
    spread: ClassVar[float]

    @abc.abstractmethod
    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        """Return the first word in each unit; int64 [U], ascending, including the first word in every stretch."""

    def choose(self, placed: PlacedExamples, draw: Draw) -> Choice:
        """Return all tokens in the units that `chosen_units` picks."""
        ragged = placed.ragged
        words = words_of(placed)
        first = self.units(words, placed, draw)
        starts = words.starts[first]
        lengths = np.add.reduceat(words.lengths, first) if len(first) else words.lengths
        chosen = chosen_units(starts, lengths, ragged, draw, self.rate)
        # Units cover the maskable tokens in order, so flags per unit repeat into flags per token.
        tokens = np.flatnonzero(~ragged.special)[np.repeat(chosen, lengths)]
        return Choice(tokens, np.repeat(starts[chosen], lengths[chosen]) if self.one_decision else tokens)

    def most_predicted(self, seq_len: int, row_examples: int) -> float:
        """Return the mean plus two standard deviations for N independent examples with two special tokens each.

        In rows with 128 tokens or more, one example or many short ones, this drops less than 0.5% of the chosen tokens.
        Shorter rows, and text with unusually long words, lose more.
        """
        return self.rate * (seq_len - 2 * row_examples) + _DEVIATIONS * self.spread * math.sqrt(row_examples)


def words_of(placed: PlacedExamples) -> Words:
    """Return all words in a batch; a stretch stays within one segment of one example."""
    ragged = placed.ragged
    # Segments restart at 0, so an example boundary between two single-segment examples needs its own line.
    boundary = np.diff(ragged.segments, prepend=-1) != 0
    boundary[ragged.offsets[:-1]] = True
    return Words.of(ragged.tokens, boundary, placed.vocabulary)


def chosen_units(starts: np.ndarray, lengths: np.ndarray, ragged: Ragged, draw: Draw, rate: float) -> np.ndarray:
    """Choose random units in each example so that their tokens add up to about its share; bool [U].

    Lay an example's units in random order around a circle with circumference m, its maskable tokens. Take an arc with
    length b, the share, from a random point, and choose the units whose midpoint is on the arc. Then every unit, long
    or short, is chosen with probability b / m, the expected number of chosen tokens is b, and the actual number differs
    from b by at most the longest unit. It is zero if units are longer than the share and no midpoint is on the arc.

    Args:
      starts: int64 [U], first token in each unit, ascending.
      lengths: int64 [U], tokens per unit; the units cover all maskable tokens.
      ragged: the examples.
      draw: seed and epochs for the random numbers.
      rate: share of maskable tokens to choose.
    """
    maskable, share = budget(ragged, rate)
    owners = ragged.token_examples[starts]
    priority = token_bits(ragged, draw, "mask/choose", starts)
    # Stable: ties between equal priorities must fall by the order within the example, whatever else the batch holds.
    order = np.argsort(owners.astype(np.uint64) << np.uint64(32) | priority, kind="stable")
    before = np.cumsum(lengths[order]) - lengths[order] - (np.cumsum(maskable) - maskable)[owners]
    # In half tokens, so that midpoints are integers.
    point = bits(draw.seed, "mask/turn", draw.epochs, ragged.ids, 0).astype(np.int64) * (2 * maskable) >> 32
    middle = 2 * before + lengths[order] - point[owners]
    chosen = np.empty(len(starts), bool)
    chosen[order] = middle % (2 * maskable)[owners] < (2 * share)[owners]
    return chosen


def runs(words: Words, shares: np.ndarray, ragged: Ragged, draw: Draw) -> np.ndarray:
    """Cut every stretch into word runs with random lengths and return the first word in each run.

    Lengths are independent: n words with probability `shares[n - 1]`. Only a stretch's last run may be shorter.
    """
    # A stretch with W words has at most W runs, so run i can use word i's random number.
    share = token_shares(ragged, draw, "mask/length", words.starts)
    lengths = 1 + np.searchsorted(np.cumsum(shares)[:-1], share, side="right")
    before = np.cumsum(lengths) - lengths
    place = before - before[words.stretch_starts][words.stretches]
    exists = place < words.stretch_lengths[words.stretches]  # the others would start beyond their stretch
    return (words.stretch_starts[words.stretches] + place)[exists]


# SpanBERT's span lengths: n = 1 .. 10 words, geometric with p = 0.2, renormalized over these ten; mean 3.8.
SPAN_SHARES = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()


@dataclasses.dataclass(frozen=True)
class WordMasking(UnitMasking):
    """Whole-word masking (google-research/bert, README, May 31st, 2019).

    As there, each token in a chosen word is replaced independently. Fields: see `Masking`.
    """

    one_decision: ClassVar[bool] = False
    spread: ClassVar[float] = 1.1

    kind: str = dataclasses.field(init=False, default="words")

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return np.arange(len(words.starts))


@dataclasses.dataclass(frozen=True)
class NgramMasking(UnitMasking):
    """N-gram masking: n whole words with probability proportional to 1/n (Lan et al. 2020, ALBERT; arXiv 1909.11942).

    The paper defines p(n) in section 4.1 but not the replacement. Here each token in a chosen n-gram is replaced
    independently, as in google-research/albert (create_pretraining_data.py). A segment's last n-gram may be shorter.
    Other fields: see `Masking`.

    Attributes:
      longest: largest n: 3 for ALBERT, 5 for XLNet (Yang et al. 2019, section 3.1; arXiv 1906.08237).
    """

    one_decision: ClassVar[bool] = False

    kind: str = dataclasses.field(init=False, default="ngrams")
    longest: int = setting(3, least=1)

    @property
    def shares(self) -> np.ndarray:
        """Probabilities for n = 1 .. `longest`; float64."""
        shares = 1 / np.arange(1, self.longest + 1)
        return shares / shares.sum()

    @property
    def spread(self) -> float:
        """Linear fit to the values measured with `longest` = 1, 3 and 5."""
        return (8 + 3 * self.longest) / 10

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return runs(words, self.shares, placed.ragged, draw)


@dataclasses.dataclass(frozen=True)
class SpanMasking(UnitMasking):
    """Span masking: whole words, each span replaced as a whole (Joshi et al. 2020, SpanBERT, 3.1; arXiv 1907.10529).

    Span lengths in words are geometric with p = 0.2, at most 10 (mean 3.8). Spans never overlap. A segment's last span
    may be shorter. Fields: see `Masking`.
    """

    one_decision: ClassVar[bool] = True  # the paper replaces all tokens of a span in the same way
    spread: ClassVar[float] = 4.0

    kind: str = dataclasses.field(init=False, default="spans")

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return runs(words, SPAN_SHARES, placed.ragged, draw)


@dataclasses.dataclass(frozen=True)
class PhraseMasking(UnitMasking):
    """Phrase and entity masking, with single words between (Sun et al. 2019, ERNIE 1.0, 3.2; arXiv 1904.09223).

    Each unit is replaced as a whole; the paper does not specify this. Its schedule (single tokens, then phrases, then
    entities) is a run with three stages. `bind` reads the lexicon.

    Attributes:
      lexicon: `mine` finds phrases in the token store; otherwise a UTF-8 file with one phrase per line.
      lexicon_size: maximum number of mined phrases.
    """

    one_decision: ClassVar[bool] = True
    spread: ClassVar[float] = 1.2

    kind: str = dataclasses.field(init=False, default="phrases")
    lexicon: str = setting(lexicon.MINE, filled="use 'mine' or a file with a phrase per line", metadata=PLACE)
    lexicon_size: int = setting(50_000, least=1)

    def bind(self, store: TokenStore | None) -> "BoundPhraseMasking":
        """Return the masking with its phrases, mined if the store has none yet; without a store it has none.

        Raises:
          UserError: see `bertjax.data.text.lexicon.open_lexicon`.
        """
        choices = {field.name: getattr(self, field.name) for field in dataclasses.fields(PhraseMasking) if field.init}
        if store is None:
            return BoundPhraseMasking(**choices, phrases=lexicon.Lexicon({}, fingerprint=""))
        return BoundPhraseMasking(**choices, phrases=lexicon.open_lexicon(store, self.lexicon, self.lexicon_size))

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        raise TypeError("PhraseMasking has no phrases before `bind`")


@dataclasses.dataclass(frozen=True)
class BoundPhraseMasking(PhraseMasking):
    """`PhraseMasking` after `bind`, with its `phrases`."""

    phrases: lexicon.Lexicon = dataclasses.field(kw_only=True)

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"lexicon": self.phrases.fingerprint}

    def units(self, words: Words, placed: PlacedExamples, draw: Draw) -> np.ndarray:
        return self.phrases.units(words, placed.ragged.tokens, placed.vocabulary.size)


KINDS = {
    "tokens": "bertjax.data.masking:TokenMasking",
    "words": "bertjax.data.masking:WordMasking",
    "ngrams": "bertjax.data.masking:NgramMasking",
    "spans": "bertjax.data.masking:SpanMasking",
    "phrases": "bertjax.data.masking:PhraseMasking",
    "uniform": "bertjax.data.masking:UniformMasking",
}
MASKINGS = Union("masking", Masking, default="tokens", kinds=KINDS)
