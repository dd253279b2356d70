"""Conversion of our SentencePiece models to a `tokenizer.json` with the same ids.

SentencePiece's steps (normalizer.cc, unigram_model.cc, bpe_model.cc in google/sentencepiece) are expressed in the
tokenizers library. There is no split into words, because SentencePiece scores a sentence as a whole.
"""

import base64
from typing import Any

from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.runtime.errors import UserError

# ModelProto.SentencePiece.Type and TrainerSpec.ModelType of sentencepiece_model.proto.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_UNIGRAM, _BPE, _CHAR = 1, 2, 4
# A text that spells out a byte piece, such as <0x41>, would match the piece. Splitting after the < prevents it.
_BYTE_SPELLED = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


def describe(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """Return the parsed `tokenizer.json`, without a post-processor.

    Raises:
      UserError: the tokenizers library lacks a setting or a kind of piece of the model.
    """
    model = tokenizer.description
    _check(model)
    pieces, kind = model.pieces, model.trainer_spec.model_type
    byte_fallback = any(piece.type == _BYTE for piece in pieces)
    described = _unigram(pieces) if kind == _UNIGRAM else _bpe(pieces, merging=kind == _BPE)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    # Only the start of a text gets a space: text directly after a special symbol continues a word.
    spaces = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "first", "split": False}
    splits = [_BYTE_SPELLED] if byte_fallback and kind == _UNIGRAM else []
    decoded = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always", "split": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": piece.piece, **flags, "special": True}
            for i, piece in enumerate(pieces)
            if piece.type in (_UNKNOWN, _CONTROL)
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(tokenizer)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [spaces, *splits]},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, decoded]},
        "model": described | {"byte_fallback": byte_fallback},
    }


def _check(model) -> None:
    """Raise UserError for settings that `tokenizer.json` cannot express."""
    normalizer, trainer = model.normalizer_spec, model.trainer_spec
    for name, value, known in (
        ("add_dummy_prefix", normalizer.add_dummy_prefix, (True,)),
        ("remove_extra_whitespaces", normalizer.remove_extra_whitespaces, (True,)),
        ("escape_whitespaces", normalizer.escape_whitespaces, (True,)),
        ("treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, (False,)),
        ("model_type", trainer.model_type, (_UNIGRAM, _BPE, _CHAR)),
    ):
        if value not in known:
            raise UserError(
                f"the SentencePiece model has {name}={value}, which tokenizer.json cannot express; train another"
            )
    kinds = (_NORMAL, _UNKNOWN, _CONTROL, _BYTE)
    if odd := [piece.piece for piece in model.pieces if piece.type not in kinds]:
        raise UserError(
            f"the SentencePiece model has user-defined or unused pieces ({odd[0]!r}), which tokenizer.json cannot "
            "express; train another"
        )


def _normalizers(tokenizer: SentencePieceTokenizer) -> list[dict]:
    rules = tokenizer.description.normalizer_spec.precompiled_charsmap
    steps = []
    if tokenizer.normalizer == "nfc" or rules:
        # The library applies the rules to one grapheme at a time, and only to short ones: composing first makes three
        # jamo one character.
        steps.append({"type": "NFC"})
    if rules:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()})
    # The library's Metaspace adds no ▁ to a text that starts with a space or with ▁. SentencePiece always adds one: a
    # leading space already stands for it, and a leading ▁ is doubled here.
    replaced = ((f"[ {WORD_START}]+\\z", ""), (" {2,}", " "), (rf"\A{WORD_START}", 2 * WORD_START))
    return [
        *steps,
        *({"type": "Replace", "pattern": {"Regex": pattern}, "content": content} for pattern, content in replaced),
    ]


def _unigram(pieces) -> dict[str, Any]:
    [unknown] = [i for i, piece in enumerate(pieces) if piece.type == _UNKNOWN]
    return {"type": "Unigram", "unk_id": unknown, "vocab": [[piece.piece, piece.score] for piece in pieces]}


def _bpe(pieces, merging: bool) -> dict[str, Any]:
    """Return a BPE model. Its merges are all ways to split a piece into two pieces, best piece first; `char` has none.

    SentencePiece merges any neighbors that form a piece, so the order in which training found them is not needed.
    """
    ids = {piece.piece: i for i, piece in enumerate(pieces)}
    normal = {piece.piece: piece.score for piece in pieces if piece.type == _NORMAL}
    splits = [(piece[:at], piece[at:]) for piece in normal if merging for at in range(1, len(piece))]
    merges = [(left, right) for left, right in splits if left in normal and right in normal]
    merges.sort(key=lambda pair: (-normal["".join(pair)], ids[pair[0]], ids[pair[1]]))
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": next(piece.piece for piece in pieces if piece.type == _UNKNOWN),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "ignore_merges": False,
        "vocab": ids,
        "merges": [list(pair) for pair in merges],
    }
