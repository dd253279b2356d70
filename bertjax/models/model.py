"""The model of every objective: an encoder, heads given as data, and for ELECTRA a second encoder.

An objective computes on it in plain functions of the bound model:

    def logits(model: Model, batch: dict, key: jax.Array | None = None) -> jax.Array:
        encoded = model.encode(batch, key, batch["mlm_positions_BK"])
        return model.head("mlm", encoded.hidden, model.word_VE)

    model = Model(config, {"mlm": HeadSpec(MaskedLMHead)})
    params = model.lazy_init(key, batch, method=logits)["params"]
    logits_BKV = model.apply({"params": params}, batch, key, method=logits)
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
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
      kind: class of its Flax module, which takes an `EncoderConfig` first.
      options: {name: value} of the other fields of `kind`.
      on_generator: whether it reads hidden states of the generator, so that it is built for the generator's config.
    """

    kind: type[nn.Module]
    options: Mapping[str, Any] = FrozenDict()
    on_generator: bool = False

    def __post_init__(self):
        object.__setattr__(self, "options", FrozenDict(self.options))  # hashable, as every field of a Flax module


class Generator(nn.Module):
    """A second encoder that reads the embeddings of the first (Clark et al., 2020, section 3.2)."""

    config: EncoderConfig
    embeddings: nn.Module

    def setup(self):
        self.encoder = Encoder(self.config, self.embeddings)


class Model(nn.Module):
    """An encoder with heads. Its parameters are `encoder/...`, `heads/<name>/...` and `generator/encoder/...`.

    Attributes:
      config: architecture of the encoder.
      heads: {name: head}.
      generator: architecture of the generator; None for a model without one.
      computes_all: whether the last layer computes all tokens although only some are read, for those who capture it.
    """

    config: EncoderConfig
    heads: Mapping[str, HeadSpec] = FrozenDict()
    generator: EncoderConfig | None = None
    computes_all: bool = False

    def __post_init__(self):
        self.heads = FrozenDict(self.heads)
        super().__post_init__()

    def setup(self):
        self.encoder = Encoder(self.config)
        if self.generator is not None:
            self._generator = Generator(self.generator, self.encoder.embeddings, name="generator")
        self._heads = Heads({name: self._constructor(spec) for name, spec in self.heads.items()}, name="heads")

    def _constructor(self, spec: HeadSpec) -> Callable[[], nn.Module]:
        return functools.partial(spec.kind, self.generator if spec.on_generator else self.config, **spec.options)

    def encode(
        self,
        batch: Arrays,
        key: jax.Array | None = None,
        read: jax.Array | None = None,
        *,
        rank_BT: jax.Array | None = None,
        memory_BT: jax.Array | None = None,
    ) -> Encoded:
        """Run the encoder on a core batch.

        Args:
          batch: core arrays.
          key: for dropout; None for no dropout.
          read: int [B, K], the positions whose hidden states are returned, with the pooled [CLS]; None for all.
          rank_BT, memory_BT: order of prediction and memory of XLNet, see `Encoder`.
        """
        if self.computes_all and read is not None and rank_BT is None:
            encoded = _encode(self.encoder, batch, key, None)
            return encoded._replace(hidden=jnp.take_along_axis(encoded.hidden, read[..., None], axis=1))
        return _encode(self.encoder, batch, key, read, rank_BT=rank_BT, memory_BT=memory_BT)

    def encode_by_generator(
        self, batch: Arrays, key: jax.Array | None = None, read: jax.Array | None = None
    ) -> Encoded:
        """Run the generator on a core batch; the arguments are those of `encode`."""
        if self.generator is None:
            raise ValueError("this model has no generator; build it with Model(..., generator=...)")
        return _encode(self._generator.encoder, batch, key, read)

    def head(self, name: str, *inputs: jax.Array) -> Any:
        """Return what the head of a name computes from its inputs."""
        return self._heads(name, *inputs)

    @property
    def word_VE(self) -> jax.Array:
        """The word embeddings, which the heads over the vocabulary multiply by."""
        return self.encoder.embeddings.word


def _encode(encoder: Encoder, batch: Arrays, key: jax.Array | None, read_BK: jax.Array | None, **order) -> Encoded:
    return encoder(
        batch["tokens_BT"],
        batch["segments_BT"],
        batch["positions_BT"],
        batch["examples_BT"],
        batch["summary_positions_BN"],
        read_BK=read_BK,
        key=key,
        **order,
    )
