"""SentencePiece models as a `tokenizer.json` with the same ids: our own, and those of published checkpoints.

SentencePiece's steps (normalizer.cc, unigram_model.cc, bpe_model.cc in google/sentencepiece) are expressed in the
tokenizers library. There is no split into words, because SentencePiece scores a sentence as a whole.

Published models become the file that transformers makes of them (transformers 4.57, convert_slow_tokenizer.py:
`AlbertConverter`, `XLNetConverter`, `XLMRobertaConverter`, `CamembertConverter` and `DebertaV2Converter`). Checkpoints
from before `tokenizer.json` have only `spiece.model`, `sentencepiece.bpe.model` or `spm.model`.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.data.tokenizer.layout import template
from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import MASKS
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError

# ModelProto.SentencePiece.Type and TrainerSpec.ModelType of sentencepiece_model.proto.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_UNIGRAM, _BPE, _CHAR = 1, 2, 4
# A text that spells out a byte piece, such as <0x41>, would match the piece. Splitting after the < prevents it.
_BYTE_SPELLED = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
# The start of each file, and the flags of its special symbols.
_START = {"version": "1.0", "truncation": None, "padding": None}
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


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
    # Only the start of a text gets a space: text directly after a special symbol continues a word.
    spaces = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "first", "split": False}
    splits = [_BYTE_SPELLED] if byte_fallback and kind == _UNIGRAM else []
    decoded = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always", "split": False}
    return {
        **_START,
        "added_tokens": [
            {"id": i, "content": piece.piece, **_FLAGS, "special": True}
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


def _rules(model) -> list[dict]:
    """Return the step with a model's own rules, if it has some."""
    rules = model.normalizer_spec.precompiled_charsmap
    return [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()}] if rules else []


def _replace(pattern: str, content: str, kind: str = "Regex") -> dict:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _normalizers(tokenizer: SentencePieceTokenizer) -> list[dict]:
    rules = _rules(tokenizer.description)
    # The library applies the rules to one grapheme at a time, and only to short ones: composing first makes three jamo
    # one character.
    composed = [{"type": "NFC"}] if tokenizer.normalizer == "nfc" or rules else []
    # The library's Metaspace adds no ▁ to a text that starts with a space or with ▁. SentencePiece always adds one: a
    # leading space already stands for it, and a leading ▁ is doubled here.
    replaced = ((f"[ {WORD_START}]+\\z", ""), (" {2,}", " "), (rf"\A{WORD_START}", 2 * WORD_START))
    return [*composed, *rules, *(_replace(pattern, content) for pattern, content in replaced)]


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


SPIECE, BPE, SPM = "spiece.model", "sentencepiece.bpe.model", "spm.model"  # all of them are Unigram
_METASPACE = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always", "split": True}
_LOWERCASE_DEFAULT = {"albert": True, "xlnet": False}
_OWN_SYMBOLS = {
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "xlnet": ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"),
    "xlm-roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "deberta-v2": ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
    "camembert": ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>"),
}
_FAIRSEQ_UNKNOWN = 3

Piece = tuple[str, float]


def describe_published(path: Path, family: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed `tokenizer.json`; only XLNet's has a template, with <cls> at the end.

    Args:
      path: the SentencePiece model.
      family: family whose order of ids and symbols the tokenizer class has, by its `model_type`.
      settings: content of `tokenizer_config.json`.

    Raises:
      UserError: the model is not Unigram, or bertjax does not know the family's order of ids.
      OSError, ValueError: the file cannot be read.
    """
    if family not in _OWN_SYMBOLS:
        known = ", ".join(_OWN_SYMBOLS)
        raise UserError(f"{path} belongs to a model_type={family!r}; bertjax reads it for {known}")
    model = SentencePieceTokenizer(untrusted.read_bytes(path), "model").description
    if (kind := model.trainer_spec.model_type) != _UNIGRAM:
        raise UserError(f"{path} has model_type={kind}, and {family} is published with {_UNIGRAM} (Unigram)")
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    vocab, unknown = _vocabulary(pieces, family, model.trainer_spec.unk_id)
    ids = {piece: i for i, (piece, _) in enumerate(vocab)}
    bounds = [(symbol, ids[symbol]) for symbol in ("<cls>", "<sep>") if symbol in ids]
    special = {piece.piece: True for piece in model.pieces if piece.type == _CONTROL and piece.piece in ids}
    # SentencePiece never splits user-defined pieces. transformers gets the same from non-special added tokens.
    whole = {piece.piece: False for piece in model.pieces if piece.type == _USER_DEFINED}
    added = whole | special | {symbol: True for symbol in _OWN_SYMBOLS[family] if symbol in ids}
    return {
        **_START,
        "added_tokens": [
            {"id": ids[symbol], "content": symbol, **_FLAGS, "lstrip": symbol in MASKS, "special": is_special}
            for symbol, is_special in sorted(added.items(), key=lambda item: ids[item[0]])
        ],
        "normalizer": {"type": "Sequence", "normalizers": _published_normalizers(model, family, settings)},
        "pre_tokenizer": _METASPACE,
        "post_processor": template(*bounds, segment=1, cls_last=True)
        if family == "xlnet" and len(bounds) == 2
        else None,
        "decoder": _METASPACE,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": False},
    }


def _vocabulary(pieces: list[Piece], family: str, unknown: int) -> tuple[list[Piece], int]:
    """Return (piece, score) in order of ids, and the unknown piece's id.

    XLM-R and CamemBERT were trained in fairseq, which puts its own symbols before SentencePiece's.
    """
    # SentencePiece's own first pieces (<unk>, <s>, </s>) are dropped: fairseq's come in another order.
    symbols = [(symbol, 0.0) for symbol in _OWN_SYMBOLS[family][: _FAIRSEQ_UNKNOWN + 1]]
    if family == "xlm-roberta":
        return [*symbols, *pieces[3:], ("<mask>", 0.0)], _FAIRSEQ_UNKNOWN
    if family == "camembert":
        return [*symbols, ("<unk>NOTUSED", -100.0), *pieces[1:], ("<mask>", 0.0)], _FAIRSEQ_UNKNOWN
    if family == "deberta-v2":
        lacking = [] if "[MASK]" in dict(pieces) else [("[MASK]", 0.0)]
        return [*pieces, *lacking], unknown
    # The published code of ALBERT and XLNet splits "9," into "9" and ",", so such pieces get a hopeless score.
    hopeless = {piece for piece, _ in pieces if piece[-1:] == "," and piece[-2:-1].isdigit()}
    return [(piece, score - 100 if piece in hopeless else score) for piece, score in pieces], unknown


def _published_normalizers(model, family: str, settings: Mapping[str, Any]) -> list[dict]:
    rules, blanks = _rules(model), " {2,}"
    if family == "deberta-v2":
        first = [{"type": "Lowercase"}] if settings.get("do_lower_case") else []
        strip = {"type": "Strip", "strip_left": True, "strip_right": True}
        return [*first, strip, *rules, _replace(blanks, " ")]
    if family not in _LOWERCASE_DEFAULT:
        return [*rules, {"type": "Strip", "strip_left": False, "strip_right": True}, _replace(blanks, WORD_START)]
    first = [_replace(quotes, '"', kind="String") for quotes in ("``", "''")]
    if not settings.get("keep_accents", False):
        first += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if settings.get("do_lower_case", _LOWERCASE_DEFAULT[family]):
        first.append({"type": "Lowercase"})
    return [*first, *rules, _replace(blanks, " ")]
