"""What the heads of fine-tuned models read: the last hidden states, or features from all layers (ELMo's mix)."""

import dataclasses
from typing import Any

from bertjax.errors import UserError
from bertjax.models import taps as taps_of_models
from bertjax.models.config import EncoderConfig
from bertjax.models.mixing import CAPTURES, ScalarMix, encode_layers
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays, Objective

READS = LAST, MIX = ("last", "mix")


@dataclasses.dataclass(frozen=True)
class ReadingObjective(Objective):
    """The base of objectives whose head reads the last layer or a learned mix of all layers.

    Attributes:
      reads: `last`, or `mix`, the sum of the embeddings and of all layers with learned weights (`ScalarMix`), without
        dropout in the encoder. For features, the encoder is frozen, too: `optimizer.frozen=["^encoder/"]` (Devlin et
        al., 2019, section 5.3).
    """

    reads: str = dataclasses.field(default=LAST, kw_only=True)

    def __post_init__(self):
        if self.reads not in READS:
            raise UserError(f"objective.reads={self.reads!r} is unknown; choose one of {', '.join(READS)}")

    def mix_head(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        """Return the head that mixes layers, if there is one."""
        return {MIX: HeadSpec(ScalarMix)} if self.reads == MIX else {}

    def mixed(self, model: Model, batch: Arrays):
        """Device: return the mix, float32 [B, T, D]."""
        return model.head(MIX, encode_layers(model, batch))

    def apply(self, model, params, batch, key=None, method=None, taps=None) -> Any:
        if self.reads == LAST:
            return super().apply(model, params, batch, key, method, taps)
        variables = {"params": params} | CAPTURES | ({"taps": taps} if taps else {})
        output, _ = model.apply(variables, batch, key, method=method or self.logits, mutable=[taps_of_models.CAPTURED])
        return output
