"""The base of fine-tuning objectives on tokens: a linear layer on each hidden state (Devlin et al. 2019, 4.2, 5.3)."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.finetuning.reading import LAST, MIX, check_reads, mix_head, mixed


@dataclasses.dataclass(frozen=True)
class TokenObjective(Objective):
    """Predicts something of each token by a linear head on its last hidden state.

    The head computes in float32, because answers are ranked by logits that differ little.

    Attributes:
      reads: `last`, or `mix`, the sum of the embeddings and of all layers with learned weights (`ScalarMix`), without
        dropout in the encoder. For features, the encoder is also frozen: `optimizer.frozen=["^encoder/"]` (Devlin et
        al., 2019, section 5.3).
      term: name of its term and head.
      num_outputs: width of the head.
    """

    reads: str = dataclasses.field(default=LAST, kw_only=True)
    term: ClassVar[str]
    num_outputs: ClassVar[int]
    head_settings: ClassVar[tuple[str, ...]] = ("reads",)

    def __post_init__(self):
        check_reads(self.reads)

    @property
    def reads_all_layers(self) -> bool:
        return self.reads == MIX

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        return mix_head(self.reads) | {self.term: HeadSpec(Dense, {"features": self.num_outputs, "dtype": "float32"})}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return float32 [B, T, num_outputs]."""
        hidden_BTD = mixed(model, batch) if self.reads == MIX else model.encode(batch, key).hidden
        return model.head(self.term, hidden_BTD)

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        return (FlopsPart(config, {"tokens": config.width * self.num_outputs}),)


def by_record(examples: Ragged, records: list[Record]) -> list[tuple[Record, list[int]]]:
    """Return each record once, with the indices of the examples that were made from it, in the order of their ids.

    Args:
      examples: M examples.
      records: the record of each of them.
    """
    groups: dict[int, tuple[Record, list[int]]] = {}
    for index in np.argsort(examples.ids, kind="stable").tolist():
        record = records[index]
        groups.setdefault(id(record), (record, []))[1].append(index)
    return list(groups.values())
