"""Losses on hidden states: those of pairs of layers (TinyBERT, PKD, MobileBERT), and the output (DistilBERT)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.mixing import OUTPUT
from bertjax.models.pooling import l2_normalize
from bertjax.models.taps import ATTENTION
from bertjax.objectives.distill.losses import TeacherLoss, is_token
from bertjax.objectives.distill.losses.layer_map import MappedLoss
from bertjax.objectives.losses import cosine, cosine_distance
from bertjax.runtime.setting import setting

COMPARISONS = MSE, NORMALIZED, COSINE, STATISTICS = ("mse", "normalized", "cosine", "statistics")
PLACES = TOKENS, SUMMARIES = ("tokens", "summaries")


@dataclasses.dataclass(frozen=True)
class HiddenStates(MappedLoss):
    """Compare hidden states in pairs of layers, averaged over the pairs.

    Attributes:
      compare: `mse`, squared difference averaged over the width (Jiao et al., 2020, equation 8); `normalized`, the same
        after scaling states to length 1 (Sun et al., 2019, section 3.2); `cosine`, 1 - cosine (Sanh et al., 2019,
        section 2, arXiv 1910.01108); or `statistics`, squared difference between means over the width plus the absolute
        difference between variances (MobileBERT, Sun et al., 2020, arXiv 2004.02984; the published code,
        google-research/mobilebert, weighs the two separately).
      on: `tokens`, all tokens, or `summaries`, each example's [CLS].
      projection: map student states to the teacher's width by a linear layer, the same for all pairs. It is trained
        with the student and is not exported. Required if the widths differ.
    """

    kind: str = dataclasses.field(default="hidden", init=False)
    compare: str = setting(MSE, choices=COMPARISONS)
    on: str = setting(TOKENS, choices=PLACES)
    projection: bool = False

    captures: ClassVar[tuple[str, ...]] = ("hidden",)
    first_layer: ClassVar[int] = 0

    def check(self, student, teacher):
        # Means and variances over the width are scalars, so `statistics` compares any widths.
        if not self.projection and self.compare != STATISTICS:
            self.check_equal("width", student, teacher, "projection=True, or ")
        super().check(student, teacher)

    def reason_against(self, config):
        if self.on == SUMMARIES and ATTENTION not in config.block.captures:
            return f"model.block.kind={config.block.kind}, whose [CLS] sees its example from one side; set on=tokens"
        if self.on == SUMMARIES and config.direction != BIDIRECTIONAL:
            return f"model.direction={config.direction}, whose [CLS] does not see its whole example; set on=tokens"
        return super().reason_against(config)

    def init(self, key, student, teacher):
        if not self.projection:
            return {}
        kernel = jax.nn.initializers.truncated_normal(student.init_stddev)(key, (student.width, teacher.width))
        return {"kernel": kernel, "bias": jnp.zeros(teacher.width)}

    def weight(self, batch, soft_weights):
        return jnp.sum(self._weights(batch))

    def terms(self, student, teacher, batch, params, soft_weights):
        weights, total = self._weights(batch), jnp.zeros(())
        pairs = self.pairs(student.config, teacher.config)
        for own_layer, target_layer in pairs:
            own, target = self._read(student.hidden(own_layer), batch), self._read(teacher.hidden(target_layer), batch)
            if self.projection:
                # TinyBERT maps the student to the teacher's space, so the target stays fixed.
                own = own @ params["kernel"] + params["bias"]
            total += jnp.sum(weights * self._distances(own, target))
        return total / len(pairs), {}

    def _weights(self, batch) -> jax.Array:
        """Return float32 [B, T] or [B, N]."""
        return is_token(batch) if self.on == TOKENS else (batch["example_ids_BN"] >= 0).astype(jnp.float32)

    def _read(self, hidden_BTD: jax.Array, batch) -> jax.Array:
        if self.on == TOKENS:
            return hidden_BTD
        # Empty slots have column -1; their weight is 0.
        columns_BN = jnp.maximum(batch["summary_positions_BN"], 0)
        return jnp.take_along_axis(hidden_BTD, columns_BN[..., None], axis=1)

    def _distances(self, own: jax.Array, target: jax.Array) -> jax.Array:
        """Return [B, T] or [B, N] from states [..., D]."""
        if self.compare == COSINE:
            return 1.0 - cosine(own, target)
        if self.compare == STATISTICS:
            means = jnp.mean(own, axis=-1) - jnp.mean(target, axis=-1)
            return means**2 + jnp.abs(jnp.var(own, axis=-1) - jnp.var(target, axis=-1))
        if self.compare == NORMALIZED:
            # PKD compares directions only, not lengths.
            own, target = l2_normalize(own), l2_normalize(target)
        return jnp.mean((own - target) ** 2, axis=-1)


@dataclasses.dataclass(frozen=True)
class OutputCosine(TeacherLoss):
    """One minus the cosine between the last hidden states of student and teacher, over all tokens: DistilBERT's third
    loss (Sanh et al., 2019, section 2, arXiv 1910.01108).

    The states are those that heads read, after the final norm if there is one. The kind `hidden` compares the states
    between layers.
    """

    kind: str = dataclasses.field(default="output", init=False)

    captures: ClassVar[tuple[str, ...]] = (OUTPUT,)

    def check(self, student, teacher):
        self.check_equal("width", student, teacher)
        super().check(student, teacher)

    def terms(self, student, teacher, batch, params, soft_weights):
        return cosine_distance(student.captured[OUTPUT], teacher.captured[OUTPUT], batch["examples_BT"] > 0), {}
