"""Decontamination: drop documents that share a passage with evaluation files."""

import collections
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from bertjax.data import sources
from bertjax.data.filters import Filter
from bertjax.data.sources import Document
from bertjax.data.text import ngrams
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class Decontamination(Filter):
    """Drops documents that share a word n-gram with evaluation files.

    GPT-3 uses 13-grams too (Brown et al. 2020, arXiv 2005.14165, appendix C), but cuts the passage out of the document;
    here the document is dropped. Words are lower-cased and without punctuation, see `text.ngrams`. Evaluation texts
    with fewer than `ngram` words are not compared.

    In scripts without spaces, two characters (Chinese, Japanese) or four (Thai and others) count as a word: 13 Thai
    characters are three words, which unrelated texts share. Each evaluation text determines the length of its n-grams.

    Attributes:
      against: evaluation files, each any corpus, see `bertjax.data.sources.parts`.
      text_field: field or column that holds their text.
      ngram: words per n-gram.
    """

    kind: str = dataclasses.field(default="decontamination", init=False)
    against: tuple[str, ...] = ()
    text_field: str = "text"
    ngram: int = setting(13, least=1, most=1000)

    def __post_init__(self):
        super().__post_init__()
        if not self.against:
            raise UserError("the filter 'decontamination' compares with nothing; name evaluation files in against")

    def identity(self) -> dict[str, Any]:
        """Return the settings, with a digest of the evaluation files in place of their paths."""
        # Sorted, because the order of the files has no effect on the n-grams.
        parts = [part.fingerprint() for corpus in self.against for part in sources.parts(corpus, self.text_field)]
        digest = hashlib.sha256(" ".join(sorted(parts)).encode()).hexdigest()
        return dataclasses.asdict(self) | {"against": digest}

    def keep(self, document: Document) -> str | None:
        return f"shares {self.ngram} words with evaluation files" if self._shares(document.text) else None

    def _shares(self, text: str) -> bool:
        words, counts = ngrams.word_hashes([text])
        for scale, evaluation in self._evaluation.items():
            hashes = self._hashes(words, counts, scale)
            # `searchsorted` returns len for hashes above all others; clamped, the comparison below rejects them.
            places = np.minimum(np.searchsorted(evaluation, hashes), len(evaluation) - 1)
            if (evaluation[places] == hashes).any():
                return True
        return False

    @functools.cached_property
    def _evaluation(self) -> dict[int, np.ndarray]:
        """Hashes of every n-gram in the evaluation files, by `ngrams.words_a_word` of their text: sorted uint64."""
        hashes = collections.defaultdict(list)
        for corpus in self.against:
            for document in sources.documents(corpus, self.text_field):
                scale = ngrams.words_a_word(document.text)
                hashes[scale].append(self._hashes(*ngrams.word_hashes([document.text]), scale))
        every = {scale: np.unique(np.concatenate(of_texts)) for scale, of_texts in hashes.items()}
        return {scale: known for scale, known in every.items() if len(known)}

    def _hashes(self, words: np.ndarray, counts: np.ndarray, scale: int) -> np.ndarray:
        if counts[0] < scale * self.ngram:
            return np.zeros(0, np.uint64)
        return ngrams.ngram_hashes(words, counts, scale * self.ngram)[0]
