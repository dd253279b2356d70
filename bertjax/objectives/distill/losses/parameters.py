"""Parameter losses: compare pairs of layers through shared projections (Zhao et al., arXiv 1909.11687v1).

With another width, a student's hidden states do not fit the teacher's; with another vocabulary, it does not even read
the same tokens. Their parameters can still be compared.
"""

import dataclasses
import zlib
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from bertjax.models.streams import Streams
from bertjax.models.vocabulary import encoder_shapes
from bertjax.objectives.distill.losses import Pairs, Values
from bertjax.objectives.distill.losses.layers import MappedLoss
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.setting import setting

DIRECTIONS = UP, DOWN = ("up", "down")
_LAYERS = "layers/"
# Tables with one row per token, position, segment or task; the models may have different numbers of rows.
_TABLES = ("embeddings/word", "embeddings/position", "embeddings/segment", "embeddings/task")

Shapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Parameters(MappedLoss):
    """Mean squared difference between projected parameters and the other model's, averaged over parameter pairs.

    A student kernel W [m, n] becomes U^T W V [M, N] for a teacher kernel [M, N], and a bias b [n] becomes b V. U [m, M]
    is shared by all inputs with the same sizes, V [n, N] by all outputs; both are trained with the student and are not
    exported. An axis with the same size in both models has no projection. Embeddings (layer 0) are compared for the
    tokens, positions and segments that both models have.

    Attributes:
      direction: `up` projects the student's parameters to the teacher's size; `down` projects the teacher's to the
        student's size, by the transposes of U and V.
    """

    kind: str = dataclasses.field(default="parameters", init=False)
    direction: str = setting(UP, choices=DIRECTIONS)

    first_layer: ClassVar[int] = 0
    reads_text: ClassVar[bool] = False

    def pairs(self, student, teacher):
        pairs = super().pairs(student, teacher)
        for own, other in pairs:
            if (own == 0) != (other == 0):
                raise UserError(
                    f"pairs_of_layers of the teacher loss 'parameters' has {[own, other]}, which compares embeddings "
                    "with a layer; pair 0 with 0"
                )
        return pairs

    def reason_against(self, config):
        if config.sharing != "none":
            return f"model.sharing={config.sharing}, and not parameters for each layer; use kind=hidden"
        return f"model.block.kind={config.block.kind}; use kind=logits" if config.block.streams is Streams else ""

    def check(self, student, teacher):
        super().check(student, teacher)
        paths = ({path for path in encoder_shapes(config) if path.startswith(_LAYERS)} for config in (student, teacher))
        own, other = paths
        if odd := sorted(own ^ other):
            raise UserError(
                f"the layers of teacher and student do not have the same parameters ({shorten(odd)}), which the "
                "teacher loss 'parameters' compares; use the same settings of model, or kind=hidden"
            )
        self.check_equal("embeddings.position_offset", student, teacher)

    def init(self, key, student, teacher):
        own, other = encoder_shapes(student), encoder_shapes(teacher)
        sizes = {}
        for path in _compared(own, other, self.pairs(student, teacher)):
            sizes |= _projections(path, own, other)
        # Projections are named by size, so all axes with the same two sizes share one matrix.
        make = jax.nn.initializers.orthogonal()
        return {name: make(jax.random.fold_in(key, zlib.crc32(name.encode())), size) for name, size in sizes.items()}

    def terms(self, student, teacher, batch, params, soft_weights):
        own, other = encoder_shapes(student.config), encoder_shapes(teacher.config)
        pairs = self.pairs(student.config, teacher.config)
        own_params, other_params = _whole(student), _whole(teacher)
        distances = []
        for path in _compared(own, other, pairs):
            if path.startswith(_LAYERS):
                # Pairs count layers from 1; (0, 0) is the embeddings.
                own_layers, other_layers = zip(*(pair for pair in pairs if pair != (0, 0)))
                leaves = own_params[path][np.array(own_layers) - 1], other_params[path][np.array(other_layers) - 1]
            else:
                leaves = own_params[path][None], other_params[path][None]
            if path in _TABLES:
                # Tables may differ in length, as with max_positions: compare the rows that both have.
                rows = min(own[path][0], other[path][0])
                leaves = tuple(leaf[:, :rows] for leaf in leaves)
            projections = {name: params[name] for name in _projections(path, own, other)}
            squares = self._difference(*leaves, projections) ** 2
            distances.append(jnp.mean(squares, axis=tuple(range(1, squares.ndim))))
        # The loss is the same for every token; times W, because the step divides every term by its W.
        return jnp.mean(jnp.concatenate(distances)) * self.weight(batch, soft_weights), {}

    def _difference(self, own: jax.Array, other: jax.Array, projections: dict[str, jax.Array]) -> jax.Array:
        """Return the difference of parameters [layers, ..., n], in the teacher's (`up`) or student's (`down`) size."""
        values, target = (own, other) if self.direction == UP else (other, own)
        values, target = jnp.asarray(values, jnp.float32), jnp.asarray(target, jnp.float32)
        for name, matrix in projections.items():
            matrix = matrix if self.direction == UP else matrix.T
            # V multiplies the output axis from the right, U the input axis (second to last).
            values = values @ matrix if name.startswith("outputs") else jnp.einsum("lmn,mp->lpn", values, matrix)
        return values - target


def _compared(own: Shapes, other: Shapes, pairs: Pairs) -> list[str]:
    """Return the parameter paths that a loss on these pairs of layers compares."""
    roots = {"embeddings/" if pair == (0, 0) else _LAYERS for pair in pairs}
    return [path for path in own if path in other and path.startswith(tuple(roots))]


def _projections(path: str, own: Shapes, other: Shapes) -> dict[str, tuple[int, int]]:
    """Return {projection name: shape [student size, teacher size]} for a parameter."""
    sizes = {"outputs": (own[path][-1], other[path][-1])}
    if path.endswith("kernel"):
        sizes["inputs"] = own[path][-2], other[path][-2]
    return {f"{axis}_{size[0]}_{size[1]}": size for axis, size in sizes.items() if size[0] != size[1]}


def _whole(values: Values) -> dict[str, jax.Array]:
    """Return {path: parameter} for an encoder; gathers layers that are sharded over devices."""
    params, gather = values.params, values.config.execution.gather_layer
    layers = params["layers"] if gather is None else jax.lax.map(gather, params["layers"])
    return flatten_dict({"embeddings": params["embeddings"], "layers": layers}, sep="/")
