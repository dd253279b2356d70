"""What fine-tuning objectives on tokens share: a linear layer on each hidden state (Devlin et al. 2019, 4.2, 5.3)."""

import dataclasses
import functools

import jax
import numpy as np
from flax import linen as nn

from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import Heads
from bertjax.models.layers import Dense
from bertjax.objectives.base import Arrays, encode


class TokenModule(nn.Module):
    """Encoder, and a linear head on the last hidden state of each token."""

    config: EncoderConfig
    term: str
    width: int

    def setup(self):
        self.encoder = Encoder(self.config)
        # In float32: answers are ranked by logits that differ little.
        execution = dataclasses.replace(self.config.execution, dtype="float32")
        exact = dataclasses.replace(self.config, execution=execution)
        self.heads = Heads({self.term: functools.partial(Dense, exact, self.width)})

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Returns float32 [B, T, width]."""
        return self.heads(self.term, encode(self.encoder, batch, key).hidden)


def by_record(examples: Ragged, records: list[Record]) -> list[tuple[Record, list[int]]]:
    """Each record once, with the examples that were made of it; in the order of the examples' ids.

    Args:
      examples: M of them.
      records: that of each of the M.
    """
    found: dict[int, tuple[Record, list[int]]] = {}
    for index in np.argsort(examples.ids, kind="stable").tolist():
        record = records[index]
        found.setdefault(id(record), (record, []))[1].append(index)
    return list(found.values())
