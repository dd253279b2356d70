"""Settings of the data, as frozen dataclasses that validate themselves."""

import dataclasses
import re

from bertjax.config.private_paths import CACHE_DIR, STORE
from bertjax.data.filters import Filter
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import FREE, PLACE, TRAINING_ONLY, check, setting

SPLITTERS = ("punctuation", "line")
# Tolerance for the sum of all `SourceConfig.token_share`, so that thirds can be written as 0.333.
SHARES_TOLERANCE = 0.01
# Upper limit of each number in `NearDuplicates`.
MOST_HASHES = 256
_NAME_ONE = "name a file, a folder or another corpus"

# Policies for bad documents in a corpus and bad records in a labeled file.
ON_BAD = ("stop", "skip")


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """One of several corpora.

    Attributes:
      corpus: file, folder, glob or name of a corpus, see `bertjax.data.sources.parts`.
      text_field: field, column or feature with the document text.
      weight: sampling factor relative to the corpus size; at 2, rows are drawn twice as often as at 1.
      token_share: fraction of all training tokens, instead of a weight; 0 if unset. All token shares sum to 1.
      group_field: field, column or feature that names a document's book, site or the like. Documents with equal values
        are in the same split. If empty, each document is assigned by itself.
    """

    corpus: str = setting("", filled=_NAME_ONE, metadata=PLACE)
    text_field: str = "text"
    weight: float = setting(1.0, above=0, metadata=TRAINING_ONLY)
    token_share: float = setting(0.0, above=0, most=1, metadata=TRAINING_ONLY)
    group_field: str = ""


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Near-duplicate removal by MinHash (`bertjax.data.preparation.duplicates`).

    Two documents whose word n-grams have the Jaccard similarity s are found with probability
    1 - (1 - s^hashes)^buckets. The defaults are datatrove's, which made FineWeb.

    Attributes:
      drop: whether near-duplicates are dropped.
      ngram: words per n-gram; in scripts without spaces a character counts as a word.
      buckets: hash groups per document; near-duplicates share at least one.
      hashes: hashes per group.
    """

    drop: bool = False
    ngram: int = setting(5, least=1, most=MOST_HASHES, needs="drop")
    buckets: int = setting(14, least=1, most=MOST_HASHES, needs="drop")
    hashes: int = setting(8, least=1, most=MOST_HASHES, needs="drop")

    def __post_init__(self):
        check(self, "data.near_duplicates")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """A corpus, and how it is turned into a token store.

    Attributes:
      corpus: `embedded:en`, `embedded:ko`; a file, folder or glob with .txt, .jsonl (each plain, .gz, .zst or .xz) and
        .parquet, local or `gs://...`; `tfds:NAME/CONFIG[:SPLIT]`; `hf:OWNER/NAME[/CONFIG][:SPLIT]` or
        `hf:FOLDER[:SPLIT]`.
      text_field: field, column or feature with the document text; .txt has none.
      sources: several corpora by name, instead of `corpus` and `text_field`.
      smoothing: exponent s, instead of weights: a source with n rows gets n^s / sum(n^s) of all training rows. 1
        keeps the proportions, 0 makes all sources equal. Multilingual BERT used 0.7 (google-research/bert,
        multilingual.md), XLM-R 0.3 (Conneau et al. 2020, arXiv 1911.02116, section 3.1).
      on_bad_document: `stop` at a document that is unreadable or has no token, or `skip` and count it.
      heldout: file with held-out documents; if empty, a part of the corpus is held out. The corpus itself is held out
        and trained on.
      heldout_share: fraction to hold out; a document is held out if its content hash is below this threshold.
      share: fraction of training documents to use, chosen by content hash. A smaller share selects a subset
        of a larger one, and all shares have the same held-out documents and tokenizer.
      filters: named rules that drop or rewrite documents, applied in this order; see `bertjax.data.filters`. Files
        in `heldout` are not filtered.
      near_duplicates: near-duplicate removal.
      splitter: `punctuation` (sentences end at punctuation) or `line` (every line is a sentence).
      store: folder or URL (`gs://...`) that all runs use for their token stores, or a single store.
      cache_dir: local folder for remote stores, one copy per host.
      workers: preparation processes; 0 works in the calling process, None starts one per core.
    """

    corpus: str = setting("embedded:en", filled=_NAME_ONE, metadata=PLACE)
    text_field: str = "text"
    sources: dict[str, SourceConfig] = dataclasses.field(default_factory=dict)
    smoothing: float = setting(1.0, least=0, most=1, metadata=TRAINING_ONLY)
    on_bad_document: str = setting("stop", choices=ON_BAD, metadata=TRAINING_ONLY)
    heldout: str = setting("", metadata=PLACE)
    heldout_share: float = setting(0.05, above=0, below=1)
    share: float = setting(1.0, above=0, most=1, metadata=TRAINING_ONLY)
    filters: dict[str, Filter] = dataclasses.field(default_factory=dict)
    near_duplicates: NearDuplicates = NearDuplicates()
    splitter: str = setting("punctuation", choices=SPLITTERS)
    tokenizer: TokenizerConfig = TokenizerConfig()
    store: str = setting(STORE, metadata=PLACE | FREE)
    cache_dir: str = setting(CACHE_DIR, metadata=PLACE | FREE)
    workers: int | None = setting(None, least=0, metadata=FREE)

    def __post_init__(self):
        check(self, "data")
        # An unset corpus has the default as well, so a corpus that equals the default is no conflict.
        if self.sources and self.corpus != DataConfig.corpus:
            names = ", ".join(self.sources)
            raise UserError(f"data.corpus={self.corpus!r} and data.sources ({names}) are both set; remove one of them")
        for field in ("sources", "filters"):
            for name in getattr(self, field):
                if not re.fullmatch(r"[\w-]+", name):
                    raise UserError(f"data.{field} has the name {name!r}; use only letters, digits, - and _")
        for name, source in self.sources.items():
            check(source, f"data.sources.{name}")
        for name in self.filters:
            # `dropped.jsonl.gz` uses these two as rules for documents that no filter dropped.
            if name in ("duplicate", "near-duplicate"):
                raise UserError(f"data.filters has the name {name!r}, by which others are listed; choose another")
        self._check_mixture()

    def _check_mixture(self) -> None:
        """Raise UserError if weights, smoothing and token shares contradict each other or are invalid."""
        ways = {"data.smoothing": self.smoothing} if self.smoothing != DataConfig.smoothing else {}
        for field in ("weight", "token_share"):
            ways |= {
                f"data.sources.{name}.{field}": getattr(source, field)
                for name, source in self.sources.items()
                if getattr(source, field) != getattr(SourceConfig, field)
            }
        # One entry per kind is enough for the message: the last source that sets it.
        by_kind = {name.rpartition(".")[2]: f"{name}={value}" for name, value in ways.items()}
        if len(by_kind) > 1:
            first, second, *_ = by_kind.values()
            raise UserError(f"{first} and {second} both set how often a source is drawn; remove one of them")
        if "smoothing" in by_kind and len(self.sources) < 2:
            raise UserError(f"data.smoothing={self.smoothing} has no effect on one corpus; name more in data.sources")
        if "token_share" in by_kind:
            for name, source in self.sources.items():
                if not source.token_share:
                    raise UserError(f"data.sources.{name} has no token_share, and others have one; set it")
            total = sum(source.token_share for source in self.sources.values())
            if abs(total - 1.0) > SHARES_TOLERANCE:
                raise UserError(f"data.sources have a token_share of {total:g} together; make them sum to 1")

    @property
    def named_sources(self) -> dict[str, SourceConfig]:
        """The corpora, sorted by name. A single corpus is named `corpus`."""
        if self.sources:
            # Sorted, because document keys number the sources: reordering the settings must not change the store.
            return dict(sorted(self.sources.items()))
        return {"corpus": SourceConfig(self.corpus, self.text_field)}
