"""Vocabulary trimming: remove pieces that a corpus does not use, without changing how its texts are split.

WordPiece takes the longest match, and Unigram the path with the highest score: removing pieces that the corpus never
uses cannot change its texts. BPE also needs the intermediate pieces that its merges produce, so they stay.
"""

import copy
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from bertjax.data.tokenizer.base import Tokenizer
from bertjax.data.tokenizer.layout import template
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.runtime.errors import UserError

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
