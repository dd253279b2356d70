"""What the uses of a masked-LM head share: texts that are read at masked positions."""

import dataclasses

import jax
import numpy as np

from bertjax.config import from_dict
from bertjax.data.batch import PlacedExamples
from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.inference.base import Arrays, Use
from bertjax.objectives.pretraining.mlm import MaskedLM


def masked_lm(model: Export) -> MaskedLM | None:
    """Return the objective that guesses masked tokens, of the first task that has one; None if there is no such head.

    A head `mlm` on the encoder is enough; only for ELECTRA and permutation the configuration is read.
    """
    heads = model.params.get("heads", {})
    if MaskedLM.token_term in heads and "generator" not in model.params:
        return MaskedLM()
    objectives = (task.objective for task in from_dict(model.settings).tasks.values()) if heads else ()
    return next((each for each in objectives if isinstance(each, MaskedLM) and each.token_term in heads), None)


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedUse(Use):
    """Asks a masked-LM head; the examples are `bertjax.inference.texts.Readings`."""

    def __post_init__(self):
        if masked_lm(self.model) is None:
            raise UserError(
                "the model has no masked-LM head, which [MASK] and pseudo-log-likelihoods need; "
                "embed with it (--do=embed), or name a pretrained one"
            )

    def features(self, placed: PlacedExamples) -> dict[str, np.ndarray]:
        """`<token_term>_positions_BK` and `<token_term>_labels_BK`, int32, as the objective has them."""
        positions_BK, originals_BK = (
            _to_rows(placed, placed.ragged.labels[label]) for label in ("positions", "originals")
        )
        return {f"{self.token_term}_positions_BK": positions_BK, f"{self.token_term}_labels_BK": originals_BK}

    @property
    def token_term(self) -> str:
        """How the objective names what it guesses."""
        return masked_lm(self.model).token_term

    def log_probabilities(self, params: dict, batch: Arrays) -> jax.Array:
        """Device: of every token at each position, in nats; float32 [B, K, V], of padded ids none."""
        module = masked_lm(self.model).reader(self.model.encoder)
        return jax.nn.log_softmax(module.apply({"params": params}, batch)[self.token_term])


def _to_rows(placed: PlacedExamples, values_MK: np.ndarray) -> np.ndarray:
    values_BK = np.zeros((placed.shape[0], values_MK.shape[1]), np.int32)
    values_BK[placed.rows] = values_MK
    return values_BK
