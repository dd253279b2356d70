"""Tokenizer interface, how its tokens map back to the original text, and the folder format for saved tokenizers."""

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertjax.data import framing
from bertjax.data.tokenizer_config import LARGEST_VOCABULARY
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, check_format, quoted


def stretches(text: str) -> tuple[list[str], list[str]]:
    """Split a text into the shortest parts that NFC normalizes independently.

    A base character and everything that composes with it (accents, Hangul vowels) share a part.

    Returns:
      The parts, and the normalized parts.
    """
    # Nearly all text is NFC already, and each character is then its own part.
    if unicodedata.is_normalized("NFC", text):
        return list(text), list(text)
    parts, composed, start = [], [], 0
    for index, character in enumerate(text + "\n"):  # the line end closes the last part
        # A combining character joins its predecessor. They are not normalized one by one: a text may have thousands.
        if index == start or unicodedata.combining(character):
            continue
        part, alone = (unicodedata.normalize("NFC", each) for each in (text[start:index], character))
        # So does one that changes how its predecessor normalizes, such as the vowel of a Hangul syllable.
        if index < len(text) and unicodedata.normalize("NFC", text[start : index + 1]) != part + alone:
            continue
        parts.append(text[start:index])
        composed.append(part)
        start = index
    return parts, composed


def whole(spans: np.ndarray, parts: list[str], seen: list[str]) -> np.ndarray:
    """Convert spans in the normalized text to spans in the original text, extended to whole parts.

    Args:
      spans: spans in `"".join(seen)`, int64 [n, 2].
      parts: the original text's parts, see `stretches`.
      seen: the same parts as the tokenizer library received them.
    """
    bounds = np.cumsum([0, *map(len, parts)])
    lengths = [len(part) for part in seen]
    starts, stops = np.repeat(bounds[:-1], lengths), np.repeat(bounds[1:], lengths)
    starts_at = np.append(starts, bounds[-1])[spans[:, 0]]
    ends_at = np.where(spans[:, 1] > spans[:, 0], np.append(0, stops)[spans[:, 1]], starts_at)
    return np.stack([starts_at, ends_at], axis=1)


def trimmed(spans: np.ndarray, text: str) -> np.ndarray:
    """Strip white space from both ends of each span; an all-space span becomes empty, at its end."""
    for row, (start, stop) in enumerate(spans.tolist()):
        while start < stop and text[start].isspace():
            start += 1
        while start < stop and text[stop - 1].isspace():
            stop -= 1
        spans[row] = start, stop
    return spans


FORMAT_VERSION = 2
# Every tokenizer that bertjax trains starts with these, in id order.
SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[SEP]", "[CLS]", "[MASK]")
RECORD_FILE = "bertjax_tokenizer.json"
_MODEL_FILES = ("tokenizer.model", "tokenizer.json", "unigram.json", "byte_fallback.json", "mixed.json")


def _id_of(symbol: str) -> "functools.cached_property[int]":
    """Return a property of a tokenizer: the id of one of `SPECIALS`."""
    return functools.cached_property(lambda tokenizer: tokenizer._special_id(symbol))


