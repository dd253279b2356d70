"""SpanBERT: span masking with the span boundary objective (Joshi et al., 2020, arXiv 1907.10529, section 3.2).

Each token of a masked span is predicted twice: from its own hidden state, and from the hidden states of the two tokens
around the span and its place in the span, y = f(x_before, x_after, p_place). The losses are added. Adjacent spans count
as one. Examples are single sequences (section 3.3): `examples.kind="full_sentences"`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masking, SpanMasking, mask
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart, head_products
from bertjax.models.model import HeadSpec, Model
from bertjax.models.other_heads import SpanBoundaryHead
from bertjax.objectives.base import Arrays, joined
from bertjax.objectives.losses import classification_term
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.setting import setting

# Defaults of the authors' code: longest span and width of the place embeddings. Their training command sets the first
# to 15.
LONGEST, PLACE_WIDTH = 20, 200


@dataclasses.dataclass(frozen=True)
class SpanBoundary(MaskedLM):
    """Predict masked spans, from their own states and from their boundaries. Terms: `mlm`, `sbo`.

    Attributes:
      longest: number of tokens per span, from its start, that are predicted from its boundaries.
    """

    masking: Masking = SpanMasking()
    longest: int = setting(LONGEST, least=1)
    baselines = MaskedLM.baselines  # the masked-token term is unchanged, so its baselines still apply

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        sizes = {"longest": self.longest, "place_width": PLACE_WIDTH}
        return super().heads(config) | {"sbo": HeadSpec(SpanBoundaryHead, sizes)}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`mlm`, `sbo`: logits_BKV at the predicted positions}."""
        read = [batch[f"{name}_positions_BK"] for name in ("mlm", "sbo_left", "sbo_right")]
        # One pass reads all three positions per predicted token.
        hidden = model.encode(batch, key, jnp.concatenate(read, axis=1)).hidden
        own_BKD, left_BKD, right_BKD = jnp.split(hidden, 3, axis=1)
        return {
            "mlm": model.head("mlm", own_BKD, model.word_VE),
            "sbo": model.head("sbo", left_BKD, right_BKD, batch["sbo_places_BK"], model.word_VE),
        }

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        """Each predicted token counts twice, once per head, and the two heads read three positions."""
        products = sum(head_products(config, head) for head in self.heads(config).values())
        return (FlopsPart(config, {"predictions": products / 2}, read=1.5),)

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return masked language modeling features, plus the span boundaries of each predicted position.

        `sbo_left_positions_BK` and `sbo_right_positions_BK` are boundary columns, `sbo_places_BK` is the place in the
        span. `sbo_weights_BK` is 0 beyond `longest` and in spans without a token before them.
        """
        masked = mask(examples, draw, self.masking)
        features = self.masked_features(examples, masked.tokens, masked.chosen)
        columns_BK = features["mlm_positions_BK"]
        before_BK, after_BK = (
            np.take_along_axis(examples.tokens_to_rows(distances), columns_BK, axis=1)
            for distances in (number_before(masked.chosen), number_before(masked.chosen[::-1])[::-1])
        )
        # A span at the start of an example has no token before it if [CLS] comes last.
        first_BT = examples.tokens_to_rows(examples.ragged.spread(examples.starts).astype(np.int32))
        has_left_BK = columns_BK - before_BK > np.take_along_axis(first_BT, columns_BK, axis=1)
        is_near_BK = has_left_BK & (before_BK < self.longest) & (features["mlm_weights_BK"] > 0)
        return features | {
            "sbo_left_positions_BK": np.where(is_near_BK, columns_BK - before_BK - 1, 0).astype(np.int32),
            "sbo_right_positions_BK": np.where(is_near_BK, columns_BK + after_BK + 1, 0).astype(np.int32),
            "sbo_places_BK": np.where(is_near_BK, before_BK, 0).astype(np.int32),
            "sbo_weights_BK": is_near_BK.astype(np.float32),
        }

    def weights(self, batch):
        return super().weights(batch) | {"sbo": jnp.sum(batch["sbo_weights_BK"])}

    def terms_of(self, logits, batch):
        weights_BK = batch["sbo_weights_BK"]
        loss, correct = classification_term(logits["sbo"], batch["mlm_labels_BK"], weights_BK)
        sbo = {"sbo": loss}, {"sbo_accuracy": (correct, jnp.sum(weights_BK))}
        return joined(super().terms_of(logits, batch), sbo)


def number_before(chosen: np.ndarray) -> np.ndarray:
    """Return how many chosen tokens directly precede each chosen token (bool [n]); int32 [n].

    Special symbols are never chosen, so adjacent tokens belong to the same example.
    """
    index = np.arange(len(chosen))
    # Index of the last token that was not chosen, at or before each token.
    last_other = np.maximum.accumulate(np.where(chosen, -1, index))
    return np.where(chosen, index - last_other - 1, 0).astype(np.int32)
