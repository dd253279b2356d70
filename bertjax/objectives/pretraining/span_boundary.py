"""SpanBERT: span masking with the span boundary objective (Joshi et al., 2020, arXiv 1907.10529, section 3.2).

Each token of a masked span is predicted twice: from its own hidden state, as ever, and from the hidden states of the
two tokens around the span and its place in it, y = f(x_before, x_after, p_place). Both losses are added. Spans that
adjoin each other are one. The examples are single sequences (section 3.3): `examples.kind="full_sentences"`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masked, Masking, SpanMasking
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import Heads, MaskedLMHead, SpanBoundaryHead
from bertjax.objectives.base import Arrays, encode
from bertjax.objectives.losses import classification_term
from bertjax.objectives.pretraining.mlm import MaskedLM

# As the authors have it, for the length of longest spans and for the width of the embeddings of places.
LONGEST, PLACE_WIDTH = 20, 200


class SpanBoundaryModule(nn.Module):
    """Encoder, the masked-LM head and the span boundary head, on the same word embeddings."""

    config: EncoderConfig
    longest: int

    def setup(self):
        self.encoder = Encoder(self.config)
        self.heads = Heads(
            {
                "mlm": functools.partial(MaskedLMHead, self.config),
                "sbo": functools.partial(SpanBoundaryHead, self.config, self.longest, PLACE_WIDTH),
            }
        )

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`mlm`, `sbo`: logits_BKV at the predicted positions}."""
        wanted = [batch[f"{name}_positions_BK"] for name in ("mlm", "sbo_left", "sbo_right")]
        hidden = encode(self.encoder, batch, key, jnp.concatenate(wanted, axis=1)).hidden
        own_BKD, left_BKD, right_BKD = jnp.split(hidden, 3, axis=1)
        word_VE = self.encoder.embeddings.word
        return {
            "mlm": self.heads("mlm", own_BKD, word_VE),
            "sbo": self.heads("sbo", left_BKD, right_BKD, batch["sbo_places_BK"], word_VE),
        }


@dataclasses.dataclass(frozen=True)
class SpanBoundary(MaskedLM):
    """Predicts masked spans, from within and from their boundaries. Terms: `mlm`, `sbo`.

    Attributes:
      longest: tokens of a span that are predicted from its boundaries; those further on are not.
    """

    masking: Masking = SpanMasking()
    longest: int = LONGEST

    def __post_init__(self):
        if self.longest < 1:
            raise UserError(f"objective.longest={self.longest} must be at least 1; {LONGEST} is SpanBERT's")

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return SpanBoundaryModule(encoder, self.longest)

    def features_of(self, examples: PlacedExamples, draw: Draw, masked: Masked) -> dict[str, np.ndarray]:
        """Besides those of masked language modeling, for each predicted position: `sbo_left_positions_BK` and
        `sbo_right_positions_BK`, the columns of its boundaries, and `sbo_places_BK`; `sbo_weights_BK` is 0 beyond
        `longest`.
        """
        features = super().features_of(examples, draw, masked)
        columns_BK = features["mlm_positions_BK"]
        before_BK, after_BK = (
            np.take_along_axis(examples.tokens_to_rows(distances), columns_BK, axis=1)
            for distances in places(masked.chosen)
        )
        is_near_BK = (before_BK < self.longest) & (features["mlm_weights_BK"] > 0)
        return features | {
            "sbo_left_positions_BK": np.where(is_near_BK, columns_BK - before_BK - 1, 0).astype(np.int32),
            "sbo_right_positions_BK": np.where(is_near_BK, columns_BK + after_BK + 1, 0).astype(np.int32),
            "sbo_places_BK": np.where(is_near_BK, before_BK, 0).astype(np.int32),
            "sbo_weights_BK": is_near_BK.astype(np.float32),
        }

    def weights(self, batch):
        return super().weights(batch) | {"sbo": jnp.sum(batch["sbo_weights_BK"])}

    def terms_of(self, logits, batch):
        sums, metrics = super().terms_of(logits, batch)
        weights_BK = batch["sbo_weights_BK"]
        loss, right = classification_term(logits["sbo"], batch["mlm_labels_BK"], weights_BK)
        return sums | {"sbo": loss}, metrics | {"sbo_accuracy": (right, jnp.sum(weights_BK))}


def places(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each token that is chosen (bool [n]), how many chosen ones adjoin it before and after; int32 [n] each.

    A special symbol is never chosen, so what adjoins is of the same example.
    """

    def before(chosen: np.ndarray) -> np.ndarray:
        index = np.arange(len(chosen))
        last_other = np.maximum.accumulate(np.where(chosen, -1, index))
        return np.where(chosen, index - last_other - 1, 0).astype(np.int32)

    return before(chosen), before(chosen[::-1])[::-1]
