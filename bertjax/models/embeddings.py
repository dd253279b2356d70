"""Embeddings as data: what turns tokens into the states before the first layer.

Like a block (`bertjax.models.blocks`), embeddings are a frozen dataclass that holds its settings, makes its Flax module
and checks itself. BERT's are in `bertjax.models.bert`, others beside the block that they were published with.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config.registry import Kind, Union
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class Embeddings(Kind, abc.ABC):
    """Settings of the embeddings. Methods take the `EncoderConfig` that they are a field of.

    Attributes:
      width: E, width of a word embedding; 0 for D.
      segments: number of segment types; 0 for none.
      position_offset: unused rows at the start of the position table.
      task_types: rows in the task embedding table; 0 for none.
      has_position_table: whether positions come from a table, which bounds the example length.
    """

    width: int = setting(0, least=0)
    segments: int = setting(2, least=0)
    position_offset: ClassVar[int] = 0
    task_types: ClassVar[int] = 0
    has_position_table: ClassVar[bool] = False

    def check(self, config: Any) -> None:
        """Raise UserError if the settings conflict with each other, or with the encoder's."""

    @abc.abstractmethod
    def layer(self, config: Any) -> "EmbeddingLayer":
        """Return the module."""

    def output_width(self, config: Any) -> int:
        """Return the width of the module's output, which the MLM head transforms states to; by default E.

        Another width than D is mapped to D by a dense layer of the encoder (Lan et al., 2020, section 3.1; arXiv
        1909.11942).
        """
        return config.embedded_width

    def products(self, config: Any) -> int:
        """Return the multiply-adds per token."""
        return config.embedded_width * config.width if config.has_projection else 0


class EmbeddingLayer(nn.Module):
    """Base class of embedding modules, which share the word table.

    The table's parameter is `word`, see `bertjax.models.vocabulary`. Heads multiply states with it.
    """

    config: Any

    def setup(self):
        config = self.config
        init = nn.initializers.truncated_normal(config.init_stddev)
        self.word = self.param("word", init, (config.padded_vocab_size, config.embedded_width))

    def __call__(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array,
        segments_BT: jax.Array,
        key: jax.Array | None,
        examples_BT: jax.Array | None = None,
    ) -> jax.Array:
        """Return [B, T, C], C as `Embeddings.output_width`; `key` None disables dropout."""
        raise TypeError(f"{type(self).__name__} has no __call__()")


def check_ids(name: str, ids_BT: Any, size: int) -> None:
    """Raise ValueError unless all ids have a row in a table, if their values are known, as they are not under `jit`.

    JAX reads the last row for an id beyond the table, which gives plausible states for the tokens of another model.
    """
    is_known = not isinstance(ids_BT, jax.core.Tracer) and getattr(ids_BT, "is_fully_addressable", True)
    if is_known and (outside := [row for row in np.unique(ids_BT) if not 0 <= row < size]):
        raise ValueError(f"{name} has {outside[0]}, and the model has rows 0 to {size - 1} of these; correct it")


def rows(table_NE: jax.Array, indices_BT: jax.Array) -> jax.Array:
    """Return rows of a table, float32 [B, T, E]."""
    # In float32, gradients of a frequent token sum up unrounded. jnp.asarray: NumPy cannot take traced indices.
    return jnp.asarray(table_NE, jnp.float32)[indices_BT]


EMBEDDINGS = Union(
    "model.embeddings",
    Embeddings,
    default="bert",
    kinds={
        "bert": "bertjax.models.bert:BertEmbeddings",
        "words": "bertjax.models.blocks.llama:WordEmbeddings",
        "mobilebert": "bertjax.models.blocks.mobilebert:MobileBertEmbeddings",
        "xlnet": "bertjax.models.blocks.xlnet:XLNetEmbeddings",
    },
)
