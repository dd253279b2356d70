"""BPE over characters that falls back to bytes, in a `tokenizer.json`: Gemma 2's, with which mmBERT was trained.

A space is the sign `▁` at the start of a piece, as in SentencePiece, but no space is put before a text. So a word at
the start of a text has other pieces than elsewhere, as in byte-level BPE.
"""

import functools
from typing import Any

from bertjax.data.tokenizer.sentencepiece import WORD_START, starts_word
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.runtime.errors import quoted


class ByteFallbackTokenizer(HuggingFaceTokenizer):
    """A BPE tokenizer whose characters without a piece become byte pieces, such as `<0xEA>`."""

    MODEL_FILE = "byte_fallback.json"
    is_byte_level = False

    def _check_model(self, model: dict[str, Any]) -> None:
        if model["type"] != "BPE" or not model.get("byte_fallback"):
            raise ValueError(f"its kind is {quoted(model['type'])}, and its file is that of BPE with byte fallback")
        if (unknown := model.get("unk_token")) not in model["vocab"]:
            raise ValueError(f"its unk_token={quoted(unknown)} is not a piece of its vocabulary")
        if "".join(self.words("a")).startswith(WORD_START):
            raise ValueError("it puts a space before each text, as Llama's does, and bertjax reads such BPE without it")

    @functools.cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids for the 256 byte pieces; fewer if the vocabulary lacks some."""
        pieces = (f"<0x{byte:02X}>" for byte in range(256))
        return frozenset(self._ids[piece] for piece in pieces if piece in self._ids)

    @functools.cached_property
    def continuation_ids(self) -> frozenset[int]:
        """Ids for pieces that continue a word, as in `SentencePieceTokenizer`."""
        continuing = frozenset(i for piece, i in self._ids.items() if not starts_word(piece))
        return continuing - self.special_ids - self._whole_words

    def _encode_after_space(self, texts: list[str]) -> list[list[int]]:
        return self.encode([f" {text}" if text else "" for text in texts])

    def _encode_continued(self, text: str) -> list[int]:
        return self.encode([text])[0]

    def piece(self, token_id: int) -> str:
        return self._processor.id_to_token(int(token_id)) or ""

    def _text(self, ids: list[int]) -> str:
        return super()._text(ids).removeprefix(" ")
