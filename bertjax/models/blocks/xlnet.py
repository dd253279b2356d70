"""XLNet's layer: BERT's with relative positions and segments (Yang et al., 2019, arXiv 1906.08237, section 2).

Attention has no other biases than u, v and w in `bertjax.models.relative`, and words are embedded without a norm. The
layer also computes XLNet's second stream of states, see `bertjax.models.streams`.
"""

import dataclasses

from flax import linen as nn

from bertjax.models.bert import BertLayer, products
from bertjax.models.blocks.base import Block, check_heads
from bertjax.models.blocks.llama import WordEmbeddingLayer
from bertjax.models.config import EncoderConfig
from bertjax.models.embeddings import Embeddings
from bertjax.models.relative import relative_positions
from bertjax.models.streams import Streams
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class XLNetBlock(Block):
    """A post-norm Transformer layer with learned distance and segment terms in the attention logits."""

    kind: str = dataclasses.field(init=False, default="xlnet")

    has_attention_biases = False
    has_attention_terms = True
    streams = Streams

    def check(self, config):
        check_heads(config)
        if config.embeddings.kind != "xlnet":
            raise UserError(
                f"model.block.kind=xlnet has relative positions and segments, and model.embeddings.kind="
                f"{config.embeddings.kind} adds both to words; set model.embeddings.kind=xlnet"
            )
        if config.width % 2:
            raise UserError(f"model.block.kind=xlnet needs an even model.width, not {config.width}")

    def layer(self, config):
        return BertLayer(config, parent=None)

    def positions(self, config, positions_BT, segments_BT):
        return relative_positions(config, segments_BT)

    def products(self, config):
        # Transformer-XL multiplies each query with 2 T distances.
        return products(config, pairs=4)


@dataclasses.dataclass(frozen=True)
class XLNetEmbeddings(Embeddings):
    """Only word embeddings, without a norm. Of `segments` only zero or nonzero matters: attention compares them."""

    kind: str = dataclasses.field(init=False, default="xlnet")

    def check(self, config):
        super().check(config)
        if config.block.streams is not Streams:
            raise UserError(
                "model.embeddings.kind=xlnet leaves positions and segments to the attention of model.block.kind=xlnet, "
                f"not {config.block.kind}; set model.embeddings.kind=bert"
            )

    def layer(self, config):
        return XLNetEmbeddingLayer(config, parent=None)


class XLNetEmbeddingLayer(WordEmbeddingLayer):
    """Word embeddings, and `query`, the embedding of a token that is not seen (section 2.3)."""

    config: EncoderConfig

    def setup(self):
        super().setup()
        init = nn.initializers.truncated_normal(self.config.init_stddev)
        self.query = self.param("query", init, (self.config.embedded_width,))
