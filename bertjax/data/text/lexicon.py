"""Words in token sequences, and phrase lexicons for masking.

A lexicon has one phrase per line, from the user's file or mined from a token store. Mining finds word sequences that
occur together far more often than by chance.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax.data.examples import Vocabulary
from bertjax.data.random import bits, uniform
from bertjax.data.store import Split, TokenStore
from bertjax.data.text import unicode
from bertjax.data.text.ngrams import are_among
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError

FORMAT_VERSION = 3  # of the mined phrases
MINE = "mine"


_WITHIN_WORD = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers are never zero
_BETWEEN_WORDS = np.uint64(0xD1342543DE82EF95)


@dataclasses.dataclass(frozen=True)
class Words:
    """W words that together cover every token that is not special.

    A word is a token plus the tokens that continue it. It ends at a special token or a boundary. A stretch is a maximal
    run of words with no special token or boundary between them; phrases and spans never leave it.

    Attributes:
      starts: int64 [W], index of each word's first token.
      lengths: int64 [W], tokens per word.
      stretch_starts: int64 [S], index of each stretch's first word.
    """

    starts: np.ndarray
    lengths: np.ndarray
    stretch_starts: np.ndarray

    @classmethod
    def of(cls, tokens: np.ndarray, boundary: np.ndarray, vocabulary: Vocabulary) -> "Words":
        """Split tokens (int [n]) into words; a word and a stretch end before each token with `boundary` (bool [n])."""
        special = vocabulary.is_special[tokens]
        opens = boundary.copy()
        opens[1:] |= special[:-1]
        ordinary = np.flatnonzero(~special)
        is_start = (opens | ~vocabulary.continues_word[tokens])[ordinary]
        first = np.flatnonzero(is_start)
        starts = ordinary[first]
        return cls(starts, np.diff(first, append=len(ordinary)), np.flatnonzero(opens[starts]))

    @functools.cached_property
    def stretches(self) -> np.ndarray:
        """Index of each word's stretch; int64 [W]."""
        return np.repeat(np.arange(len(self.stretch_starts)), self.stretch_lengths)

    @functools.cached_property
    def stretch_lengths(self) -> np.ndarray:
        """Words per stretch; int64 [S]."""
        return np.diff(self.stretch_starts, append=len(self.starts))

    @functools.cached_property
    def room(self) -> np.ndarray:
        """Words left in the stretch, counting from each word and including it; int64 [W]."""
        return (self.stretch_starts + self.stretch_lengths)[self.stretches] - np.arange(len(self.starts))

    def hashes(self, tokens: np.ndarray, vocab_size: int, longest: int) -> Iterator[np.ndarray]:
        """Yield, for n = 1 .. `longest`, a hash of the n words that start at each word; uint64 [W].

        A hash is meaningless if its stretch has fewer than n words left (see `room`).
        """
        if not len(self.starts):
            yield from (np.zeros(0, np.uint64) for _ in range(longest))
            return
        place = np.arange(self.lengths.sum()) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        index = np.repeat(self.starts, self.lengths) + place
        # Polynomial hashes mod 2**64, with different bases inside and between words: "ab c" and "a bc" must differ.
        powers = np.cumprod(np.full(self.lengths.max(), _WITHIN_WORD))
        weighted = _token_hashes(vocab_size)[tokens[index]] * powers[place]
        words = np.add.reduceat(weighted, np.cumsum(self.lengths) - self.lengths)
        hashes = words
        yield hashes
        for n in range(1, longest):
            following = np.concatenate([words[n:], np.zeros(min(n, len(words)), np.uint64)])
            hashes = hashes * _BETWEEN_WORDS + following
            yield hashes


@functools.lru_cache(maxsize=1)
def _token_hashes(vocab_size: int) -> np.ndarray:
    """Return a fixed random 64-bit number for each id; uint64 [vocab_size]."""
    high, low = (bits(0, f"words/{half}", 0, np.arange(vocab_size), 0).astype(np.uint64) for half in ("high", "low"))
    return high << np.uint64(32) | low


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """A set of phrases, represented by hashes.

    Attributes:
      hashes: word count (2 or more) -> uint64 [phrases], ascending, see `Words.hashes`. Single words need no entry:
        each is a unit anyway.
      fingerprint: SHA-256 of the lexicon file, hex.
    """

    hashes: dict[int, np.ndarray]
    fingerprint: str

    def units(self, words: Words, tokens: np.ndarray, vocab_size: int) -> np.ndarray:
        """Divide words into units: phrases (longest match first, then leftmost) and the single words between them.

        Returns:
          Index of the first word in each unit; int64 [U], ascending.
        """
        starts_unit = np.ones(len(words.starts), bool)
        in_phrase = np.zeros(len(words.starts), bool)
        by_length = list(words.hashes(tokens, vocab_size, max(self.hashes, default=0)))
        for length in sorted(self.hashes, reverse=True):
            known = are_among(by_length[length - 1], self.hashes[length]) & (words.room >= length)
            inside = np.flatnonzero(known)[:, None] + np.arange(length)
            inside = inside[~in_phrase[inside].any(axis=1)]
            inside = inside[_leftmost(inside[:, 0], length)]
            in_phrase[inside] = True
            starts_unit[inside[:, 1:]] = False
        return np.flatnonzero(starts_unit)


