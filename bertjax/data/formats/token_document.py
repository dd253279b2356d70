"""Token-document relation: predict which tokens also occur elsewhere in the document.

(Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Word-aware Pre-training Tasks".)
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats import concatenated
from bertjax.data.formats.runs import DocSentences, RunExamples
from bertjax.data.store import TokenStore
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class TokenDocument(DocSentences):
    """[CLS] text [SEP] from one document. Token label `elsewhere`: 1 if the document has the token again outside the
    text, 0 if not, -1 for special tokens.

    Attributes:
      reach: how far to search before and after the text, in tokens. Searching a whole book would take longer than a
        training step.
    """

    kind: str = dataclasses.field(init=False, default="token_document")
    reach: int = setting(1024, least=1)
    labels: ClassVar[tuple[str, ...]] = ("elsewhere",)

    def open(self, store: TokenStore, split: str, ranges: Path) -> "TokenDocumentExamples":
        return TokenDocumentExamples(store, split, ranges, Vocabulary.of(store.tokenizer), self.reach)


@dataclasses.dataclass(frozen=True)
class TokenDocumentExamples(RunExamples):
    """`Examples` [CLS] text [SEP] from one document with the token label `elsewhere`, int32.

    Attributes:
      reach: as in `TokenDocument`.
    """

    reach: int

    def take(self, indices: np.ndarray) -> Ragged:
        ragged = super().take(indices)
        start, stop, _, document = self._ranges[indices].T
        bounds, documents = self._offsets
        before = np.maximum(start - self.reach, bounds[documents[document]])
        after = np.minimum(stop + self.reach, bounds[documents[document + 1]])

        # Encode (example, token) as one number, so that one `isin` serves all examples.
        lengths, example = (start - before) + (after - stop), np.arange(len(indices))
        outside = np.stack([before, start, stop, after], axis=1).reshape(-1, 2)
        context = self._tokens[concatenated(outside[:, 0], outside[:, 1])]
        size = self.vocabulary.size
        again = np.isin(
            ragged.tokens + size * ragged.token_examples, np.unique(context + size * np.repeat(example, lengths))
        )
        elsewhere = np.where(ragged.special, -1, again).astype(np.int32)
        return dataclasses.replace(ragged, token_labels={"elsewhere": elsewhere})
