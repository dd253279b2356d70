"""StructBERT: language structures in pretraining (Wang et al., 2020, arXiv 1908.04577).

The word structural objective (section 2.2): of the text that was not masked, some runs of three tokens are shuffled,
and the encoder says of each of their places which token stood there. It is trained with masked language modeling, on
the same head, and with the sentence structural objective (section 2.3), which has three classes.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masked, gather_masked
from bertjax.data.masking.base import token_bits, token_shares
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays, encode
from bertjax.objectives.losses import classification_term
from bertjax.objectives.pretraining.pairs import MaskedPairModule
from bertjax.objectives.pretraining.structure import SentenceStructurePrediction

RUN = 3
ORDERS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
# Places for what is shuffled: its mean and so many deviations.
_DEVIATIONS = 4


class StructBERTModule(MaskedPairModule):
    """The same encoder and heads; that for masked tokens restores the order, too."""

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`mlm`, `order`: logits_BKV at the predicted positions, `<term>`: logits, [B, N, classes]}."""
        masked_BK, shuffled_BK = batch["mlm_positions_BK"], batch["order_positions_BK"]
        encoded = encode(self.encoder, batch, key, jnp.concatenate([masked_BK, shuffled_BK], axis=1))
        logits = self.heads("mlm", encoded.hidden, self.encoder.embeddings.word)
        return {
            "mlm": logits[:, : masked_BK.shape[1]],
            "order": logits[:, masked_BK.shape[1] :],
            self.term: self.heads(self.term, encoded.pooled_BND),
        }


@dataclasses.dataclass(frozen=True)
class StructBERT(SentenceStructurePrediction):
    """Masked tokens, the order of shuffled ones, and how segment B relates to segment A. Terms: `mlm`, `order`,
    `structure`.

    Attributes:
      shuffle_rate: share of the runs of three tokens that are shuffled (section 2.2: 5%). Runs are cut from each
        stretch of text without masks; one of six orders is drawn, their own among them.
    """

    shuffle_rate: float = 0.05

    def __post_init__(self):
        if not 0.0 < self.shuffle_rate <= 1.0:
            raise UserError(f"objective.shuffle_rate={self.shuffle_rate} must be above 0 and at most 1")

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return StructBERTModule(encoder, self.term, self.classes)

    def features_of(self, examples: PlacedExamples, draw: Draw, masked: Masked) -> dict[str, np.ndarray]:
        """Besides those of the other two objectives, `order_{positions,labels,weights}_BK` and `order_dropped_B`."""
        sources, shuffled = self._shuffle(examples, draw, masked)
        features = super().features_of(examples, draw, dataclasses.replace(masked, tokens=masked.tokens[sources]))
        found = gather_masked(examples, shuffled, self.order_capacity(examples.seq_len))
        return features | {f"order_{name}": values for name, values in found.items()}

    def order_capacity(self, seq_len: int) -> int:
        """K of the shuffled tokens of a row: a multiple of 8."""
        runs = seq_len / RUN
        most = runs * self.shuffle_rate + _DEVIATIONS * math.sqrt(runs * self.shuffle_rate * (1.0 - self.shuffle_rate))
        return 8 * math.ceil(min(RUN * most, seq_len) / 8)

    def _shuffle(self, examples: PlacedExamples, draw: Draw, masked: Masked) -> tuple[np.ndarray, np.ndarray]:
        """(for each place the token that comes to it, int64 [n]; whether its run was shuffled, bool [n])."""
        ragged = examples.ragged
        heads = heads_of_runs(~ragged.special & ~masked.chosen)
        heads = heads[token_shares(ragged, draw, "shuffle/choose", heads) < self.shuffle_rate]
        orders = ORDERS[token_bits(ragged, draw, "shuffle/order", heads) % len(ORDERS)]
        sources, shuffled = np.arange(len(ragged.tokens)), np.zeros(len(ragged.tokens), bool)
        for place in range(RUN):
            sources[heads + place] = heads + orders[:, place]
            shuffled[heads + place] = True
        return sources, shuffled

    def weights(self, batch):
        return super().weights(batch) | {"order": jnp.sum(batch["order_weights_BK"])}

    def terms_of(self, logits, batch):
        sums, metrics = super().terms_of(logits, batch)
        weights_BK = batch["order_weights_BK"]
        loss, right = classification_term(logits["order"], batch["order_labels_BK"], weights_BK)
        dropped = jnp.sum(batch["order_dropped_B"]).astype(jnp.float32)
        placed = jnp.sum(weights_BK)
        return sums | {"order": loss}, metrics | {
            "order_accuracy": (right, placed),
            "order_dropped": (dropped, placed + dropped),
        }


def heads_of_runs(eligible: np.ndarray) -> np.ndarray:
    """Where runs of three begin, if each stretch of eligible tokens (bool [n]) is cut into such; int64 [runs].

    A special symbol is never eligible, so no run crosses examples or segments.
    """
    index = np.arange(len(eligible))
    last_other = np.maximum.accumulate(np.where(eligible, -1, index))
    within = index - last_other - 1
    is_last = eligible & (within % RUN == RUN - 1)
    return np.flatnonzero(is_last) - (RUN - 1)
