"""Model: an encoder, its heads (given as data) and, for ELECTRA, a second encoder. Every objective uses this class.

An objective is a set of plain functions on the bound model:

    def logits(model: Model, batch: dict, key: jax.Array | None = None) -> jax.Array:
        encoded = model.encode(batch, key, batch["mlm_positions_BK"])
        return model.head("mlm", encoded.hidden, model.word_VE)

    model = Model(config, {"mlm": HeadSpec(MaskedLMHead)})
    params = model.lazy_init(key, batch, method=logits)["params"]
    logits_BKV = model.apply({"params": params}, batch, key, method=logits)
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import FrozenDict

from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoded, Encoder
from bertjax.models.heads import Heads

Arrays = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class HeadSpec:
    """A head as data.

    Attributes:
      kind: Flax module class whose first field is an `EncoderConfig`.
      options: {name: value} for the other fields of `kind`.
      on_generator: whether the head reads the generator's hidden states and is built with the generator's config.
      reads_all_layers: whether the head reads the states of all layers (`bertjax.models.mixing.encode_layers`).
    """

    kind: type[nn.Module]
    options: Mapping[str, Any] = FrozenDict()
    on_generator: bool = False
    reads_all_layers: bool = False

    def __post_init__(self):
        object.__setattr__(self, "options", FrozenDict(self.options))  # hashable, as every field of a Flax module


class Generator(nn.Module):
    """A second encoder (ELECTRA; Clark et al., 2020, section 3.2), with the embeddings of the first one or its own."""

    config: EncoderConfig
    embeddings: nn.Module | None

    def setup(self):
        self.encoder = Encoder(self.config, self.embeddings)


class Model(nn.Module):
    """An encoder with heads. Parameters are in `encoder/...`, `heads/<name>/...` and `generator/encoder/...`.

    Attributes:
      heads: {name: head}.
      generator: generator architecture; None for a model without one.
      shares_embeddings: whether the generator reads the encoder's embeddings. Otherwise it has its own.
      computes_all: run the last layer on all tokens even if only some are read, so that they can be captured.
    """

    config: EncoderConfig
    heads: Mapping[str, HeadSpec] = FrozenDict()
    generator: EncoderConfig | None = None
    shares_embeddings: bool = True
    computes_all: bool = False

    def __post_init__(self):
        self.heads = FrozenDict(self.heads)
        super().__post_init__()

    def setup(self):
        self.encoder = Encoder(self.config)
        if self.generator is not None:
            shared = self.encoder.embeddings if self.shares_embeddings else None
            self._generator = Generator(self.generator, shared, name="generator")
        kinds = {
            name: functools.partial(spec.kind, self.generator if spec.on_generator else self.config, **spec.options)
            for name, spec in self.heads.items()
        }
        self._heads = Heads(kinds, name="heads")

    def encode(
        self, batch: Arrays, key: jax.Array | None = None, read: jax.Array | None = None, streams: Any = None
    ) -> Encoded:
        """Run the encoder on a batch.

        Args:
          batch: arrays that every objective's batch has, see `_inputs_of`.
          key: dropout key; None disables dropout.
          read: int [B, K], positions whose hidden states are returned (the pooled [CLS] always is); None for all.
          streams: the order in which XLNet or MPNet predicts tokens, see `Encoder`.
        """
        # A query stream exists only at the positions that are read, so it cannot compute all.
        if self.computes_all and read is not None and streams is None:
            encoded = self.encoder(**_inputs_of(batch), key=key)
            return encoded._replace(hidden=jnp.take_along_axis(encoded.hidden, read[..., None], axis=1))
        return self.encoder(**_inputs_of(batch), read_BK=read, streams=streams, key=key)

    def encode_by_generator(
        self, batch: Arrays, key: jax.Array | None = None, read: jax.Array | None = None
    ) -> Encoded:
        """Run the generator on a batch; the arguments are the same as in `encode`."""
        return self._generator.encoder(**_inputs_of(batch), read_BK=read, key=key)

    @property
    def reads_all_layers(self) -> bool:
        """Whether a head reads the states of all layers."""
        return any(spec.reads_all_layers for spec in self.heads.values())

    def head(self, name: str, *inputs: jax.Array) -> Any:
        """Apply the named head to its inputs."""
        return self._heads(name, *inputs)

    @property
    def word_VE(self) -> jax.Array:
        """Word embeddings, which vocabulary heads reuse as output weights."""
        return self.encoder.embeddings.word

    @property
    def generator_word_VE(self) -> jax.Array:
        """Word embeddings of the generator."""
        return self._generator.encoder.embeddings.word


def _inputs_of(batch: Arrays) -> Arrays:
    """Return the encoder's first arguments by name, all but the order in which XLNet predicts."""
    names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")
    return {name: batch[name] for name in names}
