"""Vocabularies of other sizes: trim pieces that a corpus does not use, or append domain words to a WordPiece tokenizer.

Trimming: WordPiece takes the longest match, and Unigram the path with the highest score, so removing pieces that the
corpus never uses cannot change how its texts are split. BPE also needs the pieces that its merges produce on the way.

Appending: a new piece of WordPiece changes only words that start with it (or, as ##..., contain it). Unigram and BPE
have no such rule: a piece without a score, or without the merges that lead to it, is never used, and one with them may
change any text.
"""

import collections
import copy
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.data.sources.base import decoded
from bertjax.data.sources.records import numbered_lines
from bertjax.data.tokenizer import mixed
from bertjax.data.tokenizer.base import Tokenizer
from bertjax.data.tokenizer.layout import template
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.runtime.errors import UserError, shorten

# Steps in a `tokenizer.json` that contain ids and that bertjax does not use.
_STEPS = ("truncation", "padding", "post_processor")
# Values in SentencePiece's protocol buffers: piece type NORMAL, model type BPE.
_NORMAL, _BPE = 1, 2


class Trimmed(NamedTuple):
    """A smaller tokenizer.

    Attributes:
      tokenizer: trimmed tokenizer.
      kept: int64 [V], the former id for each id. The order of ids does not change.
    """

    tokenizer: Tokenizer
    kept: np.ndarray


def trim(tokenizer: Tokenizer, used: Iterable[int]) -> Trimmed:
    """Trim a tokenizer to used pieces, special symbols, bytes and single characters.

    Args:
      tokenizer: any kind with one vocabulary.
      used: ids that occur in the corpus.

    Raises:
      UserError: it has two vocabularies.
    """
    if isinstance(tokenizer, MixedTokenizer):
        raise UserError("a tokenizer with two vocabularies (--mix) cannot be trimmed; train a student of the model")
    kept = {*map(int, used), *tokenizer.special_ids, *tokenizer.byte_ids}
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _trimmed_sentencepiece(tokenizer, kept)
    return _trimmed_json(tokenizer, kept)


def _trimmed_sentencepiece(tokenizer: SentencePieceTokenizer, kept: set[int]) -> Trimmed:
    description = copy.deepcopy(tokenizer.description)
    pieces = {piece.piece: i for i, piece in enumerate(description.pieces)}
    # Control symbols, bytes and single characters stay, so that unseen text still has tokens.
    kept |= {i for i, piece in enumerate(description.pieces) if piece.type != _NORMAL}
    kept |= {i for piece, i in pieces.items() if _is_character(piece, WORD_START)}
    scores = {i: piece.score for i, piece in enumerate(description.pieces) if piece.type == _NORMAL}
    if description.trainer_spec.model_type == _BPE:
        ranks = {piece: -scores[i] for piece, i in pieces.items() if i in scores}
        names = [description.pieces[i].piece for i in kept & scores.keys()]
        kept |= {pieces[made] for name in names for made in _merged(name, lambda a, b: ranks.get(a + b))}
    elif scores:
        # An unknown character scores relative to the lowest-scoring piece, so that piece stays.
        kept.add(min(scores, key=scores.__getitem__))
    ids = np.array(sorted(kept), np.int64)
    remaining = [description.pieces[i] for i in ids]
    del description.pieces[:]
    description.pieces.extend(remaining)
    description.trainer_spec.vocab_size = len(ids)
    return Trimmed(SentencePieceTokenizer(description.SerializeToString(), tokenizer.normalizer), ids)