def open_lexicon(store: TokenStore, source: str, size: int) -> Lexicon:
    """Open a lexicon file, or with `source="mine"` up to `size` phrases mined from the store.

    Mining happens once; the phrases are kept in the store's folder.

    Raises:
      UserError: the file cannot be read or written, an entry is unusable, or the store has no phrases.
    """
    return read(_mined(store, size) if source == MINE else Path(source).expanduser(), store.tokenizer)


def read(path: Path, tokenizer: Tokenizer) -> Lexicon:
    """Read a UTF-8 file with one phrase per line.

    Raises:
      UserError: the file cannot be read or is empty, or an entry has no tokens or unknown characters.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"masking.lexicon={str(path)!r} cannot be read as UTF-8 text: {error}") from None
    texts = [line.strip() for line in lines]
    entries = tokenizer.encode_inside(texts)
    for number, (line, ids) in enumerate(zip(lines, entries, strict=True), start=1):
        if not ids or not tokenizer.special_ids.isdisjoint(ids):
            what = "holds a character that the tokenizer does not know" if ids else "has no tokens"
            raise UserError(f"line {number} of the lexicon {path} ({line.strip()!r}) {what}; remove the line")
    # In scripts without spaces a phrase mostly follows a letter, where it has other pieces than after a space.
    inner = [text for text in texts if unicode.starts_unspaced(text)]
    entries += [ids for ids in tokenizer.encode_inside(inner, [False] * len(inner)) if ids]

    vocabulary = Vocabulary.of(tokenizer)
    tokens = np.concatenate(entries).astype(np.int32)
    boundary = np.zeros(len(tokens), bool)
    boundary[np.cumsum([0, *map(len, entries[:-1])])] = True
    words = Words.of(tokens, boundary, vocabulary)
    by_length = enumerate(words.hashes(tokens, vocabulary.size, words.stretch_lengths.max()), start=1)
    hashes = {n: np.unique(runs[words.stretch_starts[words.stretch_lengths == n]]) for n, runs in by_length if n > 1}
    return Lexicon({n: known for n, known in hashes.items() if len(known)}, hashlib.sha256(content).hexdigest())


def _mined(store: TokenStore, size: int) -> Path:
    """Return the file with the phrases mined from a store, best first. Mine them if it does not exist."""
    identity = f"{FORMAT_VERSION}\0{store.fingerprint}\0{size}"
    path = store.path / "lexicons" / f"{hashlib.sha256(identity.encode()).hexdigest()[:12]}.txt"
    if path.exists():
        return path
    phrases = _phrases(store, size)
    if not phrases:
        raise UserError(f"masking.lexicon={MINE!r} finds no phrases in {store.path}; name a file, or use kind=words")
    try:
        path.parent.mkdir(exist_ok=True)
        storage.write_text(path, "".join(f"{phrase}\n" for phrase in phrases))
    except OSError as error:
        raise UserError(f"cannot write the lexicon {path} ({error.strerror}); make the store writable") from None
    return path


def _phrases(store: TokenStore, size: int) -> list[str]:
    """Return the best collocations as text, skipping any that the tokenizer would encode as different tokens."""
    tokenizer = store.tokenizer
    phrases = collocations(store.split("train"), Vocabulary.of(tokenizer))
    texts = [tokenizer.decode(ids) for ids in phrases]
    usable = [
        text
        for text, ids, encoded in zip(texts, phrases, tokenizer.encode_inside(texts), strict=True)
        if text and text == text.strip() and "\n" not in text
        if encoded == ids.tolist()
        or (unicode.starts_unspaced(text) and tokenizer.encode_inside([text], [False]) == [ids.tolist()])
    ]
    return usable[:size]


def _leftmost(starts: np.ndarray, length: int) -> np.ndarray:
    """Resolve overlaps between phrases with `length` words: keep the leftmost, drop what it overlaps, repeat; bool.

    Each iteration keeps every phrase that no remaining phrase overlaps from the left, so all chains of overlapping
    phrases advance together.

    Args:
      starts: index of each phrase's first word, ascending.
    """
    remains, left = np.zeros(len(starts), bool), np.arange(len(starts))
    while len(left):
        at = starts[left]
        heads = np.diff(at, prepend=at[0] - length) >= length
        remains[left[heads]] = True
        left = left[at - at[heads][np.cumsum(heads) - 1] >= length]
    return remains


LONGEST = 4  # words
MIN_COUNT = 5
THRESHOLD = 100.0
SAMPLE_TOKENS = 4_000_000
_BLOCKS = 1024
_SAMPLE_SEED = 0  # constant, because runs with any seed share a store


@dataclasses.dataclass(frozen=True)
class _Counts:
    """Occurrence counts for R distinct word n-grams with the same n.

    Attributes:
      hashes: uint64 [R], ascending.
      first: int64 [R], index of the word that starts the first occurrence.
      counts: int64 [R].
    """

    hashes: np.ndarray
    first: np.ndarray
    counts: np.ndarray

    def of(self, hashes: np.ndarray) -> np.ndarray:
        """Look up the counts for hashes that all occur; int64."""
        return self.counts[np.searchsorted(self.hashes, hashes)]


def collocations(split: Split, vocabulary: Vocabulary) -> list[np.ndarray]:
    """Return phrases with 2 to 4 words as token ids, best first. The same store always gives the same phrases.

    Two words score as in Mikolov et al. 2013 (section 4, arXiv 1310.4546), multiplied by the word count N:
    N * (count(ab) - delta) / (count(a) * count(b)). The discount delta keeps rare words from forming phrases. A longer
    sequence gets the minimum score over all ways to split it in two. As in word2phrase, the paper's program, a phrase
    needs at least MIN_COUNT occurrences (delta is the same number) and a score of at least THRESHOLD. Counting uses
    SAMPLE_TOKENS tokens, in blocks spread over the split.
    """
    tokens, boundary = _sample(split)
    words = Words.of(tokens, boundary, vocabulary)
    hashes = list(words.hashes(tokens, vocabulary.size, LONGEST))
    counts = []
    for length, hashes_of_length in enumerate(hashes, start=1):
        fits = np.flatnonzero(words.room >= length)
        known, first, occurrences = np.unique(hashes_of_length[fits], return_index=True, return_counts=True)
        counts.append(_Counts(known, fits[first], occurrences))

    scores, firsts, lengths = [], [], []
    for length in range(2, LONGEST + 1):
        frequent = counts[length - 1].counts >= MIN_COUNT
        first, together = counts[length - 1].first[frequent], counts[length - 1].counts[frequent]
        # A phrase is as strong as its weakest joint: "New York City" needs "New York" + "City" and "New" + "York City".
        score = np.full(len(first), np.inf)
        for left in range(1, length):
            apart = counts[left - 1].of(hashes[left - 1][first]).astype(float)
            apart *= counts[length - left - 1].of(hashes[length - left - 1][first + left])
            score = np.minimum(score, len(words.starts) * (together - MIN_COUNT) / apart)
        scores.append(score)
        firsts.append(first)
        lengths.append(np.full(len(first), length))
    score, first, length = map(np.concatenate, (scores, firsts, lengths))
    order = np.lexsort((length, first, -score))
    order = order[score[order] >= THRESHOLD]
    starts, last = words.starts[first[order]], (first + length - 1)[order]
    stops = words.starts[last] + words.lengths[last]
    return [tokens[start:stop] for start, stop in zip(starts, stops, strict=True)]


def _sample(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Sample blocks from the whole split.

    Returns:
      Token ids (int32 [n]), and whether a sentence or a block starts at each token (bool [n]).
    """
    share = min(1.0, SAMPLE_TOKENS / len(split.tokens))
    blocks = _BLOCKS if share < 1.0 else 1
    edges = np.linspace(0, len(split.tokens), blocks + 1).astype(np.int64)
    lengths = (share * np.diff(edges)).astype(np.int64)
    slack = np.diff(edges) - lengths + 1
    starts = edges[:-1] + (uniform(_SAMPLE_SEED, "lexicon/sample", 0, np.arange(blocks), 0) * slack).astype(np.int64)
    tokens, boundary = [], []
    for start, stop in zip(starts, starts + lengths, strict=True):
        low, high = np.searchsorted(split.sentences, (start, stop))
        is_start = np.zeros(stop - start, bool)
        is_start[split.sentences[low:high] - start] = True
        is_start[:1] = True  # a block may start inside a sentence; no phrase may cross into the block before
        tokens.append(split.tokens[start:stop].astype(np.int32))
        boundary.append(is_start)
    return np.concatenate(tokens), np.concatenate(boundary)
