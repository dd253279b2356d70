"""New pieces for an existing WordPiece tokenizer: words of another domain, or a second vocabulary, that are appended.

WordPiece takes the longest matching piece, so a new piece changes only the words that start with it (or, as ##...,
contain it). A unigram model and BPE have no such rule: a piece without a score, or without the merges that lead to it,
is never used, and a piece with them may change any text.
"""

import collections
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertjax.data.tokenizer import mixed
from bertjax.data.tokenizer.base import Tokenizer
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.errors import UserError, shorten

# A word that occurs less often gives too little evidence for its embedding.
MIN_COUNT = 5
# A word that shows whether a tokenizer keeps upper case and accents.
_CASED = "\u00c9A"


@dataclasses.dataclass(frozen=True)
class Extension:
    """A tokenizer with new pieces.

    Attributes:
      tokenizer: the extended tokenizer; the old ids come first.
      pieces: the new pieces, in the order of their ids.
      parts: old ids of each new piece; [UNK] if it could not be split.
      known: number of requested pieces that were already in the vocabulary.
      no_continuation: characters that occur inside words but have no ## piece. A word that was known before, starts
        with a new piece and continues with such a character may become [UNK].
    """

    tokenizer: HuggingFaceTokenizer
    pieces: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    known: int
    no_continuation: tuple[str, ...]


def wordpiece(tokenizer: Tokenizer) -> HuggingFaceTokenizer:
    """Return the tokenizer if it can be extended.

    Raises:
      UserError: it is not WordPiece, or it has a second vocabulary already.
    """
    if isinstance(tokenizer, MixedTokenizer):
        raise UserError(
            "this tokenizer has a second vocabulary already (--mix); extend the model that it was made from"
        )
    if isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.description["model"]["type"] == "WordPiece":
        return tokenizer
    is_bpe = isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.description["model"]["type"] == "BPE"
    kind = "byte-level BPE" if is_bpe else "SentencePiece"
    raise UserError(
        f"new pieces need a WordPiece tokenizer, this one is {kind}, whose pieces have scores or merges that a list "
        "does not give; train a tokenizer on the new corpus and pretrain with it instead"
    )


