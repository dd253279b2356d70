"""What the uses of a masked-LM head share: texts that are read at masked positions."""

import dataclasses

import jax
import numpy as np

from bertjax.data.batch import PlacedExamples
from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.inference.base import Arrays, Use
from bertjax.objectives.mlm import MaskedLM


def masked_lm(model: Export) -> MaskedLM | None:
    """The objective that guesses masked tokens, of the first task that has one; None where there is no such head."""
    found = (task.objective for task in model.config.tasks.values() if isinstance(task.objective, MaskedLM))
    return next(found, None) if "mlm" in model.params.get("heads", {}) else None


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
        """`mlm_positions_BK` and `mlm_labels_BK`, int32, as the objective has them."""
        names = {"positions": "mlm_positions_BK", "originals": "mlm_labels_BK"}
        return {name: _to_rows(placed, placed.ragged.labels[label]) for label, name in names.items()}

    def log_probabilities(self, params: dict, batch: Arrays) -> jax.Array:
        """Device: of every token at each position, in nats; float32 [B, K, V], of padded ids none."""
        module = masked_lm(self.model).reader(self.model.encoder)
        return jax.nn.log_softmax(module.apply({"params": params}, batch)["mlm"])


def _to_rows(placed: PlacedExamples, values_MK: np.ndarray) -> np.ndarray:
    values_BK = np.zeros((placed.shape[0], values_MK.shape[1]), np.int32)
    values_BK[placed.rows] = values_MK
    return values_BK
