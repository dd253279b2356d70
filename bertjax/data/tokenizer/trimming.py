"""A tokenizer without the pieces that a corpus does not use; texts of the corpus are split as before.

WordPiece takes the longest piece, and Unigram the path with the highest score: if pieces are removed that no text of
the corpus uses, its texts cannot change. BPE also needs the pieces that its merges make on the way, so they stay.
"""

import copy
import itertools
import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from bertjax.data.tokenizer.base import Tokenizer
from bertjax.data.tokenizer.layout import template
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.errors import UserError

# Steps of a `tokenizer.json` that hold ids, and that bertjax does not use.
_STEPS = ("truncation", "padding", "post_processor")
# Values of SentencePiece's protocol buffers.
_NORMAL, _BPE = 1, 2


class Trimmed(NamedTuple):
    """A smaller tokenizer.

    Attributes:
      tokenizer: the tokenizer.
      kept: int64 [V], the former id of each id. The order of ids is the same as before.
    """

    tokenizer: Tokenizer
    kept: np.ndarray


def trim(tokenizer: Tokenizer, used: Iterable[int]) -> Trimmed:
    """Return a tokenizer with the used pieces, the special symbols, the bytes and the single characters.

    Args:
      tokenizer: of any kind with one vocabulary.
      used: ids that the texts of a corpus have.

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
    kept |= {i for i, piece in enumerate(description.pieces) if piece.type != _NORMAL}
    kept |= {i for piece, i in pieces.items() if _is_character(piece, WORD_START)}
    scores = {i: piece.score for i, piece in enumerate(description.pieces) if piece.type == _NORMAL}
    if description.trainer_spec.model_type == _BPE:
        ranks = {piece: -scores[i] for piece, i in pieces.items() if i in scores}
        names = [description.pieces[i].piece for i in kept & scores.keys()]
        kept |= {pieces[made] for name in names for made in _merged(name, lambda a, b: ranks.get(a + b))}
    elif scores:
        kept.add(min(scores, key=scores.get))  # the score of an unknown character follows from the lowest one
    ids = np.array(sorted(kept), np.int64)
    remaining = [description.pieces[i] for i in ids]
    del description.pieces[:]
    description.pieces.extend(remaining)
    description.trainer_spec.vocab_size = len(ids)
    return Trimmed(SentencePieceTokenizer(description.SerializeToString(), tokenizer.normalizer), ids)


def _trimmed_json(tokenizer: Tokenizer, kept: set[int]) -> Trimmed:
    """Return the same of a tokenizer with a `tokenizer.json`."""
    description = copy.deepcopy(tokenizer.description)
    model = description["model"]
    kept |= {token["id"] for token in description.get("added_tokens") or ()}
    if model["type"] == "Unigram":
        scores = {i: score for i, (_, score) in enumerate(model["vocab"])}
        kept |= {i for i, (piece, _) in enumerate(model["vocab"]) if _is_character(piece, WORD_START)}
        kept.add(min(scores, key=scores.get))  # see `_trimmed_sentencepiece`
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
        left = model["vocab"].keys()
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
    """Return all pieces that BPE makes while it merges the characters of a piece, the lowest rank first."""
    symbols, made = list(piece), set()
    while ranked := [
        (rank, i) for i, pair in enumerate(itertools.pairwise(symbols)) if (rank := rank_of(*pair)) is not None
    ]:
        _, i = min(ranked)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        made.add(symbols[i])
    return made
