"""Word embeddings alone, as data: for blocks that read positions themselves."""

import dataclasses

from bertjax.models.dropout import dropout
from bertjax.models.embeddings import EmbeddingLayer, Embeddings, rows
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class WordEmbeddings(Embeddings):
    """Word embeddings without a norm, as in Llama (Touvron et al., 2023, arXiv 2302.13971)."""

    kind: str = dataclasses.field(init=False, default="words")
    segments: int = 0

    def check(self, config):
        super().check(config)
        if self.segments:
            raise UserError(
                f"model.embeddings.kind=words has no table of segments for model.embeddings.segments={self.segments}; "
                "set it to 0"
            )

    def layer(self, config):
        return WordEmbeddingLayer(config, parent=None)


class WordEmbeddingLayer(EmbeddingLayer):
    """Word embeddings with dropout."""

    def __call__(self, tokens_BT, positions_BT, segments_BT, key, examples_BT=None):
        words_BTE = rows(self.word, tokens_BT).astype(self.config.execution.dtype)
        return dropout(words_BTE, self.config.dropout, key)