def _trimmed_json(tokenizer: Any, kept: set[int]) -> Trimmed:
    """Trim a tokenizer described by a `tokenizer.json`."""
    description = copy.deepcopy(tokenizer.description)
    model = description["model"]
    kept |= {token["id"] for token in description.get("added_tokens") or ()}
    pairs: list[tuple[str, ...]] = []
    if model["type"] == "Unigram":
        scores = {i: score for i, (_, score) in enumerate(model["vocab"])}
        kept |= {i for i, (piece, _) in enumerate(model["vocab"]) if _is_character(piece, WORD_START)}
        kept.add(min(scores, key=scores.__getitem__))  # see `_trimmed_sentencepiece`
    elif model["type"] == "BPE":
        pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
        pieces = {i: piece for piece, i in model["vocab"].items()}
        names = [pieces[i] for i in kept & pieces.keys()]
        kept |= {model["vocab"][made] for name in names for made in _merged(name, lambda a, b: ranks.get((a, b)))}
    else:
        prefix = model["continuing_subword_prefix"]
        kept |= {i for piece, i in model["vocab"].items() if _is_character(piece, prefix)}
    ids = sorted(kept)
    new_id = {old: new for new, old in enumerate(ids)}
    if model["type"] == "Unigram":
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in new_id]
        model["unk_id"] = new_id[model["unk_id"]]
    else:
        model["vocab"] = {piece: new_id[i] for piece, i in model["vocab"].items() if i in new_id}
    if model["type"] == "BPE":
        left = model["vocab"].keys()  # a merge needs both of its parts and its result
        model["merges"] = [merge for merge, (a, b) in zip(model["merges"], pairs, strict=True) if {a, b, a + b} <= left]
    for token in description.get("added_tokens") or ():
        token["id"] = new_id[token["id"]]
    cls, sep = ((tokenizer.piece(number), new_id[number]) for number in (tokenizer.cls_id, tokenizer.sep_id))
    description |= dict.fromkeys(_STEPS)
    if tokenizer.cls_last or tokenizer.pair_separators > 1:
        description["post_processor"] = template(
            cls, sep, int(tokenizer.cls_last), tokenizer.cls_last, tokenizer.pair_separators
        )
    return Trimmed(type(tokenizer)(json.dumps(description, ensure_ascii=False).encode()), np.array(ids, np.int64))


def _is_character(piece: str, prefix: str) -> bool:
    return len(piece.removeprefix(prefix)) <= 1


def _merged(piece: str, rank_of: Callable[[str, str], float | None]) -> set[str]:
    """Return all intermediate pieces that BPE produces while merging a piece's characters, lowest rank first."""
    symbols, made = list(piece), set()
    while ranked := [
        (rank, i) for i, pair in enumerate(itertools.pairwise(symbols)) if (rank := rank_of(*pair)) is not None
    ]:
        _, i = min(ranked)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        made.add(symbols[i])
    return made


# Rarer words give too little evidence to train an embedding.
MIN_COUNT = 5
# Probe that shows whether a tokenizer keeps upper case and accents.
_CASED = "\u00c9A"


@dataclasses.dataclass(frozen=True)
class Extension:
    """A tokenizer with new pieces.

    Attributes:
      tokenizer: extended tokenizer; old ids come first.
      pieces: new pieces, in id order.
      parts: old ids for each new piece, used to initialize its embedding; [UNK] if it could not be split.
      known: number of requested pieces already in the vocabulary.
      no_continuation: characters that occur inside words but have no ## piece. A word that was known before may become
        [UNK] if it starts with a new piece and continues with such a character.
    """

    tokenizer: HuggingFaceTokenizer
    pieces: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    known: int
    no_continuation: tuple[str, ...]


def wordpiece(tokenizer: Tokenizer) -> HuggingFaceTokenizer:
    """Return the tokenizer, checked to be extensible.

    Raises:
      UserError: it is not WordPiece, or it has a second vocabulary already.
    """
    if isinstance(tokenizer, MixedTokenizer):
        raise UserError("this tokenizer has a second vocabulary already (--mix); extend the model it was made from")
    if isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.description["model"]["type"] == "WordPiece":
        return tokenizer
    kind = "BPE" if isinstance(tokenizer, HuggingFaceTokenizer) else "SentencePiece"
    remedy = "train a tokenizer on the new corpus and pretrain with it instead"
    raise UserError(f"new pieces need a WordPiece tokenizer, this one is {kind}; {remedy}")


def read(path: str) -> list[str]:
    """Read pieces from a text file, one per line, ignoring surrounding white space and empty lines.

    Raises:
      UserError: the file cannot be read, or it is empty.
    """
    lines = [decoded(line, f"--pieces={path}:{number}") for number, line in numbered_lines(path)]
    if pieces := [line.strip() for line in lines if line.strip()]:
        return pieces
    raise UserError(f"--pieces={path} is empty; write a piece a line into it")


def count_words(texts: Iterable[str], tokenizer: HuggingFaceTokenizer) -> collections.Counter:
    """Count words in texts."""
    counts = collections.Counter()
    for text in texts:
        counts.update(tokenizer.words(text))
    return counts


