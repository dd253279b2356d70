"""Causal and masked language modeling with one head in one encoder (GPT-BERT).

Charpentier and Samuel (2024), GPT or BERT: why not both?, section 2 (arXiv 2410.24159). The state of a token predicts
the token after it in both: in some batches tokens see only what is before them, in the others tokens are masked and the
encoder reads both sides. Two tasks of a mixture give the share of each.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bertjax.data.batch import PlacedExamples
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import LEFT_TO_RIGHT
from bertjax.models.model import HeadSpec, Model
from bertjax.models.tracing import with_possible_attention
from bertjax.objectives.base import Arrays, Traits
from bertjax.objectives.pretraining.causal import CausalLM
from bertjax.objectives.pretraining.mlm import MaskedLM


@dataclasses.dataclass(frozen=True)
class MaskedNextToken(MaskedLM):
    """Predict each masked token from the state of the token before it. Terms: `mntp`.

    The first token of an example has none before it, so it is never predicted.
    """

    term: ClassVar[str] = "mntp"
    head: ClassVar[str] = CausalLM.term  # shared with `NextToken`
    traits: ClassVar[Traits] = Traits(
        text_term="mntp", sharding_rules=((r"heads/clm/transform/kernel$", PartitionSpec("fsdp", None)),)
    )

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        return super().logits(model, _one_before(batch), key)

    def mlm_logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        return super().mlm_logits(model, _one_before(batch), key)

    def masked_features(
        self, examples: PlacedExamples, tokens: np.ndarray, chosen: np.ndarray
    ) -> dict[str, np.ndarray]:
        # A tokenizer may put no symbol in front. What is not predicted is not hidden either.
        is_first = examples.ragged.token_index == 0
        return super().masked_features(examples, np.where(is_first, examples.ragged.tokens, tokens), chosen & ~is_first)


@dataclasses.dataclass(frozen=True)
class NextToken(CausalLM):
    """Causal language modeling as a task of a bidirectional encoder: for its batches, tokens see only earlier ones."""

    def model(self, config: EncoderConfig) -> Model:
        return super().model(_left_to_right(config))

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        return super().heads(_left_to_right(config))


def _one_before(batch: Arrays) -> Arrays:
    """Return the batch with the columns whose states predict, one before the masked tokens."""
    # Unused places hold column 0. What they read has no weight.
    return {**batch, "mntp_positions_BK": jnp.maximum(batch["mntp_positions_BK"] - 1, 0)}


def _left_to_right(config: EncoderConfig) -> EncoderConfig:
    """Return an encoder with the same parameters that reads from left to right, which kernels do not compute."""
    return with_possible_attention(dataclasses.replace(config, direction=LEFT_TO_RIGHT))
