"""Texts with [MASK] at some positions, and the shared base of pipelines with a masked-LM head."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import cast

import jax
import numpy as np

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.data.batch import PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import LabeledExamples
from bertjax.inference.base import Pipeline
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class MaskedViews:
    """`Examples`: views of texts, each with [MASK] at up to K positions whose tokens are predicted.

    A text may have any number of views. The labels are `positions` (int64 [M, K], 0 for unused places), `originals`
    (int32 [M, K], the masked tokens) and `is_used` (bool [M, K]).

    Attributes:
      texts: the texts before masking.
      mask_id: id of [MASK].
      text_of: int64 [M], index of each view's text.
      positions_MK: int64, -1 for unused places, which come last.
    """

    texts: LabeledExamples
    mask_id: int
    text_of: np.ndarray
    positions_MK: np.ndarray

    @classmethod
    def of(cls, texts: LabeledExamples, positions: Sequence[np.ndarray], mask_id: int, capacity: int) -> "MaskedViews":
        """Split each text's positions into views with at most K = `capacity` positions."""
        text_of, rows = [], []
        for text, all_of_text in enumerate(positions):
            for first in range(0, len(all_of_text), capacity):
                part = all_of_text[first : first + capacity]
                text_of.append(text)
                # Unused places are -1: position 0 is a real token.
                rows.append(np.pad(part, (0, capacity - len(part)), constant_values=-1))
        positions_MK = np.array(rows, np.int64).reshape(-1, capacity)
        return cls(texts, mask_id, np.array(text_of, np.int64), positions_MK)

    @property
    def notes(self) -> dict[str, int]:
        """The notes of the texts."""
        return self.texts.notes

    def __len__(self) -> int:
        return len(self.text_of)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Token counts for views `start` to `stop` (default: the end); int32."""
        return self.texts.lengths()[self.text_of[start:stop]]

    def take(self, indices: np.ndarray) -> Ragged:
        """The views at `indices` (int64 [M]), in that order."""
        ragged, positions_MK = self.texts.take(self.text_of[indices]), self.positions_MK[indices]
        # Views are built only when a batch needs them: a text of n tokens has n views, n times its memory.
        cells_MK = ragged.offsets[:-1, None] + np.maximum(positions_MK, 0)
        tokens, originals_MK = ragged.tokens.copy(), ragged.tokens[cells_MK]
        is_used_MK = positions_MK >= 0
        tokens[cells_MK[is_used_MK]] = self.mask_id
        return dataclasses.replace(
            ragged,
            tokens=tokens,
            labels={"positions": np.maximum(positions_MK, 0), "originals": originals_MK, "is_used": is_used_MK},
            ids=np.asarray(indices, np.int64),
        )


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
    """A pipeline with a masked-LM head; its examples are `MaskedViews`."""

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

    def log_probabilities(self, params: dict, batch: dict[str, jax.Array]) -> jax.Array:
        """Device: return log probabilities in nats, float32 [B, K, V]; V without vocabulary padding."""
        model = self.objective.model(self.model.encoder)
        return jax.nn.log_softmax(self.objective.apply(model, params, batch, method=self.objective.mlm_logits))


def _to_rows(placed: PlacedExamples, values_MK: np.ndarray) -> np.ndarray:
    dtype = np.float32 if values_MK.dtype == bool else np.int32
    values_BK = np.zeros((placed.shape[0], values_MK.shape[1]), dtype)
    values_BK[placed.rows] = values_MK
    return values_BK
