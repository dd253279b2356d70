"""Shared base of pipelines with a masked-LM head: predictions at masked positions."""

import dataclasses
import functools
from typing import cast

import jax
import numpy as np

from bertjax.config.export import Export
from bertjax.data.batch import PlacedExamples
from bertjax.inference.base import Arrays, Pipeline, config_of
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError


def masked_lm(model: Export) -> MaskedLM | None:
    """Return the masked-LM objective of the first task with such a head; None if the model has none.

    A head named `mlm` on the encoder is enough. The configuration is read only for ELECTRA and permutation models.
    """
    heads = model.params.get("heads", {})
    names = heads.get(MaskedLM.head, {}).keys()
    has_decoder = "word" in names  # a table of its own, as in `DecoderHead`
    if (has_decoder or names >= {"transform", "norm", "word_bias"}) and "generator" not in model.params:
        return MaskedLM()
    objectives = (task.objective for task in config_of(model).tasks.values()) if heads else ()
    return next((mlm for mlm in objectives if isinstance(mlm, MaskedLM) and mlm.head in heads), None)


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedPipeline(Pipeline):
    """A pipeline with a masked-LM head; its examples are `bertjax.inference.views.MaskedViews`."""

    def __post_init__(self):
        if masked_lm(self.model) is None:
            raise UserError(
                "the model has no masked-LM head, which [MASK] and pseudo-log-likelihoods need; use --do=embed, or "
                "name a model that has one"
            )

    def features(self, placed: PlacedExamples) -> dict[str, np.ndarray]:
        """`<term>_{positions,labels,weights}_BK`, like the objective's features; unused places have weight 0."""
        labels, term = placed.ragged.labels, self.objective.term
        values = {"positions": labels["positions"], "labels": labels["originals"], "weights": labels["is_used"]}
        return {f"{term}_{name}_BK": _to_rows(placed, values_MK) for name, values_MK in values.items()}

    @functools.cached_property
    def objective(self) -> MaskedLM:
        return cast(MaskedLM, masked_lm(self.model))  # `__post_init__` refuses a model without one

    def log_probabilities(self, params: dict, batch: Arrays) -> jax.Array:
        """Device: return log probabilities in nats, float32 [B, K, V]; V without vocabulary padding."""
        model = self.objective.model(self.model.encoder)
        return jax.nn.log_softmax(self.objective.apply(model, params, batch, method=self.objective.mlm_logits))


def _to_rows(placed: PlacedExamples, values_MK: np.ndarray) -> np.ndarray:
    dtype = np.float32 if values_MK.dtype == bool else np.int32
    values_BK = np.zeros((placed.shape[0], values_MK.shape[1]), dtype)
    values_BK[placed.rows] = values_MK
    return values_BK
