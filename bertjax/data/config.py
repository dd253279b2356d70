"""Settings of the data: frozen dataclasses that check themselves."""

import dataclasses
import re

from bertjax.data.filters.base import Filter
from bertjax.errors import UserError

SENTENCEPIECE_KINDS = ("unigram", "bpe", "char")
HUGGINGFACE_KINDS = ("wordpiece", "byte_bpe")
NORMALIZERS = ("nfc", "nfkc")
SPLITTERS = ("punctuation", "line")
# Fields of a tokenizer that have an effect with some kinds only.
ONLY_FOR = {
    "lowercase": ("wordpiece",),
    "byte_fallback": SENTENCEPIECE_KINDS,
    "character_coverage": (*SENTENCEPIECE_KINDS, "wordpiece"),
    "keep": (*SENTENCEPIECE_KINDS, "wordpiece"),
    "keep_file": (*SENTENCEPIECE_KINDS, "wordpiece"),
}


# Of each kind in `NearDuplicates`.
MOST_HASHES = 256

# What to do about a bad document of a corpus, or a bad record of a labeled file.
ON_BAD = ("stop", "skip")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer to train on the corpus, or an existing `model`.

    Attributes:
      kind: `unigram`, `bpe` or `char` (SentencePiece), `wordpiece` or `byte_bpe` (Hugging Face tokenizers).
      vocab_size: number of pieces, special symbols and byte pieces included; for `char` the largest number.
      normalizer: `nfc` (NFC and nothing else) or `nfkc` (NFKC, which turns U+2460 into 1).
      lowercase: lower case, without accents (WordPiece only).
      byte_fallback: characters outside the vocabulary become bytes instead of [UNK] (SentencePiece only).
      character_coverage: share of the characters of the sample that the vocabulary covers; `byte_bpe` covers all.
      keep: characters that are pieces however rare they are, such as `①㎡甲`; `byte_bpe` has no need of them.
      keep_file: path of a UTF-8 text whose characters are kept in the same way.
      sample_characters: characters that the tokenizer trains on at most, a fixed sample of the training split.
      model: path of an existing SentencePiece `.model`, WordPiece `vocab.txt` or Hugging Face `tokenizer.json`, or of
        the `tokenizer` folder of a run or export. The other fields then have no effect, except `lowercase` for a
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
        for field in dataclasses.fields(self):
            kinds, value = ONLY_FOR.get(field.name, (self.kind,)), getattr(self, field.name)
            if not self.model and self.kind not in kinds and value != field.default:
                remedy = f"remove it, or choose one of {', '.join(kinds)}"
                raise UserError(f"data.tokenizer.{field.name}={value} has no effect with kind={self.kind}; {remedy}")


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """One of several corpora.

    Attributes:
      corpus: see `bertjax.data.sources.parts`.
      text_field: the field, column or feature that holds a document.
      weight: factor by which rows of this corpus are drawn more often than in proportion to their number.
    """

    corpus: str = ""
    text_field: str = "text"
    weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Documents that differ in little, found by MinHash (`bertjax.data.preparation.minhash`).

    Two documents whose n-grams of words have the Jaccard similarity s are found with probability
    1 - (1 - s^hashes)^buckets. The defaults are those of datatrove, with which FineWeb was made.

    Attributes:
      drop: whether near-duplicates are dropped.
      ngram: number of words in an n-gram; a character of a script without spaces counts as a word.
      buckets: groups of hashes; two documents are near-duplicates if one group is equal.
      hashes: number of hashes in a group.
    """

    drop: bool = False
    ngram: int = 5
    buckets: int = 14
    hashes: int = 8

    def __post_init__(self):
        for name in ("ngram", "buckets", "hashes"):
            value = getattr(self, name)
            if not 1 <= value <= MOST_HASHES:
                raise UserError(f"data.near_duplicates.{name}={value} must be between 1 and {MOST_HASHES}")
            if not self.drop and value != getattr(type(self), name):
                raise UserError(
                    f"data.near_duplicates.{name}={value} has no effect with drop=False; set data.near_duplicates.drop"
                )


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """A corpus and how it becomes a token store.

    Attributes:
      corpus: `embedded:en`, `embedded:ko`; a file, folder or glob of .txt, .jsonl (each plain, .gz, .zst or .xz) and
        .parquet, local or `gs://...`; `tfds:NAME/CONFIG[:SPLIT]`; `hf:OWNER/NAME[/CONFIG][:SPLIT]` or
        `hf:FOLDER[:SPLIT]`.
      text_field: the field, column or feature that holds a document; .txt has none.
      sources: several corpora by name, in place of `corpus` and `text_field`.
      smoothing: exponent s in place of the weights of several sources: a source of n rows has n^s / (sum of all n^s) of
        the rows of training. 1 leaves their sizes as they are, and 0 makes all sources equal. Multilingual BERT has 0.7
        (google-research/bert, multilingual.md), XLM-R 0.3 (Conneau et al. 2020, arXiv 1911.02116, section 3.1).
      on_bad_document: `stop` at a document that cannot be read or holds no token, or `skip` it and count it.
      heldout: a file of held-out documents; if empty, a share of the corpus is held out.
      heldout_share: share of the documents that are held out, by a threshold on the hash of their content.
      share: share of the training documents that are used, chosen by the hash of their content. A smaller share is
        part of a larger one, and all shares have the same held-out documents and the same tokenizer.
      filters: rules by name that drop or rewrite documents, applied in this order; see `bertjax.data.filters`. Files of
        `heldout` are not filtered.
      near_duplicates: whether and how documents that differ in little are dropped.
      splitter: `punctuation` (sentences end at punctuation) or `line` (every line is a sentence).
      store: folder or URL (`gs://...`) of the token stores, shared by all runs, or of one store.
      cache_dir: local folder for copies of stores under a URL, one copy per host.
      workers: processes that prepare the corpus; 0 works in the calling process, None starts one per core.
      overfit: 1 repeats the first batch forever, to test whether the model can learn at all.
    """

    corpus: str = "embedded:en"
    text_field: str = "text"
    sources: dict[str, SourceConfig] = dataclasses.field(default_factory=dict)
    smoothing: float = 1.0
    on_bad_document: str = "stop"
    heldout: str = ""
    heldout_share: float = 0.05
    share: float = 1.0
    filters: dict[str, Filter] = dataclasses.field(default_factory=dict)
    near_duplicates: NearDuplicates = NearDuplicates()
    splitter: str = "punctuation"
    tokenizer: TokenizerConfig = TokenizerConfig()
    store: str = "~/.cache/bertjax/stores"
    cache_dir: str = "~/.cache/bertjax/remote"
    workers: int | None = None
    overfit: int = 0

    def __post_init__(self):
        if self.splitter not in SPLITTERS:
            raise UserError(f"data.splitter={self.splitter!r} is unknown; choose one of {', '.join(SPLITTERS)}")
        if self.on_bad_document not in ON_BAD:
            known = ", ".join(ON_BAD)
            raise UserError(f"data.on_bad_document={self.on_bad_document!r} is unknown; choose one of {known}")
        if not 0.0 < self.heldout_share < 1.0:
            raise UserError(f"data.heldout_share={self.heldout_share} must be between 0 and 1")
        if not 0.0 < self.share <= 1.0:
            raise UserError(f"data.share={self.share} must be above 0 and at most 1; 1 uses all training documents")
        if not self.corpus:
            raise UserError("data.corpus is empty; name a file, a folder or another corpus")
        if self.overfit not in (0, 1):
            raise UserError(f"data.overfit={self.overfit} must be 1, which repeats the first batch, or 0")
        if self.workers is not None and self.workers < 0:
            raise UserError(f"data.workers={self.workers} must not be negative; leave it out for one process per core")
        if self.sources and self.corpus != DataConfig.corpus:
            names = ", ".join(self.sources)
            raise UserError(f"data.corpus={self.corpus!r} and data.sources ({names}) are both set; remove one of them")
        for name, source in self.sources.items():
            if not re.fullmatch(r"[\w-]+", name):
                raise UserError(f"data.sources has the name {name!r}; use only letters, digits, - and _")
            if not source.corpus:
                raise UserError(f"data.sources.{name}.corpus is not set; name a file, a folder or another corpus")
            if not 0 < source.weight < float("inf"):
                raise UserError(f"data.sources.{name}.weight={source.weight} must be above 0")
        for name in self.filters:
            if not re.fullmatch(r"[\w-]+", name):
                raise UserError(f"data.filters has the name {name!r}; use only letters, digits, - and _")
            if name in ("duplicate", "near-duplicate"):
                raise UserError(
                    f"data.filters has the name {name!r}, by which other documents are listed; choose another"
                )
        self._check_smoothing()

    def _check_smoothing(self) -> None:
        if not 0.0 <= self.smoothing <= 1.0:
            raise UserError(
                f"data.smoothing={self.smoothing} must be between 0 and 1; 1 draws sources by size, 0 draws all equally"
            )
        if self.smoothing == DataConfig.smoothing:
            return
        if len(self.sources) < 2:
            raise UserError(
                f"data.smoothing={self.smoothing} has no effect on one corpus; name several in data.sources"
            )
        for name, source in self.sources.items():
            if source.weight != SourceConfig.weight:
                raise UserError(
                    f"data.smoothing={self.smoothing} and data.sources.{name}.weight={source.weight} both set how "
                    "often a source is drawn; remove one of them"
                )

    @property
    def named_sources(self) -> dict[str, SourceConfig]:
        """The corpora by name, sorted; a single one is named `corpus`."""
        if self.sources:
            return dict(sorted(self.sources.items()))
        return {"corpus": SourceConfig(self.corpus, self.text_field)}
