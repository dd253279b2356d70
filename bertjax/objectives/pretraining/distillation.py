"""DistilBERT: a small student imitates a trained teacher (Sanh et al., 2019, arXiv 1910.01108, section 3).

The teacher runs in the same step, frozen and without dropout, on the same masked tokens. Three losses are added: the
Kullback-Leibler divergence of both distributions over the vocabulary at a temperature, masked language modeling, and
one minus the cosine of the last hidden states of student and teacher.
"""

import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax import export
from bertjax.data.store import TokenStore
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays, FlopsPart, encode
from bertjax.objectives.losses import cosine_distance, kl_divergence
from bertjax.objectives.pretraining.mlm import MaskedLM, MaskedLMModule


class HiddenModule(MaskedLMModule):
    """The same encoder and head; all hidden states are wanted, too."""

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`mlm`: logits_BKV at the predicted positions, `hidden`: of the last layer, [B, T, D]}."""
        hidden_BTD = encode(self.encoder, batch, key).hidden
        predicted_BKD = jnp.take_along_axis(hidden_BTD, batch["mlm_positions_BK"][..., None], axis=1)
        return {"mlm": self.heads("mlm", predicted_BKD, self.encoder.embeddings.word), "hidden": hidden_BTD}


@dataclasses.dataclass(frozen=True)
class Distillation(MaskedLM):
    """Imitates a teacher at masked positions and in its hidden states. Terms: `soft`, `mlm`, `cosine`.

    The coefficients and the temperature are those of the published code (huggingface/transformers,
    examples/research_projects/distillation); the paper names none. `soft` is taken where tokens are predicted (that
    code's `restrict_ce_to_mask`), as the vocabulary product is.

    Attributes:
      teacher: an export folder with a masked-LM head, of the same tokenizer and width.
      temperature: both distributions are softened by; at least 1. The loss is multiplied by its square, so that its
        gradient keeps its size (Hinton et al., 2015, section 2, arXiv 1503.02531).
      soft_coefficient, mlm_coefficient, cosine_coefficient: of the three losses.
    """

    teacher: str = ""
    temperature: float = 2.0
    soft_coefficient: float = 5.0
    mlm_coefficient: float = 2.0
    cosine_coefficient: float = 1.0

    def __post_init__(self):
        if not 1.0 <= self.temperature < math.inf:
            raise UserError(f"objective.temperature={self.temperature} must be at least 1; 2 is DistilBERT's")
        for term in ("soft", "mlm", "cosine"):
            if not 0.0 <= (value := getattr(self, f"{term}_coefficient")) < math.inf:
                raise UserError(f"objective.{term}_coefficient={value} must be a number and not negative")

    @property
    def coefficients(self) -> dict[str, float]:
        return {term: getattr(self, f"{term}_coefficient") for term in ("soft", "mlm", "cosine")}

    def module(self, encoder: EncoderConfig) -> nn.Module:
        """The student's.

        Raises:
          UserError: there is no teacher, or it is as no student of this shape can be.
        """
        teacher = self.teacher_encoder(encoder)
        if teacher.width != encoder.width:
            raise UserError(
                f"objective.teacher={self.teacher} has width={teacher.width} and the student {encoder.width}, whose "
                f"hidden states could not be compared; set model.width={teacher.width}"
            )
        if teacher.max_positions < encoder.max_positions:
            raise UserError(
                f"objective.teacher={self.teacher} has max_positions={teacher.max_positions} and the student "
                f"{encoder.max_positions}; set model.max_positions={teacher.max_positions}"
            )
        return HiddenModule(encoder)

    def teacher_encoder(self, student: EncoderConfig) -> EncoderConfig:
        """The teacher's architecture, executed as the student is, but with its own first task embedding."""
        if not self.teacher:
            raise UserError("objective.kind=distillation has no teacher; set objective.teacher to an export folder")
        execution = dataclasses.replace(student.execution, task_type=0)
        return dataclasses.replace(export.read_encoder_config(Path(self.teacher).expanduser()), execution=execution)

    def bind(self, store: TokenStore | None) -> "Distillation":
        if store is not None:
            folder = Path(self.teacher).expanduser()
            if export.read_tokenizer(folder).fingerprint != store.tokenizer.fingerprint:
                raise UserError(
                    f"objective.teacher={self.teacher} has another tokenizer than the corpus; set "
                    f"data.tokenizer.model={folder / 'tokenizer'}"
                )
        return super().bind(store)

    def frozen_params(self, encoder: EncoderConfig) -> dict:
        teacher = self.teacher_encoder(encoder)
        params = export.read_params(Path(self.teacher).expanduser(), teacher)
        head = params.get("heads", {}).get("mlm")
        # ELECTRA's is on its generator, which is another encoder.
        if head is None or "generator" in params:
            raise UserError(
                f"objective.teacher={self.teacher} has no masked-LM head on its encoder to imitate; name a model that "
                "was pretrained with one"
            )
        return {"teacher": {"encoder": params["encoder"], "heads": {"mlm": head}}}

    def flops_parts(self, encoder: EncoderConfig) -> tuple[FlopsPart, ...]:
        return FlopsPart(encoder), FlopsPart(self.teacher_encoder(encoder), share=1 / 3)

    def weights(self, batch):
        predicted, real = jnp.sum(batch["mlm_weights_BK"]), jnp.sum(batch["examples_BT"] > 0).astype(jnp.float32)
        return {"soft": predicted, "mlm": predicted, "cosine": real}

    def terms(self, module, params, frozen, batch, key, train):
        said = module.apply({"params": params}, batch, key if train else None)
        teacher = HiddenModule(self.teacher_encoder(module.config))
        if teacher.config.vocab_size != module.config.vocab_size:
            raise UserError(
                f"objective.teacher={self.teacher} has {teacher.config.vocab_size} tokens and the student "
                f"{module.config.vocab_size}; set model.vocab_size={teacher.config.vocab_size}"
            )
        taught = teacher.apply({"params": frozen["teacher"]}, batch)
        weights_BK = batch["mlm_weights_BK"]
        soft = jnp.sum(weights_BK * kl_divergence(taught["mlm"], said["mlm"], self.temperature))
        agreed = jnp.sum(weights_BK * (said["mlm"].argmax(axis=-1) == taught["mlm"].argmax(axis=-1)))
        losses, metrics = self.terms_of(said, batch)
        return {"soft": soft, "cosine": self._distance(said, taught, batch)} | losses, metrics | {
            "agreement": (agreed, jnp.sum(weights_BK))
        }

    def _distance(self, said: Arrays, taught: Arrays, batch: Arrays) -> jax.Array:
        return cosine_distance(said["hidden"], taught["hidden"], batch["examples_BT"] > 0)
