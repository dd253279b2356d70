"""Hugging Face `tokenizer.json` files, read and written: WordPiece, Unigram, BPE of bytes or with byte fallback."""

import json
from collections.abc import Iterable
from pathlib import Path

from bertjax.data.tokenizer.tokenizers_library import MASKS, HuggingFaceTokenizer, checked
from bertjax.data.tokenizer.unigram import ByteFallbackTokenizer, UnigramTokenizer
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError


def from_file(path: Path) -> HuggingFaceTokenizer:
    """Read a `tokenizer.json`, see `from_json`.

    Raises:
      UserError: the file cannot be read, or see `from_json`.
    """
    refused = f"data.tokenizer.model={str(path)!r}"
    try:
        model = untrusted.read_bytes(path)
    except OSError as error:
        raise UserError(f"{refused} is not a readable tokenizer.json ({error!r}); name another") from None
    return from_json(model, refused)


def from_json(model: bytes, refused: str) -> HuggingFaceTokenizer:
    """Build a tokenizer from a `tokenizer.json`; it gives the same ids as the library.

    Args:
      model: file content.
      refused: how errors name the file.

    Raises:
      UserError: it is unreadable, is another kind of tokenizer, or see `checked`.
    """
    try:
        description = untrusted.parse_json(model)
        kind = description["model"]["type"]
        steps = json.dumps([description[step] for step in ("pre_tokenizer", "decoder")])
        has_fallback = kind == "BPE" and description["model"].get("byte_fallback")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{refused} is not a readable tokenizer.json ({error!r}); name another") from None
    if kind == "Unigram":
        return checked(UnigramTokenizer(model), refused)
    if has_fallback and "ByteLevel" not in steps:
        return checked(ByteFallbackTokenizer(model), refused)
    if kind != "WordPiece" and not (kind == "BPE" and "ByteLevel" in steps):
        remedy = "bertjax reads WordPiece, BPE of bytes or with byte fallback, Unigram, and SentencePiece's .model"
        raise UserError(f"{refused} is another kind of tokenizer ({kind}); {remedy}")
    return checked(HuggingFaceTokenizer(model), refused)


def describe(model: dict, normalizers: list[dict], pre_tokenizer: dict, decoder: dict, symbols: Iterable[str]) -> bytes:
    """Write a `tokenizer.json` with bytes that do not depend on the library version.

    Args:
      model, pre_tokenizer, decoder: in the library's format, each with its `type`.
      normalizers: applied in order.
      symbols: special symbols; all are in `model["vocab"]`.
    """
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    # As in RoBERTa, the space before a mask belongs to the masked word, whose piece starts with it.
    swallowing = MASKS if model["type"] == "BPE" else ()
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": model["vocab"][symbol], "content": symbol, **flags, "lstrip": symbol in swallowing}
            for symbol in symbols
        ],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    return json.dumps(description, ensure_ascii=False).encode()
