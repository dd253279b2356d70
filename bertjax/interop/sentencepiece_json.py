"""A SentencePiece model as a `tokenizer.json` that gives the same ids.

This expresses the steps of SentencePiece (normalizer.cc, unigram_model.cc, bpe_model.cc of google/sentencepiece) in the
tokenizers library. Text is not split into words first, because SentencePiece scores a sentence as a whole.
"""

import base64
from typing import Any

from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.errors import UserError

# ModelProto.SentencePiece.Type and TrainerSpec.ModelType of sentencepiece_model.proto.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_UNIGRAM, _BPE, _CHAR = 1, 2, 4
# The library would match a byte piece that is spelled in a text, so such a spelling is split after the <.
_BYTE_SPELLED = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


def describe(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """Return the parsed `tokenizer.json`, without a post-processor.

    Raises:
      UserError: the model has settings or kinds of pieces that the library does not have.
    """
    model = tokenizer.description
    _check(model)
    pieces, kind = model.pieces, model.trainer_spec.model_type
    byte_fallback = any(piece.type == _BYTE for piece in pieces)
    described = _unigram(pieces) if kind == _UNIGRAM else _bpe(pieces, merging=kind == _BPE)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    # Text after a symbol without a space continues a word, so only the start of a text gets one.
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
    """Raise UserError for settings that `describe` does not render."""
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
        # The library applies rules to one letter with its marks at a time, if that is short; three jamo are too long.
        steps.append({"type": "NFC"})
    if rules:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()})
    # A text that starts with a space, or with the sign for one, gets no other: a space is enough, a sign is doubled.
    replaced = ((f"[ {WORD_START}]+\\z", ""), (" {2,}", " "), (rf"\A{WORD_START}", 2 * WORD_START))
    return [
        *steps,
        *({"type": "Replace", "pattern": {"Regex": pattern}, "content": content} for pattern, content in replaced),
    ]


def _unigram(pieces) -> dict[str, Any]:
    [unknown] = [i for i, piece in enumerate(pieces) if piece.type == _UNKNOWN]
    return {"type": "Unigram", "unk_id": unknown, "vocab": [[piece.piece, piece.score] for piece in pieces]}


def _bpe(pieces, merging: bool) -> dict[str, Any]:
    """Return a BPE model whose merges are all splits of a piece into two, best piece first; `char` has none."""
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
