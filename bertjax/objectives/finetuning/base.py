"""Base classes for fine-tuning: a linear layer on pooled hidden states, or on each of them (Devlin et al., 2019).

Heads read the last hidden states, or a learned mix over all layers (as in ELMo).
"""

import dataclasses
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.labeled.texts import IS_LABELED
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout, split
from bertjax.models.flops import FlopsPart, label_products, pooler_products
from bertjax.models.mixing import ScalarMix, encode_layers
from bertjax.models.model import HeadSpec, Model
from bertjax.models.other_heads import label_head
from bertjax.models.pooling import mean_of_examples
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.host import Traits
from bertjax.runtime.setting import TRAINING_ONLY, setting

READS = LAST, MIX = ("last", "mix")
# Metadata of settings that decide how a head reads hidden states. A teacher in distillation keeps its own.
OF_HEAD = {"is_of_head": True}


POOLINGS = CLS, MEAN, LATE = ("cls", "mean", "late")


class LabelObjective(Objective):
    """Predicts labels with a head on the hidden states, see `label_head`.

    Attributes:
      reads: `last`, or `mix`, a learned weighted sum over the embeddings and all layers (`ScalarMix`), without encoder
        dropout. The feature-based approach also freezes the encoder: `optimizer.frozen=["^encoder/"]` (Devlin et al.,
        2019, section 5.3).
      term: name for both the loss term and the head.
      on_tokens: whether tokens have labels, not examples.
    """

    reads: str
    term: ClassVar[str]
    on_tokens: ClassVar[bool] = False

    @property
    def num_outputs(self) -> int:
        """Output width of the head."""
        return len(self.classes)

    def heads(self, config):
        mix = {MIX: HeadSpec(ScalarMix, reads_all_layers=True)} if self.reads == MIX else {}
        return mix | {self.term: label_head(config, self.num_outputs, self.on_tokens)}

    def hidden(self, model: Model, batch: Arrays, key: jax.Array | None) -> jax.Array:
        """Device: return the states that the head reads, [B, T, D]; a mix is float32."""
        return model.head(MIX, encode_layers(model, batch)) if self.reads == MIX else model.encode(batch, key).hidden

    def weights(self, batch):
        return {self.term: jnp.sum(batch["weights_BN"])}

    def soft_logits(self, logits, batch):
        return logits

    def soft_weights(self, batch):
        return batch.get("soft_weights_BN", batch["weights_BN"])


@dataclasses.dataclass(frozen=True)
class TokenObjective(LabelObjective):
    """Predicts a vector per token with a head on the hidden states."""

    reads: str = setting(LAST, kw_only=True, metadata=OF_HEAD | TRAINING_ONLY, choices=READS)
    on_tokens: ClassVar[bool] = True

    def logits(self, model, batch, key=None):
        """Return one output vector per token, float32 [B, T, num_outputs]."""
        return model.head(self.term, self.hidden(model, batch, key))

    def flops_parts(self, config):
        return (FlopsPart(config, {"tokens": label_products(config, self.num_outputs, on_tokens=True)}),)


@dataclasses.dataclass(frozen=True)
class ExampleObjective(LabelObjective):
    """Predicts one label per example with dropout and a head on pooled hidden states.

    Attributes:
      pooling: `cls`, the pooled [CLS] (Devlin et al., 2019); `mean`, the mean over the example's hidden states, without
        a pooler (Reimers & Gurevych, 2019, arXiv 1908.10084); or `late`, the mean over the head's outputs for its
        tokens (Boizard et al., 2025, EuroBERT, arXiv 2503.05500). With `reads="mix"`, `cls` is the mean too.
    """

    pooling: str = setting(CLS, kw_only=True, metadata=OF_HEAD | TRAINING_ONLY, choices=POOLINGS)
    reads: str = setting(LAST, kw_only=True, metadata=OF_HEAD | TRAINING_ONLY, choices=READS)
    traits: ClassVar[Traits] = Traits(labels=("label",))

    @property
    def reads_pooler(self) -> bool:
        return self.pooling == CLS and self.reads != MIX

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return one output vector per example, float32 [B, N, num_outputs]."""
        encoder_key, head_key = (None, None) if key is None else split(key, 2)
        if self.pooling == LATE:
            return _mean(self.of_head(model, self.hidden(model, batch, encoder_key), head_key), batch)
        return self.of_head(model, self.pooled(model, batch, encoder_key), head_key)

    def pooled(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return one vector per example, which the head reads unless `pooling` is late; [B, N, D]."""
        if self.reads_pooler:
            # The pooler reads only [CLS], so the last layer computes no other position.
            nothing_more_BK = jnp.zeros((len(batch["tokens_BT"]), 0), jnp.int32)
            return cast(jax.Array, model.encode(batch, key, nothing_more_BK).pooled_BND)
        return _mean(self.hidden(model, batch, key), batch)

    def of_head(self, model: Model, states: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Return the head's output for vectors [..., D], after dropout; float32 [..., num_outputs]."""
        return model.head(self.term, dropout(states, model.config.dropout, key))

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        products = label_products(config, self.num_outputs)
        if self.reads_pooler:
            return (FlopsPart(config, {"examples": pooler_products(config) + products}, read=0.0),)
        return (FlopsPart(config, {"tokens" if self.pooling == LATE else "examples": products}),)

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return `labels_BN` and `weights_BN` (0 if unlabeled); with unlabeled examples also `soft_weights_BN`."""
        (name,) = self.traits.labels
        labels = examples.ragged.labels[name]
        weights = {"weights_BN": np.ones(len(labels), np.float32)}
        if IS_LABELED in examples.ragged.labels:
            # Unlabeled texts count only in teacher losses, which use the soft weights.
            is_labeled = examples.ragged.labels[IS_LABELED].astype(np.float32)
            weights = {"weights_BN": is_labeled, "soft_weights_BN": weights["weights_BN"]}
        return {name: examples.examples_to_rows(array) for name, array in ({"labels_BN": labels} | weights).items()}


def _mean(states_BTD: jax.Array, batch: Arrays) -> jax.Array:
    """Return the mean over each example's tokens, [B, N, D]."""
    return mean_of_examples(states_BTD, batch["examples_BT"], batch["example_ids_BN"].shape[1])
