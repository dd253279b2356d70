"""The interface of every tokenizer, and the folder in which it is saved."""

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax import untrusted
from bertjax.data import framing
from bertjax.data.tokenizer import alignment
from bertjax.errors import UserError, check_format, quoted

FORMAT_VERSION = 2
# In the order of their ids in every tokenizer that bertjax trains.
SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[SEP]", "[CLS]", "[MASK]")
RECORD_FILE = "bertjax_tokenizer.json"
# No vocabulary is larger, and tables over all ids are made of it.
LARGEST_VOCABULARY = 2**24
_MODEL_FILES = ("tokenizer.model", "tokenizer.json", "unigram.json", "mixed.json")


@dataclasses.dataclass(frozen=True)
class Tokenizer(abc.ABC):
    """Text to token ids and back.

    The spelling of one of `SPECIALS` in a text is ordinary text and never becomes its id; only `encode_masked` and
    `rows` read [MASK] as the symbol. Picklable.

    Attributes:
      model: the serialized tokenizer of the library.
      MODEL_FILE: name of the file that holds `model` in a saved folder.
    """

    model: bytes
    MODEL_FILE: ClassVar[str]

    def __reduce__(self):
        return type(self), (self.model, *self._choices().values())  # the library's object is built again

    @functools.cached_property
    def pad_id(self) -> int:
        return self._special_id("[PAD]")

    @functools.cached_property
    def unk_id(self) -> int:
        return self._special_id("[UNK]")

    @functools.cached_property
    def sep_id(self) -> int:
        return self._special_id("[SEP]")

    @functools.cached_property
    def cls_id(self) -> int:
        return self._special_id("[CLS]")

    @functools.cached_property
    def mask_id(self) -> int:
        return self._special_id("[MASK]")

    @property
    def cls_last(self) -> bool:
        """Whether [CLS] is the last token of an example, as in XLNet's, and not the first one."""
        return False

    @property
    def pair_separators(self) -> int:
        """Number of [SEP] between the two texts of a pair: 2 in RoBERTa's, 1 in others."""
        return 1

    @property
    def longest_word(self) -> int:
        """The most characters of a word; a longer one is [UNK]. 0 without a limit."""
        return 0

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, special symbols included."""

    @property
    @abc.abstractmethod
    def special_ids(self) -> frozenset[int]:
        """Ids that no text encodes to: the control symbols and [UNK]."""

    @property
    @abc.abstractmethod
    def byte_ids(self) -> frozenset[int]:
        """Ids of the 256 pieces that are one byte each; empty if the tokenizer has none."""

    @property
    @abc.abstractmethod
    def continuation_ids(self) -> frozenset[int]:
        """Ids that continue the word of the previous token; whole-word masking uses them."""

    @abc.abstractmethod
    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Return the token ids of each sentence, without [CLS] and [SEP]."""

    def encode_inside(self, texts: list[str], follows_space: Sequence[bool] | None = None) -> list[list[int]]:
        """Return the token ids of words or phrases as they are inside a longer text, without [CLS] and [SEP].

        A text that is encoded alone is the start of a text for the tokenizer: a published byte-level BPE then has the
        pieces of the end of a word (`went` in place of ` went`), and SentencePiece puts a space before a character that
        continues a sentence without spaces.

        Args:
          texts: the words; a blank one has no tokens.
          follows_space: whether a space precedes each text, and not a letter; True for all by default.
        """
        spaced = [True] * len(texts) if follows_space is None else list(follows_space)
        after_space = iter(self._encode_after_space([text for text, is_spaced in zip(texts, spaced) if is_spaced]))
        return [
            next(after_space) if is_spaced else self._encode_continued(text) if text.strip() else []
            for text, is_spaced in zip(texts, spaced, strict=True)
        ]

    def _encode_after_space(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts that follow a space."""
        return self.encode(texts)

    def encode_masked(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text as `encode`, but `[MASK]` (or the symbol's own spelling) is the symbol.

        The text around it is encoded as if a piece there had been masked: a space before it belongs to the piece, and
        text that follows without a space continues its word.
        """
        symbol, encoded = self.mask_symbol, self.encode(texts)
        for row, text in enumerate(texts):
            first, *others = symbol.split(text)
            if others:
                after = ([self.mask_id, *self._after_mask(part)] for part in others)
                encoded[row] = list(itertools.chain(self._before_mask(first), *after))
        return encoded

    @property
    def mask_symbol(self) -> re.Pattern[str]:
        """A pattern for what `encode_masked` reads as [MASK]."""
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
        """Return the token ids of a stripped text that directly follows another piece."""

    def encode_flat(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences of a corpus, without a Python object for every token.

        The ids are those of `encode` for the sentence after a space: a published byte-level BPE reads the first word of
        a text as the end of a word, and a sentence of a corpus follows others.

        Returns:
          The concatenated ids of all sentences, int32 [n], and the number of ids of each sentence, int64 [S].
        """
        encoded = self._encode_after_space(sentences)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.fromiter(itertools.chain.from_iterable(encoded), np.int32, lengths.sum()), lengths

    def encode_with_offsets(self, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
        """Encode like `encode`, and return the characters that each token covers.

        Returns:
          (ids, spans) of each text; spans int64 [n, 2]: a token covers text[start:stop] of the original text, before
          any normalization. White space at the edges is excluded; a token that is only a space has an empty span.
          Tokens that share a character, such as its bytes, all cover it.
        """
        aligned = zip(texts, self._aligned(texts), strict=True)
        return [(ids, alignment.trimmed(spans, text)) for text, (ids, spans) in aligned]

    @abc.abstractmethod
    def _aligned(self, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
        """Return `encode_with_offsets` with the white space that the library includes in a token."""

    @abc.abstractmethod
    def piece(self, token_id: int) -> str:
        """Return one token as readable text, with its mark for the start or the continuation of a word."""

    @abc.abstractmethod
    def _text(self, ids: list[int]) -> str:
        """Return the readable text of ids; special symbols other than [UNK] are dropped."""

    @abc.abstractmethod
    def _special_id(self, symbol: str) -> int:
        """Return the id of one of `SPECIALS`."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the model and of the other fields."""
        choices = "".join(f"{value}\0" for value in self._choices().values())
        return hashlib.sha256(choices.encode() + self.model).hexdigest()

    def rows(self, texts: list[str], seq_len: int) -> np.ndarray:
        """Return texts as rows `[CLS] ... [SEP]`, padded with [PAD] and truncated to `seq_len`; int32 [B, T].

        Rows are `... [SEP] [CLS]` if `cls_last`.

        `[MASK]` in a text is the symbol, as in `encode_masked`.
        """
        segments, _, _ = framing.truncate(self.encode_masked(texts), None, seq_len)
        frame, text = framing.frame(segments)
        tokens_BT = np.full((len(texts), seq_len), self.pad_id, np.int32)
        is_token_BT = np.arange(seq_len) < np.diff(frame.offsets)[:, None]
        tokens = frame.tokens(text, self.cls_id, self.sep_id)
        tokens_BT[is_token_BT] = tokens[framing.with_cls_last(frame.offsets)] if self.cls_last else tokens
        return tokens_BT

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """Return readable text; special symbols are dropped, or spelled out between spaces."""
        ids = [int(i) for i in ids]
        if not keep_special:
            return self._text(ids)
        runs = itertools.groupby(ids, key=self.special_ids.__contains__)
        return " ".join(" ".join(map(self.piece, run)) if special else self._text(list(run)) for special, run in runs)

    def save(self, folder: Path) -> None:
        """Write `MODEL_FILE` and `bertjax_tokenizer.json` into an existing folder, and delete other model files."""
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
        """Raise ValueError unless the library reads the model, and it has the special symbols and a sound size."""
        symbols = {self.pad_id, self.unk_id, self.sep_id, self.cls_id, self.mask_id}
        if len(symbols) < 5 or max(symbols) >= self.vocab_size:
            raise ValueError("two special symbols have one id")
        if self.vocab_size > LARGEST_VOCABULARY:
            raise ValueError(f"its largest id is {self.vocab_size - 1:,}, and the limit is {LARGEST_VOCABULARY - 1:,}")

    def _choices(self) -> dict[str, str]:
        """Return the fields other than the model, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "model"}


def load(folder: Path, classes: Iterable[type[Tokenizer]]) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Args:
      classes: the class whose MODEL_FILE the folder holds is the class of the tokenizer.

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
        tokenizer.check()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} holds no readable tokenizer ({quoted(error)}); restore the folder") from None
    return tokenizer
