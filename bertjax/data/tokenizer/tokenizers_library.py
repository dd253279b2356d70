"""WordPiece and byte-level BPE, run by the Hugging Face `tokenizers` library from a `tokenizer.json` description.

`bertjax.data.tokenizer.unigram` has two more kinds.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bertjax.data.text import unicode
from bertjax.data.tokenizer import base
from bertjax.data.tokenizer.base import Tokenizer
from bertjax.data.tokenizer.layout import Layout, layout_of, refusal, spelled
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, quoted, reason

# Other spellings for BERT's symbols, in order of preference: XLNet's (Yang et al. 2019, arXiv 1906.08237), whose
# vocabulary also has <s> and </s>, then RoBERTa's (Liu et al. 2019, arXiv 1907.11692).
EQUIVALENTS = {
    "[PAD]": ("<pad>",),
    "[UNK]": ("<unk>",),
    "[SEP]": ("<sep>", "</s>"),
    "[CLS]": ("<cls>", "<s>"),
    "[MASK]": ("<mask>",),
}
MASKS = ("[MASK]", *EQUIVALENTS["[MASK]"])
# Key in our descriptions for each symbol's piece, by its name in BERT. The library does not know this key.
ROLES = "roles"
# Text-boundary symbols in other libraries, whatever their role in an example.
_BOUNDS = ("[BOS]", "[EOS]", "<s>", "</s>")
# Byte-level spelling of a space (GPT-2, Radford et al. 2019).
SPACE = "\u0120"
# Add a space before a text unless it starts with one, so that a sentence's first word has the same pieces as elsewhere.
# ByteLevel's own `add_prefix_space` would add one before each word that an earlier step has split.
PREFIX_SPACE = (
    {"type": "Prepend", "prepend": " "},
    {"type": "Replace", "pattern": {"Regex": r"\A\x20\x20"}, "content": " "},
)
# A piece that occurs once in the sample is not worth an embedding row.
MIN_FREQUENCY = 2


def _byte_letters() -> dict[str, int]:
    """Return GPT-2's alphabet: the byte that each letter stands for (`bytes_to_unicode` in its encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()


