"""Tokenizers with SentencePiece's sign for a space in a `tokenizer.json`: Unigram, and BPE that falls back to bytes.

Unigram was published for ALBERT, XLNet, XLM-R and CamemBERT.

Their vocabularies were trained with SentencePiece (Kudo 2018, arXiv 1804.10959), but ids follow the tokenizers library,
which first splits at spaces and adds its own steps, such as removing accents. `bertjax.data.tokenizer.sentencepiece`
trains such models, and runs them as SentencePiece does.
"""

import functools
import itertools
import re
from typing import Any

from bertjax.data.tokenizer.sentencepiece import WORD_START, starts_word
from bertjax.data.tokenizer.tokenizers_library import EQUIVALENTS, HuggingFaceTokenizer
from bertjax.runtime.errors import quoted


class _SpaceSigns(HuggingFaceTokenizer):
    """Base class: a space is the sign `▁` at the start of a piece."""

    @functools.cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids for the 256 byte pieces; fewer if the vocabulary lacks some, and none without byte fallback."""
        pieces = (f"<0x{byte:02X}>" for byte in range(256) if self.description["model"].get("byte_fallback"))
        return frozenset(self._ids[piece] for piece in pieces if piece in self._ids)

    @functools.cached_property
    def continuation_ids(self) -> frozenset[int]:
        """Ids for pieces that continue a word, as in `SentencePieceTokenizer`."""
        continuing = frozenset(i for piece, i in self._ids.items() if not starts_word(piece))
        return continuing - self.special_ids - self._whole_words

    def piece(self, token_id: int) -> str:
        return self._processor.id_to_token(int(token_id)) or ""


class UnigramTokenizer(_SpaceSigns):
    """A Unigram tokenizer: the segmentation with the highest total score.

    If the library's vocabulary contains a special symbol, it would match it when a text spells it out. Here such a
    spelling is split after its first character. No other text is changed.
    """

    MODEL_FILE = "unigram.json"

    def library_description(self) -> dict[str, Any]:
        description = super().library_description()
        pieces = [piece for piece, _ in description["model"]["vocab"]]
        unknown = pieces[description["model"]["unk_id"]]
        names = {unknown, *self.text_symbols, *EQUIVALENTS, *itertools.chain(*EQUIVALENTS.values())}
        whole = {token["content"] for token in description["added_tokens"] if not token["special"]}
        symbols = sorted(names.intersection(pieces) - whole)
        spelled = "|".join(f"{re.escape(s[0])}(?={re.escape(s[1:])})" for s in symbols if len(s) > 1)
        own = description.get("pre_tokenizer")
        split = {"type": "Split", "pattern": {"Regex": spelled}, "behavior": "MergedWithPrevious", "invert": False}
        steps = {"type": "Sequence", "pretokenizers": [*([own] if own else []), split]}
        return description | {"pre_tokenizer": steps}

    def _check_model(self, model: dict[str, Any]) -> None:
        if model["type"] != "Unigram":
            raise ValueError(f"its kind is {quoted(model['type'])}, and its file is that of Unigram")

    @functools.cached_property
    def _missing_space(self) -> str:
        """A space, unless the tokenizer puts one before each text by itself, as all published ones do."""
        return "" if "".join(self.words("a")).startswith(WORD_START) else " "

    def _encode_continued(self, text: str) -> list[int]:
        letter = "a"  # placed before the text, it absorbs the space sign
        # Words are looked up one by one, because encoding the rest alone would put a space sign in front again.
        first, *others = self.words(letter + text)
        continued = first[first.index(letter) + 1 :]
        return [token_id for word in (continued, *others) if word for token_id in self.parts(word)]


class ByteFallbackTokenizer(_SpaceSigns):
    """A BPE tokenizer whose characters without a piece become byte pieces, such as `<0xEA>`: Gemma 2's and mmBERT's.

    No space is put before a text. So a word at the start of a text has other pieces than elsewhere, as in byte-level
    BPE.
    """

    MODEL_FILE = "byte_fallback.json"
    is_byte_level = False
    _missing_space = " "

    def _check_model(self, model: dict[str, Any]) -> None:
        if model["type"] != "BPE" or not model.get("byte_fallback"):
            raise ValueError(f"its kind is {quoted(model['type'])}, and its file is that of BPE with byte fallback")
        if (unknown := model.get("unk_token")) not in model["vocab"]:
            raise ValueError(f"its unk_token={quoted(unknown)} is not a piece of its vocabulary")
        if "".join(self.words("a")).startswith(WORD_START):
            raise ValueError("it puts a space before each text, as Llama's does, and bertjax reads such BPE without it")

    def _encode_continued(self, text: str) -> list[int]:
        return self.encode([text])[0]
