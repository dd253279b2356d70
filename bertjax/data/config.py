"""What the user says about data: plain frozen dataclasses, no behaviour but their own checks."""

import dataclasses

from bertjax.errors import UserError

SENTENCEPIECE_KINDS = ("unigram", "bpe", "char")
NORMALIZERS = ("nfc", "nfkc")
SPLITTERS = ("punctuation", "line")
ON_BAD_DOCUMENT = ("stop", "skip")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """A SentencePiece tokenizer to train on the corpus, or an existing `model` to take.

    Attributes:
      kind: `unigram`, `bpe` or `char`.
      vocab_size: number of pieces, special symbols and byte pieces included; the most of them for `char`.
      normalizer: `nfc` (NFC, then identity: what is written stays) or `nfkc` (SentencePiece's default, which turns
        U+2460 into 1).
      byte_fallback: characters outside the vocabulary become bytes instead of [UNK].
      character_coverage: share of the characters of the sample that the vocabulary covers.
      sample_characters: how much text the tokenizer trains on at most (seeded sample of sentences).
      model: path of an existing SentencePiece `.model`, or of the `tokenizer` folder of a run or export; the other
        fields are then ignored.
    """

    kind: str = "unigram"
    vocab_size: int = 8000
    normalizer: str = "nfc"
    byte_fallback: bool = True
    character_coverage: float = 0.9995
    sample_characters: int = 10_000_000
    model: str = ""

    def __post_init__(self):
        for field, value, known in (
            ("kind", self.kind, SENTENCEPIECE_KINDS),
            ("normalizer", self.normalizer, NORMALIZERS),
        ):
            if value not in known:
                raise UserError(f"data.tokenizer.{field}={value!r} is unknown; choose one of {', '.join(known)}")


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """One of several corpora that a token store is made of.

    Attributes:
      corpus: see `DataConfig.corpus`.
      text_field: see `DataConfig.text_field`.
      weight: how often training draws from it, against the other sources.
    """

    corpus: str = ""
    text_field: str = "text"
    weight: float = 1.0

    def __post_init__(self):
        if not self.weight > 0:
            raise UserError(f"data.sources: weight={self.weight} must be above 0; leave a source out instead")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """A corpus and how it becomes a token store.

    Attributes:
      corpus: `embedded:en`, `embedded:ko`, or a file, folder or glob of .txt, .txt.gz, .jsonl, .jsonl.gz.
      text_field: the field of a JSON line that holds the text.
      sources: several corpora by name, instead of `corpus`.
      on_bad_document: `stop` at a document that cannot be read or holds no token, or `skip` and count it.
      heldout: a file of held-out documents; empty holds out a share of the corpus instead.
      heldout_share: share of the documents held out, by a threshold on the hash of their content.
      splitter: `punctuation` (sentences end at punctuation) or `line` (every line is a sentence).
      tokenizer: see `TokenizerConfig`.
      store: folder or URL (`gs://...`) under which token stores live, shared by all runs.
      cache_dir: local folder for copies of the stores under a URL, one copy a host.
      workers: processes that prepare the corpus; 0 takes a process a core.
      overfit: 1 repeats the first batch for ever (is the model able to learn at all?).
    """

    corpus: str = "embedded:en"
    text_field: str = "text"
    sources: dict[str, SourceConfig] = dataclasses.field(default_factory=dict)
    on_bad_document: str = "stop"
    heldout: str = ""
    heldout_share: float = 0.05
    splitter: str = "punctuation"
    tokenizer: TokenizerConfig = TokenizerConfig()
    store: str = "~/.cache/bertjax/stores"
    cache_dir: str = "~/.cache/bertjax/remote"
    workers: int = 0
    overfit: int = 0

    def __post_init__(self):
        for field, value, known in (
            ("splitter", self.splitter, SPLITTERS),
            ("on_bad_document", self.on_bad_document, ON_BAD_DOCUMENT),
        ):
            if value not in known:
                raise UserError(f"data.{field}={value!r} is unknown; choose one of {', '.join(known)}")
        if not 0.0 < self.heldout_share < 1.0:
            raise UserError(f"data.heldout_share={self.heldout_share} must lie between 0 and 1")
        if self.workers < 0:
            raise UserError(f"data.workers={self.workers} must be 0 (all cores) or more")
        if self.sources and self.corpus != type(self).corpus:
            raise UserError(f"data.corpus={self.corpus!r} and data.sources are both set; name it as one of the sources")

    @property
    def named_sources(self) -> dict[str, SourceConfig]:
        """The sources sorted by name; `corpus` alone is the source `corpus`."""
        return dict(sorted(self.sources.items())) or {"corpus": SourceConfig(self.corpus, self.text_field)}
