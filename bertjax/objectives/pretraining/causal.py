"""Causal language modeling: predict each token from the tokens before it (Radford et al., 2018, section 3.1).

This is BERT's left-to-right baseline ("LTR & No NSP", Devlin et al., 2019, section 5.1, arXiv 1810.04805). As in masked
language modeling, special symbols are not predicted, because the end of an example depends on the row length.

GPT-BERT trains it and masked language modeling with one head in one encoder (Charpentier and Samuel, 2024, GPT or BERT:
why not both?, section 2, arXiv 2410.24159). The state of a token predicts the token after it in both: in some batches
tokens see only what is before them (`NextToken`), in the others tokens are masked and the encoder reads both sides
(`MaskedNextToken`). Two tasks of a mixture give the share of each.
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
from bertjax.models.flops import FlopsPart, head_products
from bertjax.models.heads import masked_lm_head
from bertjax.models.kernel_choice import with_possible_attention
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.host import Traits
from bertjax.objectives.losses import classification_term
from bertjax.objectives.pretraining.mlm import MaskedLM, token_baselines, token_weight
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class CausalLM(Objective):
    """Predict the next token at every token; K = T. Terms: `clm`, in nats, so its exponential is the perplexity."""

    term: ClassVar[str] = "clm"
    best_metric: ClassVar[str] = "clm_loss"
    traits: ClassVar[Traits] = Traits(
        text_term="clm", sharding_rules=((r"heads/clm/transform/kernel$", PartitionSpec("fsdp", None)),)
    )

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        if config.direction != LEFT_TO_RIGHT:
            raise UserError(
                f"objective.kind=causal predicts tokens that model.direction={config.direction} lets the model see; "
                f"set model.direction={LEFT_TO_RIGHT}"
            )
        return {self.term: HeadSpec(masked_lm_head(config))}

    def logits(self, model, batch, key=None):
        # Nearly every position is predicted, so the last layer computes all of them.
        return model.head(self.term, model.encode(batch, key).hidden, model.word_VE)

    def flops_parts(self, config):
        return (FlopsPart(config, {"predictions": head_products(config, HeadSpec(masked_lm_head(config)))}),)

    def features(self, examples, draw):
        """Return `clm_labels_BK`, the next tokens, and `clm_weights_BK`, 0 if the next token is special."""
        # Labels are the tokens shifted by one, and the shift must not cross into the next example.
        ragged = examples.ragged
        has_next = ragged.token_index < ragged.spread(ragged.lengths) - 1
        weights = (has_next & ~np.roll(ragged.special, -1)).astype(np.float32)
        flat = {"labels": np.roll(ragged.tokens, -1) * (weights > 0), "weights": weights}
        return {f"{self.term}_{name}_BK": examples.tokens_to_rows(values) for name, values in flat.items()}

    def weights(self, batch):
        return {self.term: token_weight(self.term, batch)}

    def soft_logits(self, logits, batch):
        return logits

    def soft_weights(self, batch):
        return batch[f"{self.term}_weights_BK"]

    def terms_of(self, logits, batch):
        loss, correct = classification_term(logits, batch["clm_labels_BK"], batch["clm_weights_BK"])
        return {self.term: loss}, {"clm_accuracy": (correct, token_weight(self.term, batch))}

    def baselines(self, batch, token_counts):
        return token_baselines(self.term, batch, token_counts)


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
