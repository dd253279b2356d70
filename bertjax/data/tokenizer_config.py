"""Tokenizer settings, as a frozen dataclass that validates itself."""

import dataclasses
import unicodedata
from typing import Any, cast

from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, reason
from bertjax.runtime.setting import PLACE, check, setting

SENTENCEPIECE_KINDS = ("unigram", "bpe", "char")
HUGGINGFACE_KINDS = ("wordpiece", "byte_bpe")
# Upper bound that protects against damaged files, because tables over all ids are allocated.
LARGEST_VOCABULARY = 2**24
LEAST_COVERAGE = 0.98  # checked in SentencePiece's trainer_interface.cc
# Fields that have an effect with some tokenizer kinds only.
ONLY_FOR = {
    "lowercase": ("wordpiece",),
    "byte_fallback": SENTENCEPIECE_KINDS,
    "character_coverage": (*SENTENCEPIECE_KINDS, "wordpiece"),
    "keep": (*SENTENCEPIECE_KINDS, "wordpiece"),
    "keep_file": (*SENTENCEPIECE_KINDS, "wordpiece"),
}


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer to be trained on the corpus, or an existing `model`.

    Attributes:
      kind: `unigram`, `bpe` or `char` (SentencePiece), `wordpiece` or `byte_bpe` (Hugging Face tokenizers).
      vocab_size: pieces, special symbols and byte pieces included; an upper limit for `char`.
      normalizer: `nfc` (NFC only) or `nfkc` (NFKC, which turns U+2460 into 1).
      lowercase: lower case without accents (WordPiece only).
      byte_fallback: characters outside the vocabulary become bytes instead of [UNK] (SentencePiece only).
      character_coverage: fraction of the sample's characters that the vocabulary covers; `byte_bpe` covers all.
      keep: characters that become pieces however rare they are, such as `①㎡甲`; `byte_bpe` does not need it.
      keep_file: path to a UTF-8 text with more characters to keep.
      sample_characters: maximum size of the training text, a fixed sample from the training split.
      model: path to an existing SentencePiece `.model`, WordPiece `vocab.txt` or Hugging Face `tokenizer.json`, or to
        the `tokenizer` folder in a run or export. All other fields are then ignored, except `lowercase` for a
        `vocab.txt`.
    """

    kind: str = setting("unigram", choices=SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS)
    vocab_size: int = setting(8000, least=1, most=LARGEST_VOCABULARY)
    normalizer: str = setting("nfc", choices=("nfc", "nfkc"))
    lowercase: bool = False
    byte_fallback: bool = True
    character_coverage: float = setting(0.9995, above=0, most=1)
    keep: str = ""
    keep_file: str = setting("", metadata=PLACE)
    sample_characters: int = setting(10_000_000, least=1)
    model: str = setting("", metadata=PLACE)

    def __post_init__(self):
        check(self, "data.tokenizer")
        if self.kind in SENTENCEPIECE_KINDS and not self.model and self.character_coverage < LEAST_COVERAGE:
            coverage = f"data.tokenizer.character_coverage={self.character_coverage}"
            raise UserError(f"{coverage} is below {LEAST_COVERAGE}; raise it, or choose kind=wordpiece")
        for field in dataclasses.fields(self):
            # A setting without effect is an error: whoever sets `lowercase` for `bpe` expects lower case.
            kinds, value = ONLY_FOR.get(field.name, (self.kind,)), getattr(self, field.name)
            if not self.model and self.kind not in kinds and value != field.default:
                remedy = f"remove it, or choose one of {', '.join(kinds)}"
                raise UserError(f"data.tokenizer.{field.name}={value} has no effect with kind={self.kind}; {remedy}")


def kept_characters(config: TokenizerConfig) -> str:
    """Return the distinct characters in `keep` and in the file `keep_file`, normalized, sorted by code point.

    Raises:
      UserError: the file is unreadable.
    """
    text = config.keep
    if config.keep_file:
        try:
            text += untrusted.read_text(config.keep_file).removeprefix("\ufeff")
        except (OSError, ValueError) as error:
            refused = f"data.tokenizer.keep_file={config.keep_file!r}"
            raise UserError(f"{refused} is not a readable UTF-8 text ({reason(error)}); name another") from None
    normalized = unicodedata.normalize(cast(Any, config.normalizer.upper()), text)
    return "".join(sorted(character for character in set(normalized) if not character.isspace()))