def read(path: str | Path) -> list[str]:
    """Return the pieces of a text file, one per line; white space around them and empty lines are ignored.

    Raises:
      UserError: the file cannot be read, or it is empty.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(
            f"--pieces={path} cannot be read ({error}); name a UTF-8 text file with a piece a line"
        ) from None
    if pieces := [line.strip() for line in lines if line.strip()]:
        return pieces
    raise UserError(f"--pieces={path} is empty; write a piece a line into it")


def count_words(texts: Iterable[str], tokenizer: HuggingFaceTokenizer) -> collections.Counter:
    """Return how often each word occurs in texts."""
    counts = collections.Counter()
    for text in texts:
        counts.update(tokenizer.words(text))
    return counts


def mine(counts: collections.Counter, tokenizer: HuggingFaceTokenizer, number: int) -> list[str]:
    """Return the words whose own piece would save the most tokens, (pieces - 1) * count, best first.

    A word that was [UNK] counts as two pieces. Words without a letter, and those that occur less than MIN_COUNT times,
    are excluded.

    Raises:
      UserError: there are fewer words than `number`.
    """
    longest, savings = tokenizer.description["model"]["max_input_chars_per_word"], {}
    for word, count in counts.items():
        if count < MIN_COUNT or len(word) > longest or not any(map(str.isalpha, word)):
            continue
        parts = tokenizer.parts(word)
        if (len(parts) > 1 or parts == [tokenizer.unk_id]) and tokenizer.words(word) == [word]:
            savings[word] = count * max(len(parts) - 1, 1)
    if len(savings) < number:
        raise UserError(
            f"--new-pieces={number} is too many: {len(savings)} words that the tokenizer splits occur at least "
            f"{MIN_COUNT} times in the corpus; ask for at most {len(savings)}"
        )
    return sorted(savings, key=lambda word: (-savings[word], word))[:number]


def tokens(counts: collections.Counter, tokenizer: HuggingFaceTokenizer) -> int:
    """Return the number of tokens of the counted words."""
    return sum(count * len(tokenizer.parts(word)) for word, count in counts.items())


def extend(tokenizer: HuggingFaceTokenizer, pieces: Sequence[str]) -> Extension:
    """Append pieces to the vocabulary; known and repeated pieces are only counted.

    Args:
      tokenizer: a WordPiece, see `wordpiece`.
      pieces: whole words, or rests of words after ##, in the normalization of the tokenizer.

    Raises:
      UserError: no text could become one of the pieces, or none of them is new.
    """
    description = json.loads(tokenizer.model)
    vocab = description["model"]["vocab"]
    known = {tokenizer.piece(i) for i in range(tokenizer.vocab_size)}
    new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
    if not new:
        raise UserError(f"all {len(pieces)} pieces are in the vocabulary already; there is nothing to add")
    prefix = description["model"]["continuing_subword_prefix"]
    no_continuation = _without_continuation(tokenizer, prefix)
    vocab |= {piece: tokenizer.vocab_size + i for i, piece in enumerate(new)}
    extended = HuggingFaceTokenizer(json.dumps(description, ensure_ascii=False).encode())
    _check_found(extended, new, prefix)
    parts = tuple(_old_parts(tokenizer, piece, prefix) for piece in new)
    return Extension(extended, tuple(new), parts, len(pieces) - len(new), no_continuation)


def mix(first: HuggingFaceTokenizer, second: HuggingFaceTokenizer, share: float) -> Extension:
    """Return a tokenizer that splits each word by the first or by the second vocabulary.

    Args:
      first, second: WordPiece, see `wordpiece`. White space, punctuation and case are treated as by the first one.
      share: probability of the second vocabulary.

    Raises:
      UserError: the tokenizers mark pieces inside words in other ways, or only one of them keeps case.
    """
    if not 0.0 <= share <= 1.0:
        raise UserError(f"--share={share} must be a probability, from 0 to 1")
    description = json.loads(first.model)
    prefix, vocab = description["model"]["continuing_subword_prefix"], description["model"]["vocab"]
    if (other := second.description["model"]["continuing_subword_prefix"]) != prefix:
        raise UserError(f"--mix has pieces with {other!r} and the model {prefix!r}; name another tokenizer")
    if (ours := first.words(_CASED)) != (theirs := second.words(_CASED)):
        raise UserError(
            f"--mix reads {_CASED} as {' '.join(theirs)} and the model as {' '.join(ours)}; name a tokenizer with the "
            "same data.tokenizer.lowercase"
        )
    pieces = [second.piece(i) for i in range(second.vocab_size) if i not in second.special_ids]
    new = [piece for piece in pieces if piece and piece not in vocab]
    vocab |= {piece: first.vocab_size + i for i, piece in enumerate(new)}
    tokenizer = MixedTokenizer(mixed.describe(description, second, first.vocab_size, share))
    parts = tuple(_old_parts(first, piece, prefix) for piece in new)
    return Extension(tokenizer, tuple(new), parts, len(pieces) - len(new), ())


def _old_parts(tokenizer: HuggingFaceTokenizer, piece: str, prefix: str) -> tuple[int, ...]:
    """Return the old ids of a piece; [UNK] for the rest of a word whose characters are unknown."""
    parts = tuple(tokenizer.parts(piece))
    # The library would also read the signs of the prefix as characters.
    return parts if not piece.startswith(prefix) or parts[0] in tokenizer.continuation_ids else (tokenizer.unk_id,)


def _check_found(extended: HuggingFaceTokenizer, pieces: Sequence[str], prefix: str) -> None:
    """Raise UserError for pieces that the tokenizer reads as something else in a text."""
    lost = []
    for piece in pieces:
        whole = f"a{piece.removeprefix(prefix)}" if piece.startswith(prefix) else piece
        words = extended.words(whole)
        if words != [whole] or len(extended.parts(piece)) != 1 or extended.parts(piece) == [extended.unk_id]:
            as_words = f"is read as {' '.join(map(repr, words))}"
            lost.append(f"{piece!r} {as_words if words != [whole] else 'is too long'}")
    if lost:
        raise UserError(
            f"no text could become {len(lost)} of the {len(pieces)} new pieces ({shorten(lost, separator='; ')}); "
            "a piece is one word or, after ##, the rest of one, in the tokenizer's own spelling"
        )


def _without_continuation(tokenizer: HuggingFaceTokenizer, prefix: str) -> tuple[str, ...]:
    """Return the characters inside pieces, first ones excluded, that have no ## piece of their own."""
    pieces = {tokenizer.piece(i) for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
    within = (piece.removeprefix(prefix) if piece.startswith(prefix) else piece[1:] for piece in pieces)
    missing = (c for c in set("".join(within)) if prefix + c not in pieces)
    return tuple(sorted(c for c in missing if tokenizer.words(f"a{c}") == [f"a{c}"]))