def mine(counts: collections.Counter, tokenizer: HuggingFaceTokenizer, number: int) -> list[str]:
    """Return the words that would save most tokens as single pieces, (pieces - 1) * count, best first.

    A word that was [UNK] counts as two pieces. Words without a letter, and words that occur fewer than MIN_COUNT times,
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
        many = f"{len(savings)} words that the tokenizer splits occur at least {MIN_COUNT} times"
        raise UserError(f"--new-pieces={number} is too many: {many}; ask for at most {len(savings)}")
    return sorted(savings, key=lambda word: (-savings[word], word))[:number]


def tokens(counts: collections.Counter, tokenizer: HuggingFaceTokenizer) -> int:
    """Return the token count for all counted words."""
    return sum(count * len(tokenizer.parts(word)) for word, count in counts.items())


def extend(tokenizer: HuggingFaceTokenizer, pieces: Sequence[str]) -> Extension:
    """Append pieces to the vocabulary; known and repeated pieces are only counted.

    Args:
      tokenizer: WordPiece, see `wordpiece`.
      pieces: whole words, or word continuations after ##, normalized as the tokenizer does.

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
    """Build a tokenizer that splits each word with the first or the second vocabulary.

    Args:
      first, second: WordPiece, see `wordpiece`. The first one's rules for white space, punctuation and case apply.
      share: probability for the second vocabulary.

    Raises:
      UserError: the tokenizers mark pieces inside words differently, or only one of them keeps case.
    """
    if not 0.0 <= share <= 1.0:
        raise UserError(f"--share={share} must be a probability, from 0 to 1")
    description = json.loads(first.model)
    prefix, vocab = description["model"]["continuing_subword_prefix"], description["model"]["vocab"]
    if (other := second.description["model"]["continuing_subword_prefix"]) != prefix:
        raise UserError(f"--mix has pieces with {other!r} and the model {prefix!r}; name another tokenizer")
    if (ours := first.words(_CASED)) != (theirs := second.words(_CASED)):
        differ = f"{_CASED} as {' '.join(theirs)} and the model as {' '.join(ours)}"
        raise UserError(f"--mix reads {differ}; name a tokenizer that treats case and accents as the model does")
    # The first tokenizer's special symbols serve both vocabularies.
    pieces = [second.piece(i) for i in range(second.vocab_size) if i not in second.special_ids]
    new = [piece for piece in pieces if piece and piece not in vocab]
    vocab |= {piece: first.vocab_size + i for i, piece in enumerate(new)}
    tokenizer = MixedTokenizer(mixed.describe(description, second, first.vocab_size, share))
    parts = tuple(_old_parts(first, piece, prefix) for piece in new)
    return Extension(tokenizer, tuple(new), parts, len(pieces) - len(new), ())


def _old_parts(tokenizer: HuggingFaceTokenizer, piece: str, prefix: str) -> tuple[int, ...]:
    """Return a piece's old ids; [UNK] for a continuation with unknown characters."""
    parts = tuple(tokenizer.parts(piece))
    # If no continuation piece matches, the library reads the ## itself as characters.
    return parts if not piece.startswith(prefix) or parts[0] in tokenizer.continuation_ids else (tokenizer.unk_id,)


def _check_found(extended: HuggingFaceTokenizer, pieces: Sequence[str], prefix: str) -> None:
    """Raise UserError for pieces that no text can produce."""
    lost = []
    for piece in pieces:
        # A continuation is tested behind a letter, where it would occur.
        whole = f"a{piece.removeprefix(prefix)}" if piece.startswith(prefix) else piece
        words = extended.words(whole)
        if words != [whole] or len(extended.parts(piece)) != 1 or extended.parts(piece) == [extended.unk_id]:
            as_words = f"is read as {' '.join(map(repr, words))}"
            lost.append(f"{piece!r} {as_words if words != [whole] else 'is too long'}")
    if lost:
        which = f"{len(lost)} of the {len(pieces)} new pieces ({shorten(lost, separator='; ')})"
        raise UserError(f"no text could become {which}; write one word or, after ##, the rest of one, as it is read")


def _without_continuation(tokenizer: HuggingFaceTokenizer, prefix: str) -> tuple[str, ...]:
    """Return the characters inside pieces, after the first, that have no ## piece."""
    pieces = {tokenizer.piece(i) for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
    within = (piece.removeprefix(prefix) if piece.startswith(prefix) else piece[1:] for piece in pieces)
    missing = (c for c in set("".join(within)) if prefix + c not in pieces)
    return tuple(sorted(c for c in missing if tokenizer.words(f"a{c}") == [f"a{c}"]))
