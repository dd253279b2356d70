"""Teacher: a frozen model that provides targets, and the losses that compare a student with it.

A run opens the teacher's folder once, before its first step. Every objective has the fields `teacher` and
`teacher_losses` (`bertjax.objectives.teacher_losses`). The losses in this file belong to `Distillation`.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import export
from bertjax.data.labeled import labels
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig
from bertjax.models.tracing import with_possible_attention
from bertjax.objectives.losses import Sums, cosine_distance, kl_divergence
from bertjax.runtime.errors import UserError, shorten

Arrays = Mapping[str, jax.Array]

# Number of tokens per chunk of logits: with a vocabulary of 30,000, 1,024 tokens take 126 MB per model.
_TOKENS_AT_ONCE = 1024


# eq=False: comparing numpy arrays does not give one bool, and hashing needs only identity.
@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """The frozen model that a student imitates.

    Attributes:
      config: the teacher's architecture.
      params: its parameters, numpy arrays.
      tokenizer_fingerprint: identifies its tokenizer, which must be the student's.
      folder: export folder that was read; used in error messages.
      objective: plain settings of the objective it was trained on (of its first task).
      second_ids: int64 [V], the teacher's id for each piece in its second vocabulary (`bertjax.data.tokenizer.mixed`);
        None if it has only one.
      second_fingerprint: identifies the second vocabulary's tokenizer.
    """

    config: EncoderConfig
    params: dict
    tokenizer_fingerprint: str
    folder: Path = Path()
    objective: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    second_ids: np.ndarray | None = None
    second_fingerprint: str = ""

    @classmethod
    def read(cls, folder: os.PathLike | str) -> Self:
        """Read an export folder.

        Raises:
          UserError: the folder is not an export or is damaged.
        """
        folder = Path(folder).expanduser()
        model = export.read(folder)
        objective = next(iter(model.settings.get("tasks", {}).values()), {}).get("objective", {})
        teacher = cls(model.encoder, model.params, model.tokenizer.fingerprint, folder, objective)
        if not isinstance(tokenizer := model.tokenizer, MixedTokenizer):
            return teacher
        second = {"second_ids": tokenizer.second_ids, "second_fingerprint": tokenizer.second_fingerprint}
        return dataclasses.replace(teacher, **second)

    def config_beside(self, student: EncoderConfig) -> EncoderConfig:
        """Return the teacher's architecture with the student's execution settings and `task_type=0`.

        Attention falls back to plain if the student's implementation does not support the teacher.
        """
        # The student's task number means nothing in the teacher's own task table.
        execution = dataclasses.replace(student.execution, task_type=0)
        return with_possible_attention(dataclasses.replace(self.config, execution=execution))

    def head(self, name: str) -> dict:
        """Return the parameters of a head on the teacher's encoder.

        Raises:
          UserError: there is no such head, or it belongs to a generator, which is another encoder.
        """
        head = self.params.get("heads", {}).get(name)
        # ELECTRA's `mlm` head reads the generator's hidden states, not the encoder's.
        if head is None or "generator" in self.params:
            kind = "masked-LM" if name == "mlm" else name
            raise UserError(
                f"objective.teacher={self.folder} has no {kind} head on its encoder to imitate; name a model that was "
                "trained with one"
            )
        return head

    def outputs_of(self, classes: tuple[str, ...]) -> list[int]:
        """Return the teacher's output for each class of the student, matched by name.

        Raises:
          UserError: the teacher predicts other classes.
        """
        own = tuple(self.objective.get("classes", ()))
        if (places := labels.places_of(classes, own)) is None:
            raise UserError(
                f"objective.teacher={self.folder} predicts the classes {shorten(own)} and the student "
                f"{shorten(classes)}; name a teacher of this task"
            )
        return places

    def encoder_params(self, student: EncoderConfig) -> dict:
        """Return the encoder parameters; if there is a second vocabulary, only with its rows.

        Args:
          student: architecture of a student that uses this vocabulary.
        """
        if self.second_ids is None:
            return self.params["encoder"]

        def select(path: tuple, leaf: np.ndarray) -> np.ndarray:
            # Reorder the rows to the second vocabulary, which is the student's.
            return leaf[self.second_ids] if vocabulary.has_vocabulary_axis(path) else leaf

        return vocabulary.pad(jax.tree_util.tree_map_with_path(select, self.params["encoder"]), student)

    def check_tokenizer(self, fingerprint: str, reads_text: bool = True) -> None:
        """Raise UserError if the corpus tokenizer differs from the teacher's, or from its second vocabulary.

        Args:
          fingerprint: the corpus tokenizer's fingerprint.
          reads_text: whether the teacher runs; if not, its second vocabulary must be the corpus's.
        """
        if self.second_ids is not None and not reads_text:
            if self.second_fingerprint != fingerprint:
                raise UserError(
                    f"objective.teacher={self.folder} has a second vocabulary, which is not that of the corpus; set "
                    "data.tokenizer.model to the tokenizer that was given to bertjax extend --mix"
                )
        elif self.tokenizer_fingerprint != fingerprint:
            raise UserError(
                f"objective.teacher={self.folder} has another tokenizer than the corpus; set "
                f"data.tokenizer.model={self.folder / 'tokenizer'}"
            )

    def check(self, student: EncoderConfig, same_width: bool = False) -> None:
        """Raise UserError if a student of this architecture cannot be compared with the teacher.

        Args:
          student: the student's architecture.
          same_width: whether hidden states are compared directly.
        """
        if same_width and self.config.width != student.width:
            raise UserError(
                f"objective.teacher={self.folder} has width={self.config.width} and the student {student.width}, so "
                f"their hidden states cannot be compared; set model.width={self.config.width}"
            )
        if self.config.embeddings.has_position_table and self.config.max_positions < student.max_positions:
            raise UserError(
                f"objective.teacher={self.folder} has max_positions={self.config.max_positions} and the student "
                f"{student.max_positions}; set model.max_positions={self.config.max_positions}"
            )

    def check_vocabulary(self, student: EncoderConfig, reads_text: bool = True) -> None:
        """Raise UserError if the student's vocabulary size differs; it is known once there is a tokenizer.

        Args:
          student: the student's architecture.
          reads_text: see `check_tokenizer`.
        """
        size = self.config.vocab_size if self.second_ids is None or reads_text else len(self.second_ids)
        if size != student.vocab_size:
            raise UserError(
                f"objective.teacher={self.folder} has {size} tokens and the student {student.vocab_size}; set "
                f"model.vocab_size={size}"
            )


@dataclasses.dataclass(frozen=True)
class LogitsLoss:
    """KL divergence at predicted positions. Metric: `agreement`.

    Attributes:
      head: name of the logits [B, K, V], and prefix of the features with the predicted positions.
      temperature: divides student and teacher logits.
      term: name of the loss term.
    """

    head: str = "mlm"
    temperature: float = 1.0
    term: str = "soft"

    def weight(self, batch: Arrays) -> jax.Array:
        """Return W, the number of predicted tokens."""
        return jnp.sum(batch[f"{self.head}_weights_BK"])

    def terms(self, student: Arrays, teacher: Arrays, batch: Arrays) -> tuple[dict[str, jax.Array], dict[str, Sums]]:
        """Return the term and `agreement`, how often both models rank the same token first."""
        student_BKV, teacher_BKV = student[self.head], teacher[self.head]
        weights_BK = batch[f"{self.head}_weights_BK"]
        divergence = jnp.sum(weights_BK * kl_divergence(teacher_BKV, student_BKV, self.temperature))
        agreed = jnp.sum(weights_BK * (student_BKV.argmax(axis=-1) == teacher_BKV.argmax(axis=-1)))
        return {self.term: divergence}, {"agreement": (agreed, jnp.sum(weights_BK))}


@dataclasses.dataclass(frozen=True)
class TokenLogitsLoss:
    """KL divergence at all tokens, including special symbols. Metric: `agreement`.

    Logits [B, T, V] for the whole batch never exist at once, yet none are computed twice, see `_in_parts`.

    Attributes:
      temperature: divides student and teacher logits.
      term: name of the loss term.
    """

    temperature: float = 1.0
    term: str = "soft"

    def weight(self, batch: Arrays) -> jax.Array:
        """Return W, the number of tokens."""
        return _tokens(batch)

    def terms(
        self, student: Mapping[str, Any], teacher: Mapping[str, Any], batch: Arrays
    ) -> tuple[dict[str, jax.Array], dict[str, Sums]]:
        """Return the term and `agreement`, how often both models rank the same token first.

        Args:
          student, teacher: {`hidden`: hidden_BTD, `head`: a function from hidden_BTD to logits_BTV}.
          batch: core batch.
        """
        is_token_BT = (batch["examples_BT"] > 0).astype(jnp.float32)
        rows, seq_len = is_token_BT.shape
        most = max(1, _TOKENS_AT_ONCE // seq_len)
        # The largest number of rows per chunk that divides the batch.
        at_once = max(size for size in range(1, min(rows, most) + 1) if rows % size == 0)

        def parts(array: jax.Array) -> jax.Array:
            return array.reshape(-1, at_once, *array.shape[1:])

        student_PBTD, teacher_PBTD = parts(student["hidden"]), parts(teacher["hidden"])
        # Make the parameters that `head` closes over explicit: custom_vjp cannot differentiate closed-over values.
        head, params = jax.closure_convert(student["head"], student_PBTD[0])

        def of_part(student_BTD, params, constants):
            teacher_BTD, is_token_BT = constants
            student_BTV, teacher_BTV = head(student_BTD, *params), teacher["head"](teacher_BTD)
            divergence_BT = kl_divergence(teacher_BTV, student_BTV, self.temperature)
            agrees_BT = student_BTV.argmax(axis=-1) == teacher_BTV.argmax(axis=-1)
            return jnp.sum(divergence_BT * is_token_BT), jnp.sum(agrees_BT * is_token_BT)

        divergence, agreed = _in_parts(of_part, student_PBTD, params, (teacher_PBTD, parts(is_token_BT)))
        return {self.term: divergence}, {"agreement": (agreed, jnp.sum(is_token_BT))}


def _in_parts(function: Callable[..., Sums], states: jax.Array, params: Any, constants: Any) -> Sums:
    """Sum a function's value and metric over parts of a batch, one part at a time.

    The gradient of a sum over parts is known up to one scalar factor, the incoming gradient. So the forward pass
    computes each part's gradient right after its value and saves that, instead of the (much larger) inputs of a
    backward pass.

    Args:
      function: maps a part of `states`, `params` and a part of `constants` to (value, metric).
      states: [P, ...], the parts.
      params: other values to differentiate.
      constants: arrays [P, ...].
    """

    @jax.custom_vjp
    def sums(states, params):
        return tuple(map(jnp.sum, jax.lax.map(lambda part: function(part[0], params, part[1]), (states, constants))))

    def forward(states, params):
        def add(total, part):
            # has_aux: the metric comes along without a gradient.
            values, (of_states, of_params) = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)(
                part[0], params, part[1]
            )
            return jax.tree.map(jnp.add, total, (values, of_params)), of_states

        zeros = jnp.float32(0.0), jnp.float32(0.0)
        (total, of_params), of_states = jax.lax.scan(
            add, (zeros, jax.tree.map(jnp.zeros_like, params)), (states, constants)
        )
        return total, (of_states, of_params)

    # factors[1] belongs to the metric, which is not differentiated.
    def backward(gradients, factors):
        return jax.tree.map(lambda gradient: (factors[0] * gradient).astype(gradient.dtype), gradients)

    sums.defvjp(forward, backward)
    return sums(states, params)


@dataclasses.dataclass(frozen=True)
class CosineLoss:
    """One minus the cosine between last hidden states, over all tokens.

    Attributes:
      term: name of the loss term.
    """

    term: str = "cosine"

    def weight(self, batch: Arrays) -> jax.Array:
        """Return W, the number of tokens."""
        return _tokens(batch)

    def terms(self, student: Arrays, teacher: Arrays, batch: Arrays) -> tuple[dict[str, jax.Array], dict[str, Sums]]:
        """Return the term."""
        return {self.term: cosine_distance(student["hidden"], teacher["hidden"], batch["examples_BT"] > 0)}, {}


def _tokens(batch: Arrays) -> jax.Array:
    return jnp.sum(batch["examples_BT"] > 0).astype(jnp.float32)
