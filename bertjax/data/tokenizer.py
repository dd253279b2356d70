"""SentencePiece tokenizers: trained on a corpus or taken as they are (Kudo & Richardson 2018, arXiv 1808.06226)."""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import sentencepiece

from bertjax.data.config import TokenizerConfig
from bertjax.errors import UserError

FORMAT_VERSION = 1
SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[SEP]", "[CLS]", "[MASK]")
# The trained pieces depend on the number of threads, so it must not depend on the machine.
TRAINING_THREADS = 4
LOG_NOTHING = 3


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back.

    Special symbols are control symbols: their spelling in a text is ordinary text and never becomes their id.

    Attributes:
      model: a serialized SentencePiece model.
      normalizer: `nfc` applies NFC before the model; any other value leaves normalization to the model.
    """

    model: bytes
    normalizer: str

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    @property
    def pad_id(self) -> int:
        return self._processor.piece_to_id("[PAD]")

    @property
    def unk_id(self) -> int:
        return self._processor.unk_id()

    @property
    def sep_id(self) -> int:
        return self._processor.piece_to_id("[SEP]")

    @property
    def cls_id(self) -> int:
        return self._processor.piece_to_id("[CLS]")

    @property
    def mask_id(self) -> int:
        return self._processor.piece_to_id("[MASK]")

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that no text stands for: the control symbols and [UNK]."""
        processor = self._processor
        return frozenset(i for i in range(self.vocab_size) if processor.is_control(i) or processor.is_unknown(i))

    @functools.cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids of the 256 byte pieces; empty without byte fallback."""
        return frozenset(i for i in range(self.vocab_size) if self._processor.is_byte(i))

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.normalizer}\0".encode() + self.model).hexdigest()

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Token ids of each sentence, without [CLS] and [SEP]."""
        return self._processor.encode([self._normalize(sentence) for sentence in sentences], num_threads=1)

    def rows(self, texts: list[str], seq_len: int) -> np.ndarray:
        """Texts as rows `[CLS] ... [SEP]`, filled up with [PAD] and cut where they are longer; int32 [B, T]."""
        tokens_BT = np.full((len(texts), seq_len), self.pad_id, np.int32)
        for row, ids in zip(tokens_BT, self.encode(texts), strict=True):
            ids = [self.cls_id, *ids[: seq_len - 2], self.sep_id]
            row[: len(ids)] = ids
        return tokens_BT

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """Readable text; special symbols leave nothing behind, or are spelled out between spaces."""
        ids = [int(i) for i in ids]
        if not keep_special:
            return self._processor.decode(ids)
        runs = itertools.groupby(ids, key=self.special_ids.__contains__)
        return " ".join(
            " ".join(map(self.piece, run)) if special else self._processor.decode(list(run)) for special, run in runs
        )

    def piece(self, token_id: int) -> str:
        return self._processor.id_to_piece(int(token_id))

    def _normalize(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self.normalizer == "nfc" else text

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.model` and `tokenizer.json` into a folder that exists."""
        record = {"format_version": FORMAT_VERSION, "normalizer": self.normalizer, "fingerprint": self.fingerprint}
        (folder / "tokenizer.model").write_bytes(self.model)
        (folder / "tokenizer.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Reads what `save` wrote.

        Raises:
          UserError: files are missing or altered, or a newer bertjax wrote them.
        """
        try:
            record = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            version, normalizer, fingerprint = record["format_version"], record["normalizer"], record["fingerprint"]
            model = (folder / "tokenizer.model").read_bytes()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder} holds no readable tokenizer ({error!r}); restore the folder") from None
        if version != FORMAT_VERSION:
            raise UserError(f"{folder} has tokenizer format {version}, not {FORMAT_VERSION}; upgrade bertjax")
        tokenizer = cls(model, normalizer)
        if tokenizer.fingerprint != fingerprint:
            raise UserError(f"{folder / 'tokenizer.model'} was altered since it was written; restore the folder")
        return tokenizer


def train(sentences: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Trains a model: the same sentences in the same order give the same bytes on any machine.

    `kind="char"` takes the characters that there are: `vocab_size` is then the most that it may have.

    Raises:
      UserError: the sentences cannot fill `config.vocab_size`, or it has no room for their characters.
    """
    nfc = config.normalizer == "nfc"
    model = io.BytesIO()
    pad, unk, bos, eos, *controls = SPECIALS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(unicodedata.normalize("NFC", line) if nfc else line for line in sentences),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity" if nfc else "nmt_nfkc",
            pad_id=0, unk_id=1, bos_id=2, eos_id=3,
            pad_piece=pad, unk_piece=unk, bos_piece=bos, eos_piece=eos, control_symbols=controls,
            max_sentence_length=2**30,  # SentencePiece leaves out, silently, what is longer
            num_threads=TRAINING_THREADS,
            minloglevel=LOG_NOTHING,
        )  # fmt: skip
    except RuntimeError as error:
        raise UserError(_training_error(str(error), config)) from None
    return Tokenizer(model.getvalue(), config.normalizer)


def _training_error(message: str, config: TokenizerConfig) -> str:
    asked = f"data.tokenizer.vocab_size={config.vocab_size}"
    if most := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return f"{asked} is too large: the corpus is so small that it gives {most[1]} pieces; ask for at most {most[1]}"
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return f"{asked} is too small: the characters, bytes and special symbols alone take {least[1]}; ask for more"
    return f"SentencePiece cannot train with {config}: {message.splitlines()[0]}"


def from_model(path: str | Path) -> Tokenizer:
    """Takes an existing SentencePiece model, or a folder that `save` wrote; it keeps its normalization and its ids.

    Raises:
      UserError: the file is no model, or [PAD], [SEP], [CLS] or [MASK] is none of its control symbols.
    """
    if Path(path).is_dir():
        return Tokenizer.load(Path(path))
    refused = f"data.tokenizer.model={str(path)!r}"
    try:
        model = Path(path).expanduser().read_bytes()
        tokenizer = Tokenizer(model, "model")
        controls = {tokenizer.piece(i) for i in tokenizer.special_ids} if model else set()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{refused} is no readable SentencePiece model ({error}); name another") from None
    if missing := [symbol for symbol in ("[PAD]", "[SEP]", "[CLS]", "[MASK]") if symbol not in controls]:
        remedy = "train it with them, or leave data.tokenizer.model empty to train one here"
        raise UserError(f"{refused} has no control symbols {', '.join(missing)}; {remedy}")
    return tokenizer