def library():
    """Import the `tokenizers` package on first use.

    Raises:
      UserError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError:
        raise UserError("this tokenizer needs the package tokenizers; pip install tokenizers") from None
    return tokenizers


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    """Turn errors that the library raises about a description, Rust panics included, into ValueError."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(reason(error)) from None


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer(Tokenizer):
    """A WordPiece or byte-level BPE tokenizer.

    Special tokens that are not example symbols, such as `[E1]` before a named entity, are recognized in a text.

    Attributes:
      model: `tokenizer.json`, UTF-8, with normalization, pre-tokenization and decoding. `ROLES` lists symbols that have
        unusual pieces.
    """

    MODEL_FILE = "tokenizer.json"

    @functools.cached_property
    def _processor(self):
        library_class = library().Tokenizer
        with _as_value_errors():
            processor = library_class.from_str(self._library_json())
        processor.encode_special_tokens = True  # that is, as ordinary text
        processor.no_truncation()
        processor.no_padding()
        return processor

    def _library_json(self) -> str:
        """Return the `tokenizer.json` for the library, changed so that spelled-out special tokens are read as text."""
        return json.dumps(self.library_description(), ensure_ascii=False)

    def library_description(self) -> dict[str, Any]:
        """Return a `tokenizer.json` that reads texts as this class does, if special tokens are encoded as text.

        Exactly the symbols that a text may spell out are marked special.
        """
        added = self.description.get("added_tokens") or []
        # mmBERT's <mask> is not marked, though transformers takes it for a symbol.
        tokens = [token | {"special": token["content"] in self.text_symbols} for token in added]
        return {key: value for key, value in self.description.items() if key != ROLES} | {"added_tokens": tokens}

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """Parsed `tokenizer.json`."""
        return untrusted.parse_json(self.model)

    @functools.cached_property
    def cls_last(self) -> bool:
        """Whether the description's template has [CLS] at the end."""
        return self._layout is not None and self._layout.cls_last

    @property
    def pair_separators(self) -> int:
        """Number of [SEP] between the two texts in a pair, from the description's template."""
        return self._layout.separators if self._layout else 1

    @functools.cached_property
    def _layout(self) -> Layout | None:
        return layout_of(self.description.get("post_processor"))

    @functools.cached_property
    def roles(self) -> dict[str, str]:
        """Piece for each example symbol, see `roles_of`."""
        return roles_of(self.description)

    @functools.cached_property
    def text_symbols(self) -> frozenset[str]:
        """Special tokens that are plain text when a text spells them out: example symbols and text bounds."""
        return frozenset((*self.roles.values(), *_BOUNDS))

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        """Ids by piece, special symbols included."""
        return self._processor.get_vocab(with_added_tokens=True)

    def check(self) -> None:
        if not self._ids:
            raise ValueError("it has no pieces")
        self._check_model(self.description["model"])
        super().check()

    def _check_model(self, model: dict[str, Any]) -> None:
        """Raise ValueError unless this class reads such a model."""
        if model["type"] not in ("WordPiece", "BPE"):
            raise ValueError(f"its kind is {quoted(model['type'])}, and bertjax reads WordPiece and byte-level BPE")
        if model["type"] == "WordPiece" and not isinstance(model["continuing_subword_prefix"], str):
            raise ValueError("its continuing_subword_prefix is not text")
        unknown = model.get("unk_token")
        # Without an unk_token, byte-level BPE drops bytes without a piece; with one that is not a piece, it fails.
        has_unknown = model["type"] == "WordPiece" or (unknown and len(self.byte_ids) < 256)
        if has_unknown and unknown not in model["vocab"]:
            raise ValueError(f"its unk_token={quoted(unknown)} is not a piece of its vocabulary")

    @property
    def is_byte_level(self) -> bool:
        """Whether pieces spell bytes as letters, as GPT-2's do."""
        return self.description["model"]["type"] == "BPE"

    def _spaces_before_mask(self, text: str) -> list[int]:
        mask = self.piece(self.mask_id)
        added = [token for token in self.description.get("added_tokens") or [] if token["content"] == mask]
        if not self.is_byte_level or any(token.get("lstrip") for token in added):
            return []
        spaces = SPACE * (len(text) - len(text.rstrip(" ")))
        return [token.id for token in self._processor.model.tokenize(spaces)]

    @property
    def longest_word(self) -> int:
        return self.description["model"].get("max_input_chars_per_word", 0)

    @functools.cached_property
    def vocab_size(self) -> int:
        return max(self._ids.values()) + 1  # a vocab.txt that repeats a piece leaves ids without one

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        added = self._processor.get_added_tokens_decoder().items()
        known = (self.pad_id, self.unk_id, self.sep_id, self.cls_id, self.mask_id)
        return frozenset(i for i, token in added if token.special).union(known)

    @functools.cached_property
    def _whole_words(self) -> frozenset[int]:
        """Ids for added tokens; each is a word by itself."""
        return frozenset(self._processor.get_added_tokens_decoder())

    @functools.cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids for byte-level BPE's 256 single-byte pieces; empty for WordPiece."""
        alphabet = library().pre_tokenizers.ByteLevel.alphabet() if self.is_byte_level else ()
        return frozenset(self._ids[byte] for byte in alphabet if byte in self._ids)

    @functools.cached_property
    def continuation_ids(self) -> frozenset[int]:
        """Ids for pieces that start with ## (WordPiece) or without a space (byte-level BPE).

        In scripts without spaces every piece starts a word; otherwise a word would be a whole clause.
        """
        if self.is_byte_level:
            continuing = (i for piece, i in self._ids.items() if not self._starts_word(piece))
        else:
            prefix = self.description["model"]["continuing_subword_prefix"]
            within = ((piece.removeprefix(prefix), i) for piece, i in self._ids.items() if piece.startswith(prefix))
            continuing = (i for piece, i in within if not unicode.starts_unspaced(piece))
        return frozenset(continuing) - self.special_ids - self._whole_words

    def _starts_word(self, piece: str) -> bool:
        """Return whether a byte-level piece starts a word: it starts with a space, or its script has no spaces."""
        if piece.startswith(SPACE) or not set(piece) <= _BYTES.keys():
            return piece.startswith(SPACE)
        return unicode.byte_starts_unspaced(bytes(map(_BYTES.__getitem__, piece)))

    def words(self, text: str) -> list[str]:
        """Split a text into words as the model sees them: normalized, punctuation separate."""
        return [word for word, _ in self._split(text)[1]]

    def _split(self, text: str) -> tuple[str, list[tuple[str, tuple[int, int]]]]:
        """Return a text as normalized, and its words with their places in it."""
        normalizer, splitter = self._processor.normalizer, self._processor.pre_tokenizer
        normalized = normalizer.normalize_str(text) if normalizer else text
        return normalized, splitter.pre_tokenize_str(normalized) if splitter else [(normalized, (0, len(normalized)))]

    def parts(self, word: str) -> list[int]:
        """Encode one of `words`; a leading ## marks the rest of a word."""
        return [token.id for token in self._processor.model.tokenize(word)]

    def encode(self, sentences: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._processor.encode_batch_fast(sentences, add_special_tokens=False)]

    @property
    def _missing_space(self) -> str:
        """What a text needs in front to be encoded as after a space: nothing if its first word is encoded so anyway."""
        return " " if self.is_byte_level else ""

    def _encode_after_space(self, texts: list[str]) -> list[list[int]]:
        return self.encode([self._missing_space + text if text else "" for text in texts])

    def _encode_continued(self, text: str) -> list[int]:
        if self.is_byte_level:
            return self._without_prefix_space.encode([text])[0]
        letter = "a"  # placed before the text, it shows how much text belongs to the same word
        normalized, words = self._split(letter + text)
        (word, (_, end)), *_ = words
        if word == letter:
            return self.encode([text])[0]
        return self._continuing_pieces(word.removeprefix(letter)) + self.encode([normalized[end:]])[0]

    @functools.cached_property
    def _without_prefix_space(self) -> "HuggingFaceTokenizer":
        return HuggingFaceTokenizer(_without_prefix_space(self.model))

    def _continuing_pieces(self, word: str) -> list[int]:
        """Encode the rest of a word with WordPiece: longest match first, from left to right."""
        if self.longest_word and len(word) > self.longest_word:
            return [self.unk_id]
        prefix, ids, start = self.description["model"]["continuing_subword_prefix"], [], 0
        while start < len(word):
            fitting = (stop for stop in range(len(word), start, -1) if prefix + word[start:stop] in self._ids)
            if (stop := next(fitting, None)) is None:
                return [self.unk_id]
            ids.append(self._ids[prefix + word[start:stop]])
            start = stop
        return ids

    def _aligned(self, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
        aligned = []
        for text, encoding in zip(texts, self._processor.encode_batch(texts, add_special_tokens=False), strict=True):
            parts, _ = base.stretches(text)  # the library maps a composed character to its first part only
            spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            aligned.append((encoding.ids, base.whole(spans, parts, parts)))
        return aligned

    def piece(self, token_id: int) -> str:
        piece = self._processor.id_to_token(int(token_id)) or ""
        if not self.is_byte_level:
            return piece
        text = self._processor.decoder.decode([piece])
        # A piece with part of a character has no text; its byte letters are shown instead.
        return piece if "\ufffd" in text else text.replace(" ", SPACE)

    def _text(self, ids: list[int]) -> str:
        # The library would skip [UNK] as well, but a reader must see where text was lost.
        silent = self.special_ids - ({self.unk_id} - {self.pad_id})
        text = self._processor.decode([i for i in ids if i not in silent], skip_special_tokens=False)
        return text.removeprefix(self._missing_space)

    def _special_id(self, symbol: str) -> int:
        return self._ids[self.roles[symbol]]


def roles_of(description: dict[str, Any]) -> dict[str, str]:
    """Return the piece for each example symbol, keyed by its name in BERT.

    Looks first at declared roles, then at the template, then at the usual names.

    Args:
      description: parsed `tokenizer.json`, which may have `ROLES`.
    """
    vocab = description["model"]["vocab"]
    pieces = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    pieces.update(token["content"] for token in description.get("added_tokens") or [])
    layout = layout_of(description.get("post_processor"))
    of_layout = {"[CLS]": layout.cls, "[SEP]": layout.sep} if layout else {}
    declared = of_layout | description.get(ROLES, {})
    roles = {}
    for symbol, others in EQUIVALENTS.items():
        names = (declared.get(symbol), symbol, *others)
        roles[symbol] = next((name for name in names if name in pieces), names[-1])
    if roles["[UNK]"] not in pieces and not description["model"].get("unk_token"):
        # Llama's BPE has a piece for every byte and no [UNK]. No text becomes it, so any symbol can stand for it.
        if description["model"]["type"] == "BPE" and pieces.issuperset(library().pre_tokenizers.ByteLevel.alphabet()):
            roles["[UNK]"] = roles["[PAD]"]
    return roles


def train(sentences: Iterable[str], description: bytes, trainer, vocab_size: int) -> dict[str, Any]:
    """Train a description's vocabulary and return its `model` part.

    Raises:
      UserError: the sentences cannot fill `vocab_size`, or their characters do not fit into it.
    """
    # No special symbols yet: the corpus may spell one out, and that must be trained on as text.
    processor = library().Tokenizer.from_str(description.decode("utf-8"))
    processor.train_from_iterator(sentences, trainer)
    model = json.loads(processor.to_str())["model"]
    size, setting = len(model["vocab"]), f"data.tokenizer.vocab_size={vocab_size}"
    if size < vocab_size:
        raise UserError(f"{setting} is too large: this small corpus gives {size} pieces; ask for at most {size}")
    if size > vocab_size:
        raise UserError(f"{setting} is too small: characters and special symbols take {size}; raise it above that")
    return model


def _without_prefix_space(model: bytes) -> bytes:
    """Remove the step that adds a space before a text; unchanged if there is none."""
    description = untrusted.parse_json(model)
    normalizer = description.get("normalizer") or {}
    steps = normalizer.get("normalizers", [])
    if (left := [step for step in steps if step not in PREFIX_SPACE]) != steps:
        normalizer["normalizers"] = left
        return json.dumps(description, ensure_ascii=False).encode()
    outer = description.get("pre_tokenizer")
    steps = outer.get("pretokenizers", [outer]) if isinstance(outer, dict) else []
    others = [step for step in steps if step["type"] == "ByteLevel" and step["add_prefix_space"]]
    for step in others:
        step["add_prefix_space"] = False
    return json.dumps(description, ensure_ascii=False).encode() if others else model


def checked(tokenizer: HuggingFaceTokenizer, refused: str) -> HuggingFaceTokenizer:
    """Return the tokenizer after checking that bertjax can use it.

    Raises:
      UserError: the library cannot read it; it lacks [PAD], [UNK], [SEP], [CLS] or [MASK] and RoBERTa's equivalent; or
        it reads one that a text spells out as the symbol.
    """
    try:
        ids = tokenizer._ids
        if missing := [symbol for symbol, piece in tokenizer.roles.items() if piece not in ids]:
            template = tokenizer.description.get("post_processor")
            if {"[CLS]", "[SEP]"} & {*missing} and not layout_of(template) and (text := spelled(template)):
                raise UserError(f"{refused} {refusal(text)}")
            raise UserError(f"{refused} has no symbols {', '.join(missing)}; add them to it, or train one here")
        tokenizer._check_model(tokenizer.description["model"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        unread = f"is not readable by the tokenizers package ({reason(error)})"
        raise UserError(f"{refused} {unread}; name another") from None
    # Text from a corpus must never turn into a control symbol.
    symbols = sorted(tokenizer.special_ids - ({tokenizer.unk_id} - {tokenizer.pad_id}))
    for symbol, spelling in zip(symbols, tokenizer.encode([tokenizer.piece(i) for i in symbols]), strict=True):
        if symbol in spelling:
            remedy = "split punctuation in its pre_tokenizer"
            raise UserError(f"{refused} reads the text {tokenizer.piece(symbol)!r} as its special symbol; {remedy}")
    return tokenizer