@dataclasses.dataclass(frozen=True)
class Tokenizer(abc.ABC):
    """Text to token ids and back. Picklable.

    A special symbol spelled out in a text, such as "[SEP]", is ordinary text and never becomes the symbol's id; only
    `encode_masked` and `rows` read [MASK] as the symbol.

    Attributes:
      model: the library's serialized tokenizer.
      MODEL_FILE: file name for `model` in a saved folder.
    """

    model: bytes
    MODEL_FILE: ClassVar[str]

    def __reduce__(self):
        return type(self), (self.model, *self._choices().values())  # the receiver rebuilds the library object

    pad_id, unk_id = _id_of("[PAD]"), _id_of("[UNK]")
    sep_id, cls_id, mask_id = _id_of("[SEP]"), _id_of("[CLS]"), _id_of("[MASK]")

    # Whether [CLS] comes last in an example, as in XLNet, instead of first.
    cls_last: ClassVar[Any] = False
    # Number of [SEP] between the two texts in a pair: 2 in RoBERTa, 1 in others.
    pair_separators: ClassVar[Any] = 1
    # Longest word in characters; longer ones become [UNK]. 0 means no limit.
    longest_word: ClassVar[Any] = 0

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, special symbols included."""

    @property
    @abc.abstractmethod
    def special_ids(self) -> frozenset[int]:
        """Ids without text of their own: control symbols and [UNK]."""

    @property
    @abc.abstractmethod
    def byte_ids(self) -> frozenset[int]:
        """Ids for the 256 single-byte pieces; empty if the tokenizer has none."""

    @property
    @abc.abstractmethod
    def continuation_ids(self) -> frozenset[int]:
        """Ids that continue the previous token's word; used by whole-word masking."""

    @abc.abstractmethod
    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Encode each sentence, without [CLS] and [SEP]."""

    def encode_inside(self, texts: list[str], follows_space: Sequence[bool] | None = None) -> list[list[int]]:
        """Encode words or phrases as they would be encoded inside a longer text, without [CLS] and [SEP].

        Encoded alone, a word looks like the start of a text: a published byte-level BPE then uses word-end pieces
        (`went`, not ` went`), and SentencePiece puts a space before a character that continues a sentence without
        spaces.

        Args:
          texts: words or phrases; a blank one has no tokens.
          follows_space: whether each text comes after a space or directly after a letter; default True for all.
        """
        spaced = [True] * len(texts) if follows_space is None else list(follows_space)
        after_space = iter(self._encode_after_space([text for text, is_spaced in zip(texts, spaced) if is_spaced]))
        return [
            next(after_space) if is_spaced else self._encode_continued(text) if text.strip() else []
            for text, is_spaced in zip(texts, spaced, strict=True)
        ]

    def _encode_after_space(self, texts: list[str]) -> list[list[int]]:
        """Encode texts that follow a space."""
        return self.encode(texts)

    def encode_masked(self, texts: list[str]) -> list[list[int]]:
        """Encode like `encode`, but read `[MASK]` (or the symbol's own spelling) as the symbol.

        The surrounding text is encoded as if a piece there had been masked: a space before the symbol belongs to the
        masked piece, unless the tokenizer of somebody else declares that it stays (`_spaces_before_mask`), and text
        that follows without a space continues its word.
        """
        # Only texts that spell the symbol are encoded again, part by part.
        symbol, encoded = self.mask_symbol, self.encode(texts)
        for row, text in enumerate(texts):
            first, *others = symbol.split(text)
            if others:
                after = ([self.mask_id, *self._after_mask(part)] for part in others)
                parts = [self._before_mask(first), *after]
                spaces = [*map(self._spaces_before_mask, (first, *others[:-1])), []]
                encoded[row] = list(itertools.chain(*itertools.chain(*zip(parts, spaces, strict=True))))
        return encoded

    def _spaces_before_mask(self, text: str) -> list[int]:
        """Return the tokens of the spaces between a text and the [MASK] that follows it."""
        return []

    @property
    def mask_symbol(self) -> re.Pattern[str]:
        """Pattern for the spellings that `encode_masked` reads as [MASK]."""
        return re.compile("|".join(sorted(map(re.escape, {"[MASK]", self.piece(self.mask_id)}))))

    def _before_mask(self, text: str) -> list[int]:
        text = text.strip()
        return self.encode([text])[0] if text else []

    def _after_mask(self, text: str) -> list[int]:
        if not text.strip():
            return []
        if text[0].isspace():
            return self._encode_after_space([text.strip()])[0]
        return self._encode_continued(text.rstrip())

    @abc.abstractmethod
    def _encode_continued(self, text: str) -> list[int]:
        """Encode a stripped text that directly follows another piece."""

    def encode_flat(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode a corpus's sentences without a Python object for every token.

        Sentences are encoded as if after a space, because in a corpus they follow others: published byte-level BPE
        would read the first word in a text as the end of a word.

        Returns:
          All ids, concatenated, int32 [n], and the number of ids per sentence, int64 [S].
        """
        encoded = self._encode_after_space(sentences)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.fromiter(itertools.chain.from_iterable(encoded), np.int32, lengths.sum()), lengths

    def encode_with_offsets(self, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
        """Encode like `encode`, and also return the characters that each token covers.

        Returns:
          (ids, spans) per text; spans int64 [n, 2]: a token covers text[start:stop] in the original text, before any
          normalization. White space at the ends is excluded; a token that is only a space has an empty span. Tokens
          that share a character, such as its bytes, all cover it.
        """
        aligned = zip(texts, self._aligned(texts) if texts else [], strict=True)  # SentencePiece 0.2.2 needs a text
        return [(ids, trimmed(spans, text)) for text, (ids, spans) in aligned]

    @abc.abstractmethod
    def _aligned(self, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
        """Do `encode_with_offsets`, but keep the white space that the library includes in a token."""

    @abc.abstractmethod
    def piece(self, token_id: int) -> str:
        """Return a token as readable text, with its mark for word start or continuation."""

    @abc.abstractmethod
    def _text(self, ids: list[int]) -> str:
        """Decode ids to readable text, dropping special symbols other than [UNK]."""

    @abc.abstractmethod
    def _special_id(self, symbol: str) -> int:
        """Look up the id for one of `SPECIALS`."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the model and the other fields."""
        choices = "".join(f"{value}\0" for value in self._choices().values())
        return hashlib.sha256(choices.encode() + self.model).hexdigest()

    def rows(self, texts: list[str], seq_len: int) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts as rows `[CLS] ... [SEP]`, padded with [PAD] and truncated to `seq_len`.

        Rows are `... [SEP] [CLS]` if `cls_last`. `[MASK]` in a text is the symbol, as in `encode_masked`.

        Returns:
          tokens_BT and examples_BT, int32 [B, T], as an encoder takes them: `examples_BT` is 1 at a text's tokens and 0
          at padding. The ids alone do not tell: some tokenizers, as of EuroBERT, have one id for [SEP] and [PAD].
        """
        segments, _, _ = framing.truncate(self.encode_masked(texts), None, seq_len)
        frame, text = framing.frame(segments)
        tokens_BT = np.full((len(texts), seq_len), self.pad_id, np.int32)
        is_token_BT = np.arange(seq_len) < np.diff(frame.offsets)[:, None]
        tokens = frame.tokens(text, self.cls_id, self.sep_id)
        tokens_BT[is_token_BT] = tokens[framing.with_cls_last(frame.offsets)] if self.cls_last else tokens
        return tokens_BT, is_token_BT.astype(np.int32)

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """Decode ids to readable text; special symbols are dropped, or spelled out between spaces."""
        ids = [int(i) for i in ids]
        if not keep_special:
            return self._text(ids)
        runs = itertools.groupby(ids, key=self.special_ids.__contains__)
        return " ".join(" ".join(map(self.piece, run)) if special else self._text(list(run)) for special, run in runs)

    def save(self, folder: Path) -> None:
        """Write `MODEL_FILE` and `bertjax_tokenizer.json` into an existing folder, deleting other model files there."""
        record = {
            "format_version": FORMAT_VERSION,
            "model_file": self.MODEL_FILE,
            **self._choices(),
            "fingerprint": self.fingerprint,
        }
        (folder / self.MODEL_FILE).write_bytes(self.model)
        (folder / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        for name in set(_MODEL_FILES) - {self.MODEL_FILE}:
            (folder / name).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise ValueError unless the library reads the model, all special symbols exist, and its size is sane."""
        symbols = {self.pad_id, self.unk_id, self.sep_id, self.cls_id, self.mask_id}
        # [PAD] stands for the [UNK] that Llama's tokenizers do not have, and some of them pad with the end of a text.
        shared = 1 + (self.pad_id == self.sep_id) if self.unk_id == self.pad_id else 0
        if len(symbols) < 5 - shared or max(symbols) >= self.vocab_size:
            raise ValueError("two special symbols have one id")
        if self.vocab_size > LARGEST_VOCABULARY:
            raise ValueError(f"its largest id is {self.vocab_size - 1:,}, and the limit is {LARGEST_VOCABULARY - 1:,}")

    def _choices(self) -> dict[str, str]:
        """Return all fields except the model, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "model"}


def load(folder: Path, classes: Iterable[type[Tokenizer]]) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Args:
      classes: candidates; the folder's model file determines which one is used.

    Raises:
      UserError: files are missing or altered, or have another format.
    """
    class_of = {cls.MODEL_FILE: cls for cls in classes}
    try:
        record = untrusted.read_json(folder / RECORD_FILE)
        if type(version := record["format_version"]) is not int:
            raise TypeError(f"format_version={quoted(version)} is not an integer")
        check_format(f"the tokenizer in {folder}", version, FORMAT_VERSION)
        name, fingerprint = record["model_file"], record["fingerprint"]
        cls = class_of[name]
        choices = [field.name for field in dataclasses.fields(cls) if field.name != "model"]
        if odd := [choice for choice in choices if not isinstance(record[choice], str)]:
            raise TypeError(f"{odd[0]}={quoted(record[odd[0]])} is not text")
        tokenizer = cls(untrusted.read_bytes(folder / name), **{choice: record[choice] for choice in choices})
        if tokenizer.fingerprint != fingerprint:
            raise UserError(f"{folder / name} was altered after it was written; restore the folder")
        tokenizer.check()  # a fingerprint shows damage, but a foreign folder may be wrong from the start
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} holds no readable tokenizer ({quoted(error)}); restore the folder") from None
    return tokenizer
