"""StructBERT: language structures in pretraining (Wang et al., 2020, arXiv 1908.04577).

The word structural objective (section 2.3.1) shuffles some runs of three unmasked tokens, and the encoder predicts the
original token at each of their positions. It is trained jointly with masked language modeling, using the same head, and
with the sentence structural objective (section 2.3.2), which has three classes.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masked, mask, token_bits, token_shares
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, joined
from bertjax.objectives.host import Traits
from bertjax.objectives.pretraining.mlm import MaskedLM, token_features, token_terms, token_weight
from bertjax.objectives.pretraining.sentence_pairs import SentenceStructurePrediction
from bertjax.objectives.pretraining.span_boundary import number_before
from bertjax.runtime.setting import setting

RUN = 3
ORDERS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
# Capacity for shuffled tokens: the expected number plus this many standard deviations, so that hardly any are dropped.
_DEVIATIONS = 4


@dataclasses.dataclass(frozen=True)
class StructBERT(MaskedLM):
    """Predict masked tokens, the order of shuffled tokens, and how segment B relates to segment A.

    Terms: `mlm`, `order`, `structure`.

    Attributes:
      shuffle_rate: share of three-token runs that are shuffled (section 2.4: 5%). Each unmasked stretch of text is cut
        into runs. One of six orders is drawn, including the original one.
    """

    shuffle_rate: float = setting(0.05, above=0, most=1)
    traits: ClassVar[Traits] = SentenceStructurePrediction.traits
    parts = SentenceStructurePrediction.parts
    baselines = MaskedLM.baselines  # the masked-token term is unchanged, so its baselines still apply

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`mlm`, `order`: logits_BKV at the predicted positions, `structure`: logits, [B, N, 3]}."""
        masked_BK, shuffled_BK = batch["mlm_positions_BK"], batch["order_positions_BK"]
        encoded = model.encode(batch, key, jnp.concatenate([masked_BK, shuffled_BK], axis=1))
        # Both word objectives share one head, so one vocabulary matmul covers both.
        logits = model.head("mlm", encoded.hidden, model.word_VE)
        return {
            "mlm": logits[:, : masked_BK.shape[1]],
            "order": logits[:, masked_BK.shape[1] :],
            **{part.term: part.logits(model, encoded) for part in self.parts},
        }

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return features of the other two objectives, `order_{positions,labels,weights}_BK` and `order_dropped_B`."""
        masked = mask(examples, draw, self.masking)
        sources, shuffled = self._shuffle(examples, draw, masked)
        features = self.masked_features(examples, masked.tokens[sources], masked.chosen)
        return features | token_features("order", examples, shuffled, self.order_capacity(examples.seq_len))

    def order_capacity(self, seq_len: int) -> int:
        """Return K, the number of places for shuffled tokens in a row: a multiple of 8."""
        runs = seq_len / RUN
        most = runs * self.shuffle_rate + _DEVIATIONS * math.sqrt(runs * self.shuffle_rate * (1.0 - self.shuffle_rate))
        return 8 * math.ceil(min(RUN * most, seq_len) / 8)

    def _shuffle(self, examples: PlacedExamples, draw: Draw, masked: Masked) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of the token that moves to each position, int64 [n], and whether its run was shuffled."""
        ragged = examples.ragged
        heads = heads_of_runs(~ragged.special & ~masked.chosen)
        # One decision per run, from a hash of its first token: it does not depend on how batches are split.
        heads = heads[token_shares(ragged, draw, "shuffle/choose", heads) < self.shuffle_rate]
        orders = ORDERS[token_bits(ragged, draw, "shuffle/order", heads) % len(ORDERS)]
        sources, shuffled = np.arange(len(ragged.tokens)), np.zeros(len(ragged.tokens), bool)
        for place in range(RUN):
            # Position `place` in each run receives the token at position orders[place].
            sources[heads + place] = heads + orders[:, place]
            shuffled[heads + place] = True
        return sources, shuffled

    def weights(self, batch):
        return super().weights(batch) | {"order": token_weight("order", batch)}

    def terms_of(self, logits, batch):
        return joined(super().terms_of(logits, batch), token_terms("order", logits, batch))


def heads_of_runs(eligible: np.ndarray) -> np.ndarray:
    """Cut stretches of eligible tokens (bool [n]) into runs of three and return each run's first index; int64.

    Special symbols are never eligible, so no run crosses examples or segments.
    """
    is_last = eligible & (number_before(eligible) % RUN == RUN - 1)
    return np.flatnonzero(is_last) - (RUN - 1)
