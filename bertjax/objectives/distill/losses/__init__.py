"""Losses that compare a student with its teacher: the entries of `objective.losses`.

A loss names the values that it reads from both models, and compares them. The registry lists the built-in ones; name
your own as `module:Class`.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from bertjax.config.registry import Kind, Union
from bertjax.models.config import EncoderConfig
from bertjax.models.mixing import OUTPUT
from bertjax.models.streams import Streams
from bertjax.objectives.losses import Sums
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.setting import check, setting

Arrays = Mapping[str, jax.Array]
# (student's layer, teacher's layer) pairs; 0 is the embeddings and L the last layer.
Pairs = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Values:
    """Values that one of the two models computes for a batch.

    Attributes:
      config: the model's architecture.
      logits: [..., C], from `Objective.soft_logits`; None if no loss needs them.
      captured: {name: [layers, ...]}, see `mixing.apply_capturing`; `hidden` starts with the embeddings.
      layers: captured layers, counted from 0.
      params: encoder parameters; None if no loss needs them.
      token_logits: function from hidden_BTD to logits_BTV; None if no loss needs it.
    """

    config: EncoderConfig
    logits: jax.Array | None
    captured: Arrays
    layers: tuple[int, ...]
    params: dict | None = None
    token_logits: Callable[[jax.Array], jax.Array] | None = None

    def hidden(self, layer: int) -> jax.Array:
        """Return the states after a layer, float32 [B, T, D]; layer 0 is the embeddings."""
        # `captured` holds only the layers that some loss reads: look up the position of this one.
        place = 1 + self.layers.index(layer - 1) if layer else 0
        return self.captured["hidden"][place].astype(jnp.float32)

    def of_heads(self, name: str, layer: int) -> jax.Array:
        """Return `queries`, `keys` or `values` for a layer counted from 1, float32 [B, T, H, D / H]."""
        return self.captured[name][self.layers.index(layer - 1)].astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class TeacherLoss(Kind):
    """A loss that compares a student with its teacher. Fields of subclasses are settings.

    Attributes:
      factor: loss weight.
      captures: names of the captured values to read, see `mixing.apply_capturing`.
      needs_logits: whether it reads both models' logits, so that the teacher needs the head.
      needs_token_logits: whether it applies both models' masked-LM heads to every token.
      reads_text: whether it reads values that the teacher computes for a batch, so that both need the same tokenizer.
      first_layer: 0 if it can also compare embeddings, else 1.
    """

    factor: float = setting(1.0, least=0)
    captures: ClassVar[tuple[str, ...]] = ()
    needs_logits: ClassVar[bool] = False
    needs_token_logits: ClassVar[bool] = False
    reads_text: ClassVar[bool] = True
    first_layer: ClassVar[int] = 1

    def __post_init__(self):
        check(self, of=f" of the teacher loss {self.kind!r}")

    def pairs(self, student: EncoderConfig, teacher: EncoderConfig) -> Pairs:
        """Return the pairs of layers to compare.

        Raises:
          UserError: the models have no matching layers.
        """
        return ()

    def reason_against(self, config: EncoderConfig) -> str:
        """Return what keeps the loss from reading a model of this architecture, and a remedy; empty if nothing does."""
        of_layers = set(self.captures) - {OUTPUT}
        if of_layers and config.block.streams is Streams:
            return f"model.block.kind={config.block.kind} with a second stream; use kind=logits, output or token_logits"
        if lacking := of_layers - set(config.block.captures):
            return f"model.block.kind={config.block.kind} without {shorten(sorted(lacking))}; use kind=logits or hidden"
        return ""

    def check(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        """Raise UserError if models with these architectures cannot be compared."""
        for name, config in (("student", student), ("teacher", teacher)):
            if reason := self.reason_against(config):
                raise UserError(f"the teacher loss {self.kind!r} cannot compare models: the {name} has {reason}")
        self.pairs(student, teacher)

    def check_equal(self, name: str, student: EncoderConfig, teacher: EncoderConfig, remedy: str = "") -> None:
        """Raise UserError if the models differ in the setting `name`; `remedy` begins a list of remedies."""
        own, other = (operator.attrgetter(name)(config) for config in (student, teacher))
        if own != other:
            raise UserError(
                f"the teacher has {name}={other} and the student {own}, so that the teacher loss {self.kind!r} "
                f"cannot compare them; set {remedy}model.{name}={other}"
            )

    def possible(self, pairs: Pairs, student: EncoderConfig, teacher: EncoderConfig) -> Pairs:
        """Return pairs of layers, or raise UserError if there are none, or the models do not have these layers."""
        first, (most, most_of_teacher) = self.first_layer, (student.layers, teacher.layers)
        if not pairs:
            raise UserError(
                f"the teacher loss {self.kind!r} compares no layers of a student of {most} and a teacher of "
                f"{most_of_teacher}; set pairs_of_layers, or layer_map=uniform"
            )
        for own, other in pairs:
            if not (first <= own <= most and first <= other <= most_of_teacher):
                raise UserError(
                    f"the teacher loss {self.kind!r} compares layer {own} with the teacher's layer {other}; the "
                    f"student has layers {first} to {most} and the teacher {first} to {most_of_teacher}: correct them"
                )
        return tuple((own, other) for own, other in pairs)

    def init(self, key: jax.Array, student: EncoderConfig, teacher: EncoderConfig) -> dict:
        """Return parameters that are trained with the student and dropped on export."""
        return {}

    def weight(self, batch: Arrays, soft_weights: jax.Array | None) -> jax.Array:
        """Return W, the scalar normalizer of the sum.

        Args:
          batch: core batch and features.
          soft_weights: `Objective.soft_weights` if the loss needs logits.
        """
        return jnp.sum(is_token(batch))

    def terms(
        self, student: Values, teacher: Values, batch: Arrays, params: dict, soft_weights: jax.Array | None
    ) -> tuple[jax.Array, dict[str, Sums]]:
        """Return the loss sum, and metrics as (sum, weight).

        Args:
          student, teacher: values that the models computed.
          batch: core batch and features.
          params: parameters from `init`.
          soft_weights: see `weight`.
        """
        raise TypeError(f"{type(self).__name__} has no terms()")


def is_token(batch: Arrays) -> jax.Array:
    """Return 1 for tokens and 0 for padding, float32 [B, T]."""
    return (batch["examples_BT"] > 0).astype(jnp.float32)


def same_example(batch: Arrays) -> jax.Array:
    """Return which tokens belong to the same example, bool [B, T, T]."""
    examples_BT = batch["examples_BT"]
    # Padding (0) belongs to no example.
    return (examples_BT[:, :, None] == examples_BT[:, None, :]) & (examples_BT > 0)[:, :, None]


TEACHER_LOSSES = Union(
    "objective.losses.*",
    TeacherLoss,
    default="logits",
    # As strings, because a module is imported only when its class is used.
    kinds={
        "logits": "bertjax.objectives.distill.losses.logits:SoftLogits",
        "token_logits": "bertjax.objectives.distill.losses.logits:TokenLogits",
        "output": "bertjax.objectives.distill.losses.layers:OutputCosine",
        "hidden": "bertjax.objectives.distill.losses.layers:HiddenStates",
        "attention": "bertjax.objectives.distill.losses.layers:AttentionMaps",
        "relations": "bertjax.objectives.distill.losses.layers:Relations",
        "parameters": "bertjax.objectives.distill.losses.parameters:Parameters",
    },
)
