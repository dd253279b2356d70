"""Base class for fine-tuning on tokens: a linear layer on every hidden state (Devlin et al., 2019, 4.2 and 5.3)."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart, label_products
from bertjax.models.label_heads import label_head
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.finetuning.base import LAST, MIX, OF_HEAD, READS, mix_head, mixed
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class TokenObjective(Objective):
    """Predicts a vector per token with a head on the hidden states, see `label_head`.

    Attributes:
      reads: `last`, or `mix`, a learned weighted sum over the embeddings and all layers (`ScalarMix`), without encoder
        dropout. The feature-based approach also freezes the encoder: `optimizer.frozen=["^encoder/"]` (Devlin et al.,
        2019, section 5.3).
      term: name for both the loss term and the head.
      num_outputs: output width of the head.
    """

    reads: str = setting(LAST, kw_only=True, metadata=OF_HEAD, choices=READS)
    term: ClassVar[str]
    num_outputs: ClassVar[int]

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        return mix_head(self.reads) | {self.term: label_head(config, self.num_outputs, on_tokens=True)}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return one output vector per token, float32 [B, T, num_outputs]."""
        hidden_BTD = mixed(model, batch) if self.reads == MIX else model.encode(batch, key).hidden
        return model.head(self.term, hidden_BTD)

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        return (FlopsPart(config, {"tokens": label_products(config, self.num_outputs, on_tokens=True)}),)


def by_record(examples: Ragged, records: list[Record]) -> list[tuple[Record, list[int]]]:
    """Group examples (windows) by record: return (record, example indices sorted by id) pairs.

    Args:
      examples: M examples.
      records: one record per example.
    """
    groups: dict[int, tuple[Record, list[int]]] = {}
    for index in np.argsort(examples.ids, kind="stable").tolist():
        record = records[index]
        # Records are dicts, which cannot be hashed, and equal records must stay separate.
        groups.setdefault(id(record), (record, []))[1].append(index)
    return list(groups.values())
