"""MPNet: masked and permuted language modeling (Song et al., 2020, arXiv 2004.09297, section 2).

The predicted tokens of an example get a random order. Each is predicted from the tokens that are not predicted, the
predicted ones before it in the order, and the symbols (mostly [MASK]) and positions of itself and those after it. So a
prediction depends on the predictions before it, which masked language modeling neglects, and it sees the position of
every token of the text, which XLNet's do not (section 2.3, "position compensation"). `bertjax.models.compensation` is
the attention.

The head and the encoder's reading of a masked text are those of masked language modeling. So the model predicts, and
converts to `MPNetForMaskedLM`, as one that is trained with `objective.kind=mlm`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import mask
from bertjax.models.config import EncoderConfig
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.permutation import check_encoder, order


@dataclasses.dataclass(frozen=True)
class PermutedMaskedLM(MaskedLM):
    """Predict masked tokens one after the other, in a random order. Terms: `mlm`.

    `mlm_loss` is lower than that of `objective.kind=mlm` with the same weights, since predictions see earlier ones.

    Attributes:
      masking: selects the tokens to predict, and the symbols in their place.
    """

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        """Return the head of masked language modeling.

        Raises:
          UserError: the encoder's attention cannot read predicted tokens beside the row, or it reads in one direction.
        """
        check_encoder(config, "permuted_mlm", "mpnet", config.block.has_compensation)
        return super().heads(config)

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`mlm`: logits_BKV of the query stream}."""
        answers_BK = jnp.where(batch["mlm_weights_BK"] > 0, batch["mlm_labels_BK"], -1)
        return {"mlm": self.mlm_logits(model, batch, key, rank_BT=batch["rank_BT"], answers_BK=answers_BK)}

    def flops_parts(self, config: EncoderConfig):
        return tuple(part._replace(queries=True, answers=True) for part in super().flops_parts(config))

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return what masked language modeling has, and `rank_BT`, int32: 0, or the place of a predicted token.

        Chosen tokens beyond the capacity K have 0 too: their symbols stay in the row. Places may so have gaps.
        """
        masked = mask(examples, draw, self.masking)
        features = self.masked_features(examples, masked.tokens, masked.chosen)
        places_BT = examples.tokens_to_rows(order(examples.ragged, draw, masked.chosen))
        # With a place, a symbol is hidden from later predictions, which then must see the token as one of the K.
        rank_BT, (rows, used) = np.zeros_like(places_BT), np.nonzero(features["mlm_weights_BK"])
        columns = features["mlm_positions_BK"][rows, used]
        rank_BT[rows, columns] = places_BT[rows, columns]
        return features | {"rank_BT": rank_BT}
