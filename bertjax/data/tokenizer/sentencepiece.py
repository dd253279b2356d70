"""SentencePiece tokenizers, trained or read from a file (Kudo & Richardson 2018, arXiv 1808.06226)."""

import copy
import dataclasses
import functools
import io
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertjax.data.text import unicode
from bertjax.data.tokenizer import base
from bertjax.data.tokenizer.base import SPECIALS, Tokenizer
from bertjax.data.tokenizer_config import TokenizerConfig, kept_characters
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, reason

# Trained pieces depend on the number of threads, so it must not depend on the machine.
TRAINING_THREADS = 4
LOG_NOTHING = 3
WORD_START = "\u2581"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Apostrophes join the parts of a word ("don't"); XLNet's and ALBERT's punctuation lists leave them out as well.
APOSTROPHES = ("'", "\u2019")


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model; its special symbols are control symbols.

    Attributes:
      model: serialized SentencePiece model.
      normalizer: `nfc` applies NFC before the model; any other value leaves normalization to the model.
    """

    MODEL_FILE = "tokenizer.model"

    normalizer: str

    @functools.cached_property
    def _processor(self):
        import sentencepiece

        try:
            return sentencepiece.SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as error:
            raise ValueError(f"SentencePiece cannot read the model: {reason(error)}") from None

    @functools.cached_property
    def _continued_processor(self):
        """The same model without the space that it adds before every text."""
        return self._with_prefix(False)

    @functools.cached_property
    def _spaced_processor(self):
        """The same model, always adding a space before a text; a few models do not do so themselves."""
        return self._processor if self.description.normalizer_spec.add_dummy_prefix else self._with_prefix(True)

    def _with_prefix(self, is_added: bool):
        import sentencepiece

        description = copy.deepcopy(self.description)
        description.normalizer_spec.add_dummy_prefix = is_added
        return sentencepiece.SentencePieceProcessor(model_proto=description.SerializeToString())

    @functools.cached_property
    def description(self):
        """The model as its protocol buffer, a `ModelProto`."""
        from sentencepiece import sentencepiece_model_pb2

        return cast(Any, sentencepiece_model_pb2).ModelProto.FromString(self.model)  # made when it is imported

    def check(self) -> None:
        for token_id in range(self.vocab_size):
            self.piece(token_id)  # raises UnicodeDecodeError, a ValueError
        super().check()

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        processor = self._processor
        return frozenset(i for i in range(self.vocab_size) if processor.is_control(i) or processor.is_unknown(i))

    @functools.cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids for the 256 byte pieces; empty without byte fallback."""
        return frozenset(i for i in range(self.vocab_size) if self._processor.is_byte(i))

    @functools.cached_property
    def continuation_ids(self) -> frozenset[int]:
        """Ids for pieces, byte pieces included, that neither start with U+2581 (the space sign) nor are punctuation.

        Punctuation starts a word, as ASCII punctuation does in ALBERT's (`_is_start_piece_sp`) and XLNet's
        (`_is_start_piece`) published code. As there, a letter directly after punctuation continues it: `well-known` is
        the words `well` and `-known`. In scripts without spaces every piece starts a word; otherwise a word would be a
        whole clause.
        """
        starts = (i for i in range(self.vocab_size) if starts_word(self.piece(i)))
        return frozenset(range(self.vocab_size)) - frozenset(starts) - self.special_ids

    def encode(self, sentences: list[str]) -> list[list[int]]:
        # One thread: preparation runs a process per core, and each would start a thread per core.
        return self._processor.encode(self._normalized(sentences), num_threads=1)

    def _encode_after_space(self, texts: list[str]) -> list[list[int]]:
        return self._spaced_processor.encode(self._normalized(texts), num_threads=1)

    def encode_flat(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = self._spaced_processor.encode(self._normalized(sentences), num_threads=1, return_type="numpy")
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.concatenate([np.zeros(0, np.int32), *encoded]), lengths

    def _encode_continued(self, text: str) -> list[int]:
        return self._continued_processor.encode(self._normalized([text])[0])

    def _aligned(self, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
        encoded = self._processor.encode(self._normalized(texts), num_threads=1, return_type="offset_mapping")
        aligned = []
        for text, mapping in zip(texts, encoded, strict=True):
            parts, composed = base.stretches(text)
            seen = composed if self.normalizer == "nfc" else parts
            spans = np.array(mapping["offsets"], np.int64).reshape(-1, 2)
            # If one character becomes several pieces (bytes), the library assigns it only to the last.
            is_text = np.array([piece != WORD_START for piece in mapping["pieces"]], bool)
            spans[(spans[:, 0] == spans[:, 1]) & is_text, 1] += 1
            spans = np.minimum(spans, sum(map(len, seen)))
            aligned.append((mapping["ids"], base.whole(spans, parts, seen)))
        return aligned

    def piece(self, token_id: int) -> str:
        return self._processor.id_to_piece(int(token_id))

    def _text(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def _special_id(self, symbol: str) -> int:
        return self._processor.unk_id() if symbol == "[UNK]" else self._processor.piece_to_id(symbol)

    def _normalized(self, texts: list[str]) -> list[str]:
        return [unicodedata.normalize("NFC", text) for text in texts] if self.normalizer == "nfc" else texts


def starts_word(piece: str) -> bool:
    """Return whether a SentencePiece piece starts a word, see `SentencePieceTokenizer.continuation_ids`."""
    if byte := _BYTE.fullmatch(piece):
        return unicode.byte_starts_unspaced(bytes.fromhex(byte[1]))
    if unicode.starts_unspaced(piece):
        return True
    is_punctuation = all(unicodedata.category(character)[0] in "PS" for character in piece)
    return piece.startswith(WORD_START) or (is_punctuation and piece not in APOSTROPHES)


def train(sentences: Iterable[str], config: TokenizerConfig) -> SentencePieceTokenizer:
    """Train a model. Same sentences in the same order give the same bytes on any machine.

    `kind="char"` takes its pieces from the sentences' characters; `vocab_size` is then an upper limit.

    Raises:
      UserError: the sentences cannot fill `config.vocab_size`, or their characters do not fit into it.
    """
    import sentencepiece

    nfc = config.normalizer == "nfc"
    model = io.BytesIO()
    # Control symbols, because SentencePiece would match user-defined ones in raw text.
    pad, unk, bos, eos, *controls = SPECIALS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(unicodedata.normalize("NFC", line) if nfc else line for line in sentences),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            required_chars=kept_characters(config),
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity" if nfc else "nmt_nfkc",  # NFKC, the default, turns U+2460 into 1
            pad_id=0, unk_id=1, bos_id=2, eos_id=3,
            pad_piece=pad, unk_piece=unk, bos_piece=bos, eos_piece=eos, control_symbols=controls,
            max_sentence_length=2**30,  # no limit: SentencePiece silently drops longer sentences
            num_threads=TRAINING_THREADS,
            minloglevel=LOG_NOTHING,
        )  # fmt: skip
    except RuntimeError as error:
        raise UserError(_training_error(str(error), config)) from None
    return SentencePieceTokenizer(model.getvalue(), config.normalizer)


def _training_error(message: str, config: TokenizerConfig) -> str:
    setting = f"data.tokenizer.vocab_size={config.vocab_size}"
    if most := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return f"{setting} is too large: this small corpus gives {most[1]} pieces; ask for at most {most[1]}"
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return f"{setting} is too small: characters, bytes and special symbols take {least[1]}; raise it above that"
    return f"SentencePiece cannot train with {config}: {message.splitlines()[0]}"


def from_file(path: Path) -> SentencePieceTokenizer:
    """Read an existing model; it keeps its normalization and its ids.

    Raises:
      UserError: the file is not a model, or [PAD], [SEP], [CLS] or [MASK] is not a control symbol in it.
    """
    refused = f"data.tokenizer.model={str(path)!r}"
    try:
        model = untrusted.read_bytes(path)
        tokenizer = SentencePieceTokenizer(model, "model")
        controls = {tokenizer.piece(i) for i in tokenizer.special_ids} if model else set()
    except (OSError, ValueError) as error:
        raise UserError(f"{refused} is not a readable SentencePiece model ({reason(error)}); name another") from None
    if missing := [symbol for symbol in ("[PAD]", "[SEP]", "[CLS]", "[MASK]") if symbol not in controls]:
        remedy = "train it with them, or leave data.tokenizer.model empty to train a tokenizer"
        raise UserError(f"{refused} has no control symbols {', '.join(missing)}; {remedy}")
    return tokenizer
