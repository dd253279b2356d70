"""Layer maps: pair each student layer with a teacher layer."""

import dataclasses

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
