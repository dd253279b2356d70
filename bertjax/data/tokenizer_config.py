"""Tokenizer settings, as a frozen dataclass that validates itself."""

import dataclasses

from bertjax.runtime.errors import UserError

SENTENCEPIECE_KINDS = ("unigram", "bpe", "char")
HUGGINGFACE_KINDS = ("wordpiece", "byte_bpe")
NORMALIZERS = ("nfc", "nfkc")
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

    kind: str = "unigram"
    vocab_size: int = 8000
    normalizer: str = "nfc"
    lowercase: bool = False
    byte_fallback: bool = True
    character_coverage: float = 0.9995
    keep: str = ""
    keep_file: str = ""
    sample_characters: int = 10_000_000
    model: str = ""

    def __post_init__(self):
        for field, value, known in (
            ("kind", self.kind, SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS),
            ("normalizer", self.normalizer, NORMALIZERS),
        ):
            if value not in known:
                raise UserError(f"data.tokenizer.{field}={value!r} is unknown; choose one of {', '.join(known)}")
        for field in ("vocab_size", "sample_characters"):
            if getattr(self, field) < 1:
                raise UserError(f"data.tokenizer.{field}={getattr(self, field)} must be at least 1")
        if not 0.0 < self.character_coverage <= 1.0:
            raise UserError(
                f"data.tokenizer.character_coverage={self.character_coverage} must be above 0 and at most 1"
            )
        if self.kind in SENTENCEPIECE_KINDS and not self.model and self.character_coverage < LEAST_COVERAGE:
            raise UserError(
                f"data.tokenizer.character_coverage={self.character_coverage} is below {LEAST_COVERAGE}, the least "
                "that SentencePiece accepts; raise it, or choose kind=wordpiece"
            )
        for field in dataclasses.fields(self):
            # A setting without effect is an error: whoever sets `lowercase` for `bpe` expects lower case.
            kinds, value = ONLY_FOR.get(field.name, (self.kind,)), getattr(self, field.name)
            if not self.model and self.kind not in kinds and value != field.default:
                remedy = f"remove it, or choose one of {', '.join(kinds)}"
                raise UserError(f"data.tokenizer.{field.name}={value} has no effect with kind={self.kind}; {remedy}")
