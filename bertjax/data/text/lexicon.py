"""Phrase lexicons for masking: one phrase per line, from the user's file or mined from a token store."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from bertjax.data.examples import Vocabulary
from bertjax.data.store import TokenStore
from bertjax.data.text import unicode
from bertjax.data.text.collocations import collocations
from bertjax.data.text.words import Words
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError

FORMAT_VERSION = 3  # of the mined phrases
MINE = "mine"


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
            known = _is_in(by_length[length - 1], self.hashes[length]) & (words.room >= length)
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
        raise UserError(
            f"masking.lexicon={MINE!r} finds no phrases in {store.path}; name a file, or use masking.kind=words"
        )
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


def _is_in(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return whether each hash is in `known`, which is ascending; bool."""
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return known[place] == hashes


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
