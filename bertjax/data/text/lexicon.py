"""Phrases that are masked as wholes: a file with a phrase a line, the user's own or mined from a token store."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from bertjax import storage
from bertjax.data.examples import Vocabulary
from bertjax.data.store import TokenStore
from bertjax.data.text.collocations import collocations
from bertjax.data.text.words import Words
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

FORMAT_VERSION = 1
MINE = "mine"


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """Phrases, known by their hashes.

    Attributes:
      hashes: number of words (2 or more) -> uint64 [phrases], ascending, see `Words.hashes`. A phrase of one word is a
        unit anyhow.
      fingerprint: hex, of the file that they stand in.
    """

    hashes: dict[int, np.ndarray]
    fingerprint: str

    def units(self, words: Words, tokens: np.ndarray, vocab_size: int) -> np.ndarray:
        """Phrases, longest first and then from the left, and the words between them; the first word of each unit.

        Returns:
          int64 [U], ascending.
        """
        starts_unit = np.ones(len(words.starts), bool)
        in_phrase = np.zeros(len(words.starts), bool)
        by_length = list(words.hashes(tokens, vocab_size, max(self.hashes, default=0)))
        for length in sorted(self.hashes, reverse=True):
            known = _is_in(by_length[length - 1], self.hashes[length]) & (words.room >= length)
            inside = np.flatnonzero(known)[:, None] + np.arange(length)
            inside = inside[~in_phrase[inside].any(axis=1)]
            inside = inside[_leftmost(inside[:, 0], length)]
            in_phrase[inside] = True
            starts_unit[inside[:, 1:]] = False
        return np.flatnonzero(starts_unit)


def open_lexicon(store: TokenStore, source: str, size: int) -> Lexicon:
    """The lexicon in a file; `mine`: of up to `size` phrases, mined once and kept beside the tokens of the store.

    Raises:
      UserError: the file cannot be read or written, an entry is unusable, or there is nothing to mine.
    """
    return read(_mined(store, size) if source == MINE else Path(source).expanduser(), store.tokenizer)


def read(path: Path, tokenizer: Tokenizer) -> Lexicon:
    """Reads a UTF-8 file with a phrase a line.

    Raises:
      UserError: the file cannot be read or is empty, or an entry has no token, or one that no text has.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"masking.lexicon={str(path)!r} cannot be read as UTF-8 text: {error}") from None
    entries = tokenizer.encode([line.strip() for line in lines])
    for number, (line, ids) in enumerate(zip(lines, entries, strict=True), start=1):
        if not ids or not tokenizer.special_ids.isdisjoint(ids):
            what = "holds a character that the tokenizer does not know" if ids else "has no tokens"
            raise UserError(f"line {number} of the lexicon {path} ({line.strip()!r}) {what}; remove the line")

    vocabulary = Vocabulary.of(tokenizer)
    tokens = np.concatenate(entries).astype(np.int32)
    boundary = np.zeros(len(tokens), bool)
    boundary[np.cumsum([0, *map(len, entries[:-1])])] = True
    words = Words.of(tokens, boundary, vocabulary)
    by_length = enumerate(words.hashes(tokens, vocabulary.size, words.stretch_lengths.max()), start=1)
    hashes = {n: np.unique(each[words.stretch_starts[words.stretch_lengths == n]]) for n, each in by_length if n > 1}
    return Lexicon({n: each for n, each in hashes.items() if len(each)}, hashlib.sha256(content).hexdigest())


def _mined(store: TokenStore, size: int) -> Path:
    """The file of the phrases mined from a store, best first."""
    identity = f"{FORMAT_VERSION}\0{store.fingerprint}\0{size}"
    path = store.path / "lexicons" / f"{hashlib.sha256(identity.encode()).hexdigest()[:12]}.txt"
    if path.exists():
        return path
    phrases = _phrases(store, size)
    if not phrases:
        raise UserError(f"masking.lexicon={MINE!r} finds no phrase in {store.path}; name a file, or mask words")
    try:
        path.parent.mkdir(exist_ok=True)
        storage.write_text(path, "".join(f"{phrase}\n" for phrase in phrases))
    except OSError as error:
        raise UserError(f"cannot write the lexicon {path} ({error.strerror}); make the store writable") from None
    return path


def _phrases(store: TokenStore, size: int) -> list[str]:
    """The best collocations as text; those that the tokenizer would not read again as the same tokens are no use."""
    tokenizer = store.tokenizer
    found = collocations(store.split("train"), Vocabulary.of(tokenizer))
    texts = [tokenizer.decode(ids) for ids in found]
    same = [
        text
        for text, ids, again in zip(texts, found, tokenizer.encode(texts), strict=True)
        if again == ids.tolist() and text == text.strip() and "\n" not in text
    ]
    return same[:size]


def _is_in(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which of `hashes` are among those `known`, which ascend; bool."""
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return known[place] == hashes


def _leftmost(starts: np.ndarray, length: int) -> np.ndarray:
    """Of runs of `length` words from ascending `starts`, those that remain when each bars what overlaps it; bool.

    A run with no other in the `length - 1` words before it remains for sure, and bars those that overlap it; so on
    with the rest. All chains of overlapping runs are worked off at once.
    """
    remains, left = np.zeros(len(starts), bool), np.arange(len(starts))
    while len(left):
        at = starts[left]
        heads = np.diff(at, prepend=at[0] - length) >= length
        remains[left[heads]] = True
        left = left[at - at[heads][np.cumsum(heads) - 1] >= length]
    return remains
