"""Layer maps: pair each student layer with a teacher layer."""

import dataclasses
from typing import ClassVar

from bertjax.models.config import EncoderConfig
from bertjax.objectives.distill.losses import Pairs, TeacherLoss
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

    # 0 in subclasses that can also compare embeddings.
    first_layer: ClassVar[int] = 1

    def __post_init__(self):
        super().__post_init__()
        if wrong := [list(pair) for pair in self.pairs_of_layers if len(pair) != 2]:
            raise UserError(
                f"pairs_of_layers of the teacher loss {self.kind!r} has {wrong[0]}; give pairs, such as [[1, 2]]"
            )

    def pairs(self, student: EncoderConfig, teacher: EncoderConfig) -> Pairs:
        pairs = self.pairs_of_layers or _MAPS[self.layer_map](self.first_layer, student.layers, teacher.layers)
        about = f"the teacher loss {self.kind!r} with {self._described}"
        if not pairs:
            raise UserError(
                f"{about} compares no layers of a student of {student.layers} and a teacher of {teacher.layers}; "
                "set pairs_of_layers, or layer_map=uniform"
            )
        for own, others in pairs:
            if not (self.first_layer <= own <= student.layers and self.first_layer <= others <= teacher.layers):
                raise UserError(
                    f"{about} compares layer {own} with the teacher's layer {others}; the student has layers "
                    f"{self.first_layer} to {student.layers} and the teacher {self.first_layer} to {teacher.layers}: "
                    "correct pairs_of_layers"
                )
        return tuple((own, others) for own, others in pairs)

    @property
    def _described(self) -> str:
        if self.pairs_of_layers:
            return f"pairs_of_layers={[list(pair) for pair in self.pairs_of_layers]}"
        return f"layer_map={self.layer_map}"


def uniform(first: int, student: int, teacher: int) -> Pairs:
    """Return the pairs of the map `uniform`.

    Args:
      first: 0 to also compare the embeddings, else 1.
      student, teacher: numbers of layers.
    """
    return tuple((layer, layer * _stride("uniform", student, teacher)) for layer in range(first, student + 1))


def skip(first: int, student: int, teacher: int) -> Pairs:
    """Return the pairs of the map `skip`; arguments as in `uniform`."""
    # PKD leaves the last layer to the soft targets, which already compare its output (section 3.2).
    return tuple((layer, layer * _stride("skip", student, teacher)) for layer in range(1, student))


def last(first: int, student: int, teacher: int) -> Pairs:
    """Return the pairs of the map `last`; arguments as in `uniform`."""
    if student > teacher:
        raise UserError(
            f"layer_map=last does not fit: the student has {student} layers and the teacher {teacher}; set "
            "pairs_of_layers"
        )
    return tuple((layer, teacher - student + layer) for layer in range(1, student))


_MAPS = {UNIFORM: uniform, SKIP: skip, LAST: last}


def _stride(name: str, student: int, teacher: int) -> int:
    if teacher % student:
        raise UserError(
            f"layer_map={name} does not fit: the {student} layers of the student do not divide the {teacher} of the "
            "teacher; set layer_map=last, or pairs_of_layers"
        )
    return teacher // student
