"""Losses between layers of teacher and student: how layers are paired, hidden states, and attention.

Hidden states are those of pairs of layers (TinyBERT, PKD, MobileBERT), and the output (DistilBERT). Attention is
compared head by head for pairs of layers (Jiao et al., 2020; Aguilar et al., 2020), or by relations of queries, keys
and values in MiniLMv2 (Wang et al., 2021, section 3, arXiv 2012.15828).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.mixing import OUTPUT
from bertjax.models.pooling import l2_normalize
from bertjax.models.taps import ATTENTION
from bertjax.objectives.distill.losses import Pairs, TeacherLoss, Values, is_token, same_example
from bertjax.objectives.losses import cosine, cosine_distance, kl_divergence
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

MAPS = UNIFORM, SKIP, LAST = ("uniform", "skip", "last")


@dataclasses.dataclass(frozen=True)
class MappedLoss(TeacherLoss):
    """A loss on pairs of layers, counted from 1; 0 is the embeddings.

    For a student with M and a teacher with L layers:
    - `uniform`: layer m with layer m L / M, for m = 1 to M, and the embeddings if the loss can compare them (Jiao et
      al., 2020, section 3.1, arXiv 1909.10351).
    - `skip`: the same without embeddings and last layer (Sun et al., 2019, section 3.2, arXiv 1908.09355).
    - `last`: layer m with layer L - M + m, for m = 1 to M - 1 (same section).

    Attributes:
      layer_map: `uniform`, `skip` or `last`.
      pairs_of_layers: (student layer, teacher layer) pairs to use instead of a map.
    """

    layer_map: str = setting(UNIFORM, choices=MAPS)
    pairs_of_layers: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if wrong := [list(pair) for pair in self.pairs_of_layers if len(pair) != 2]:
            raise UserError(
                f"pairs_of_layers of the teacher loss {self.kind!r} has {wrong[0]}; give pairs, such as [[1, 2]]"
            )

    def pairs(self, student: EncoderConfig, teacher: EncoderConfig) -> Pairs:
        pairs = self.pairs_of_layers or mapped(self.layer_map, self.first_layer, student.layers, teacher.layers)
        return self.possible(pairs, student, teacher)


def mapped(layer_map: str, first: int, student: int, teacher: int) -> Pairs:
    """Return the pairs of a map.

    Args:
      first: 0 to also compare the embeddings, else 1.
      student, teacher: numbers of layers.
    """
    if student > teacher if layer_map == LAST else teacher % student:
        raise UserError(
            f"layer_map={layer_map} does not fit: the student has {student} layers and the teacher {teacher}; set "
            "layer_map=last, or pairs_of_layers"
        )
    # PKD leaves the last layer to the soft targets, which already compare its output (section 3.2).
    layers = range(first, student + 1) if layer_map == UNIFORM else range(1, student)
    if layer_map == LAST:
        return tuple((layer, teacher - student + layer) for layer in layers)
    return tuple((layer, layer * (teacher // student)) for layer in layers)


STATE_COMPARISONS = MSE, NORMALIZED, COSINE, STATISTICS = ("mse", "normalized", "cosine", "statistics")
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
    compare: str = setting(MSE, choices=STATE_COMPARISONS)
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


MAP_COMPARISONS = SCORES, PROBABILITIES = ("scores", "probabilities")


@dataclasses.dataclass(frozen=True)
class AttentionMaps(MappedLoss):
    """Compare attention between equally numbered heads in pairs of layers, averaged over pairs and heads.

    Maps are recomputed from queries and keys, so this works with every attention implementation. Blocks whose maps
    have other terms too are refused.

    Attributes:
      compare: `scores`, mean squared difference of pre-softmax scores over the example's tokens (Jiao et al., 2020,
        equation 7, arXiv 1909.10351); or `probabilities`, KL divergence of each token's distribution (Aguilar et al.,
        2020, arXiv 1910.03723).
    """

    kind: str = dataclasses.field(default="attention", init=False)
    compare: str = setting(SCORES, choices=MAP_COMPARISONS)

    captures: ClassVar[tuple[str, ...]] = ("queries", "keys")

    def check(self, student, teacher):
        self.check_equal("heads", student, teacher, "kind=relations, or ")
        super().check(student, teacher)

    def reason_against(self, config):
        # Maps are computed from queries and keys only.
        more = {
            "fixed heads": config.block.fixed_heads,
            f"model.block.kind={config.block.kind}, which adds terms to attention": config.block.has_attention_terms,
            f"model.block.global_every={config.block.global_every}": config.block.global_every > 1,
            f"model.direction={config.direction}": config.direction != BIDIRECTIONAL,
        }
        reasons = [f"{name}; use kind=hidden" for name, is_set in more.items() if is_set]
        return super().reason_against(config) or next(iter(reasons), "")

    def terms(self, student, teacher, batch, params, soft_weights):
        pairs, total = self.pairs(student.config, teacher.config), jnp.zeros(())
        sees_B1TT = same_example(batch)[:, None]
        for own_layer, target_layer in pairs:
            own_BHTT, target_BHTT = _scores(student, own_layer), _scores(teacher, target_layer)
            if self.compare == SCORES:
                # Rows are packed: pairs of tokens from different examples have scores, but no attention.
                squares = jnp.where(sees_B1TT, own_BHTT - target_BHTT, 0.0) ** 2
                losses_BHT = jnp.sum(squares, axis=-1) / jnp.maximum(jnp.sum(sees_B1TT, axis=-1), 1)
            else:
                # Other examples get the lowest score in both models, so they add nothing to the divergence.
                hidden = jnp.finfo(jnp.float32).min
                own_BHTT, target_BHTT = (jnp.where(sees_B1TT, scores, hidden) for scores in (own_BHTT, target_BHTT))
                losses_BHT = kl_divergence(target_BHTT, own_BHTT, temperature=1.0)
            # Average over heads, sum over tokens; the step divides by the number of tokens.
            total += jnp.sum(is_token(batch) * jnp.mean(losses_BHT, axis=1))
        return total / len(pairs), {}


def _scores(model: Values, layer: int) -> jax.Array:
    """Return scaled query-key products, float32 [B, H, T, T]."""
    queries_BTHD, keys_BTHD = model.of_heads("queries", layer), model.of_heads("keys", layer)
    return jnp.einsum("bqhd,bthd->bhqt", queries_BTHD, keys_BTHD) * queries_BTHD.shape[-1] ** -0.5


@dataclasses.dataclass(frozen=True)
class Relations(TeacherLoss):
    """Compare token similarities in one layer of each model, computed from queries, keys and values separately.

    The vectors of all heads are concatenated and split again into relation heads, so student and teacher may differ in
    width, heads and depth. For each token, a relation head has a distribution over the example's tokens: the softmax
    over scaled dot products. The loss sums three KL divergences, each averaged over relation heads and tokens.

    Attributes:
      heads: number of relation heads; must divide both models' widths.
      student_layer, teacher_layer: layers to compare, counted from 1; 0 for the last one.
    """

    kind: str = dataclasses.field(default="relations", init=False)
    heads: int = setting(48, least=1)
    student_layer: int = setting(0, least=0)
    teacher_layer: int = setting(0, least=0)

    captures: ClassVar[tuple[str, ...]] = ("queries", "keys", "values")

    def pairs(self, student, teacher):
        pairs = ((self.student_layer or student.layers, self.teacher_layer or teacher.layers),)
        return self.possible(pairs, student, teacher)

    def reason_against(self, config):
        if config.context_width % self.heads:
            return f"width={config.context_width}, which heads={self.heads} does not divide; choose a common divisor"
        if config.block.fixed_heads:
            return "fixed heads, which have no queries and keys; use kind=hidden"
        return super().reason_against(config)

    def terms(self, student, teacher, batch, params, soft_weights):
        ((own_layer, target_layer),) = self.pairs(student.config, teacher.config)
        sees_BTT, total = same_example(batch), jnp.zeros(())
        for name in self.captures:
            own_BRTT = self._relations(student.of_heads(name, own_layer), sees_BTT)
            target_BRTT = self._relations(teacher.of_heads(name, target_layer), sees_BTT)
            losses_BRT = kl_divergence(target_BRTT, own_BRTT, temperature=1.0)
            total += jnp.sum(is_token(batch) * jnp.mean(losses_BRT, axis=1))
        return total, {}

    def _relations(self, vectors_BTHD: jax.Array, sees_BTT: jax.Array) -> jax.Array:
        """Return scaled dot products before the softmax, float32 [B, R, T, T]."""
        # Merge the heads and split again: relation heads need not match attention heads.
        vectors_BTRD = vectors_BTHD.reshape(*vectors_BTHD.shape[:2], self.heads, -1)
        scores_BRTT = jnp.einsum("bqrd,btrd->brqt", vectors_BTRD, vectors_BTRD) * vectors_BTRD.shape[-1] ** -0.5
        # Rows are packed: tokens in other examples get no probability.
        return jnp.where(sees_BTT[:, None], scores_BRTT, jnp.finfo(jnp.float32).min)
