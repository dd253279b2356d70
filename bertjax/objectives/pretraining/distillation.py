"""DistilBERT: a small student imitates a trained teacher (Sanh et al., 2019, arXiv 1910.01108, section 3).

The teacher runs in the same step on the same masked text, frozen and without dropout. Three losses are summed: KL
divergence between the two vocabulary distributions at a temperature, masked language modeling, and one minus the cosine
between the last hidden states of student and teacher.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import jax

from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart, head_products
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, joined
from bertjax.objectives.pretraining.mlm import MaskedLM, take_columns
from bertjax.objectives.teacher import CosineLoss, LogitsLoss, Teacher, TokenLogitsLoss
from bertjax.runtime.errors import UserError

SOFT_ON = ("masked", "all")


@dataclasses.dataclass(frozen=True)
class Distillation(MaskedLM):
    """Imitate a teacher's predictions and hidden states. Terms: `soft`, `mlm`, `cosine`.

    Coefficients and temperature follow the published code (huggingface/transformers,
    examples/research_projects/distillation); the paper gives none.

    Attributes:
      teacher: an export folder with a masked-LM head and the student's tokenizer and width.
      soft_on: tokens that `soft` covers: `masked`, the predicted ones, or `all`, that code's default
        (`restrict_ce_to_mask` is off). `all` multiplies with the vocabulary at every token, in both models.
      temperature: softens both distributions; at least 1. The loss is multiplied by its square (see `kl_divergence`).
      soft_coefficient, mlm_coefficient, cosine_coefficient: loss weights.
    """

    soft_on: str = "masked"
    temperature: float = 2.0
    soft_coefficient: float = 5.0
    mlm_coefficient: float = 2.0
    cosine_coefficient: float = 1.0
    best_metric: ClassVar[str] = "soft_loss"  # the paper's first term, with the largest coefficient
    baselines = MaskedLM.baselines  # the masked-token term is unchanged, so its baselines still apply

    def __post_init__(self):
        if self.soft_on not in SOFT_ON:
            raise UserError(f"objective.soft_on={self.soft_on!r} is unknown; choose one of {', '.join(SOFT_ON)}")
        if not 1.0 <= self.temperature < math.inf:
            raise UserError(f"objective.temperature={self.temperature} must be at least 1; 2 is DistilBERT's")
        for term in ("soft", "mlm", "cosine"):
            if not 0.0 <= (value := getattr(self, f"{term}_coefficient")) < math.inf:
                raise UserError(f"objective.{term}_coefficient={value} must be a number and not negative")

    @property
    def coefficients(self) -> dict[str, float]:
        return {term: getattr(self, f"{term}_coefficient") for term in ("soft", "mlm", "cosine")}

    @property
    def losses(self) -> tuple[LogitsLoss | TokenLogitsLoss | CosineLoss, ...]:
        """Losses against the teacher."""
        soft = LogitsLoss if self.soft_on == "masked" else TokenLogitsLoss
        return soft(temperature=self.temperature), CosineLoss()

    @property
    def _teacher(self) -> Teacher:
        if self.bound_teacher is None:
            raise UserError("objective.kind=distillation has no teacher; set objective.teacher to an export folder")
        return self.bound_teacher

    def _teacher_config(self, config: EncoderConfig) -> EncoderConfig:
        self._teacher.check(config, same_width=True)
        return self._teacher.config_beside(config)

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`mlm`: logits_BKV at the predicted positions, `hidden`: last hidden states, [B, T, D]}."""
        hidden_BTD = model.encode(batch, key).hidden
        predicted_BKD = take_columns(hidden_BTD, batch["mlm_positions_BK"])
        return {"mlm": model.head("mlm", predicted_BKD, model.word_VE), "hidden": hidden_BTD}

    def bind(self, store: TokenStore | None) -> "Distillation":
        if store is not None and self.bound_teacher is not None:
            # Soft targets are distributions over token ids, so both models must use the same ids.
            self.bound_teacher.check_tokenizer(store.tokenizer.fingerprint)
        return super().bind(store)

    def frozen_params(self, config: EncoderConfig) -> dict:
        self._teacher_config(config)
        return {"teacher": {"encoder": self._teacher.params["encoder"], "heads": {"mlm": self._teacher.head("mlm")}}}

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        teacher, head = self._teacher_config(config), self.heads(config)["mlm"]
        unit = "predictions" if self.soft_on == "masked" else "tokens"
        own = {"predictions": head_products(config, head)}
        return (
            FlopsPart(config, own | {unit: head_products(config, head)}),
            FlopsPart(teacher, {unit: head_products(teacher, head)}, has_backward=False),
        )

    def weights(self, batch):
        return super().weights(batch) | {loss.term: loss.weight(batch) for loss in self.losses}

    def terms(self, model, params, frozen, batch, key, train, taps=None):
        self._teacher.check_vocabulary(model.config)
        student = self.apply(model, params, batch, key if train else None, taps=taps)
        teacher = Model(self._teacher_config(model.config), self.heads(model.config))
        # No key: the teacher runs without dropout. Frozen parameters are not differentiated.
        targets = self.apply(teacher, frozen["teacher"], batch)
        # With soft_on=all, the losses apply the heads chunk by chunk: logits [B, T, V] never exist at once.
        own = student | {"head": functools.partial(_logits_of, model, params)}
        others = targets | {"head": functools.partial(_logits_of, teacher, frozen["teacher"])}
        return joined(*(loss.terms(own, others, batch) for loss in self.losses), self.terms_of(student, batch))


def _logits_of(model: Model, params: dict, hidden_BTD: jax.Array) -> jax.Array:
    """Return logits_BTV."""
    variables = {"params": params}
    return model.apply(variables, hidden_BTD, method=lambda bound, states: bound.head("mlm", states, bound.word_VE))
