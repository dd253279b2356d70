"""Teacher: a frozen model that provides targets. A run opens its folder once, before its first step."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertjax.config import export
from bertjax.data.labeled import labels
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig
from bertjax.models.kernel_choice import with_possible_attention
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.storage import place_of


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
        folder = place_of(folder, reads_remote=False)
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
        # Reorder the rows to the second vocabulary, which is the student's.
        return vocabulary.pad(vocabulary.changed(self.params["encoder"], lambda leaf: leaf[self.second_ids]), student)

    def check_tokenizer(self, fingerprint: str, reads_text: bool = True) -> None:
        """Raise UserError if the corpus tokenizer differs from the teacher's, or from its second vocabulary.

        Args:
          fingerprint: the corpus tokenizer's fingerprint.
          reads_text: whether the teacher runs; if not, its second vocabulary must be the corpus's.
        """
        own, tokenizer = self.tokenizer_fingerprint, f"{self.folder / 'tokenizer'}"
        if self.second_ids is not None and not reads_text:
            own, tokenizer = self.second_fingerprint, "TOKENIZER, the one that was given to bertjax extend --mix"
        if own != fingerprint:
            raise UserError(
                f"objective.teacher={self.folder} has another tokenizer than the corpus; set "
                f"data.tokenizer.model={tokenizer}"
            )

    def check(self, student: EncoderConfig) -> None:
        """Raise UserError if a student of this architecture reads longer rows than the teacher can."""
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
