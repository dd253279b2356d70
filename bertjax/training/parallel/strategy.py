"""Sharding strategies: where weights rest, when they are whole, how gradients are summed.

Forward and backward pass run in `jax.shard_map` over `data` and `fsdp`, each device on rows of its own, so that no
collective is left to be guessed: all of them stand here. The axis `tensor` stays with the compiler. What the optimizer
does to the shards of weights and moments is elementwise and needs none but norms.

- `replicated`: every device keeps all weights and moments; gradients are summed (data parallelism). It is the next one
  with an axis `fsdp` of one device.
- `gathered`: weights and moments are shared out over `fsdp`; the weights are gathered once a step in the compute dtype,
  and gradients reduce-scattered (Rajbhandari et al., 2020, "ZeRO", arXiv 1910.02054, stage 2 with sharded weights).
- `fsdp`: the same, but each layer is gathered when it is computed, forward and backward, and let go after it (ZeRO,
  stage 3): the weights of one layer at a time, for twice the gathering.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.errors import UserError
from bertjax.mesh import BATCH_AXES
from bertjax.models.config import GATHERED, EncoderConfig
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.sharding import AXES, Rules, count_slices, spec_of
from bertjax.training.param_paths import map_with_path

# Above, one whole copy of the weights beside the activations is too much for a chip of 16 GiB.
_LARGEST_GATHERED = 1_000_000_000
_LAYERS = "encoder/layers/"


@dataclasses.dataclass(frozen=True)
class Layout:
    """A strategy on a mesh.

    Attributes:
      mesh: of axes data, fsdp and tensor.
      rules: the table for params.
      strategy: `replicated`, `gathered` or `fsdp`; the first has a mesh whose axis fsdp is 1, see `fill_mesh`.
      dtype: of the weights that the passes see; kernels and embedding tables only, the rest stays float32.
      reduction: dtype in which their gradients are summed over devices.
    """

    mesh: Mesh
    rules: Rules
    strategy: str
    dtype: str = "float32"
    reduction: str = "float32"

    @property
    def shards(self) -> int:
        """Devices among which the rows of a batch are shared out."""
        return math.prod(self.mesh.shape[axis] for axis in BATCH_AXES)

    def shard_map(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """`function` of global arrays, run by each device on its share of them; `tensor` is left to the compiler."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            # With nothing left to the compiler, the function may call kernels, which it cannot take apart.
            axis_names=set(BATCH_AXES if self.mesh.shape["tensor"] > 1 else AXES),
            check_vma=False,  # what is summed over devices is told by `reduce_gradients` and `psum`
        )

    def specs(self, params: Any) -> Any:
        """How params come into `shard_map` and gradients leave it."""
        return map_with_path(
            lambda path, leaf: P(*(_without(entry, "tensor") for entry in spec_of(path, leaf, self.rules))),
            params,
        )

    def gather_params(self, params: Any) -> Any:
        """On a shard: the params that the passes read, gathered but for those that `gather_layer` gathers."""

        def gather(path: str, leaf: jax.Array) -> jax.Array:
            return leaf if self._by_layer(path) else self._gather(leaf, self._fsdp_axis(path, leaf))

        return map_with_path(gather, params)

    @property
    def gather_layer(self) -> Callable[[dict], dict] | None:
        """On a shard: the params of one layer, gathered; None where all layers are whole already."""
        if self.strategy != "fsdp":
            return None

        def gather(path: str, leaf: jax.Array) -> jax.Array:
            stacked = jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)
            axis = self._fsdp_axis(_LAYERS + path, stacked)
            return leaf if axis is None else checkpoint_name(self._gather(leaf, axis - 1), GATHERED)

        return lambda params: map_with_path(gather, params)

    def reduce_gradients(self, gradient: Any) -> Any:
        """On a shard: gradients with respect to gathered params, summed over all shards and laid out as `specs` say."""

        def reduce(path: str, leaf: jax.Array) -> jax.Array:
            axis = self._fsdp_axis(path, leaf)
            if axis is None:
                return self._sum(leaf.astype(jnp.float32), BATCH_AXES)
            leaf = leaf.astype(self.reduction)
            # A layer that was gathered by itself comes back from the backward pass scattered.
            if self.mesh.shape["fsdp"] > 1 and not self._by_layer(path):
                leaf = jax.lax.psum_scatter(leaf, "fsdp", scatter_dimension=axis, tiled=True)
            return self._sum(leaf, ("data",)).astype(jnp.float32)

        return map_with_path(reduce, gradient)

    def psum(self, tree: Any) -> Any:
        """On a shard: sums over all shards, in one collective."""
        return self._sum(tree, BATCH_AXES)

    def _sum(self, tree: Any, axes: tuple[str, ...]) -> Any:
        axes = tuple(axis for axis in axes if self.mesh.shape[axis] > 1)
        return jax.lax.psum(tree, axes) if axes else tree

    def _gather(self, leaf: jax.Array, axis: int | None) -> jax.Array:
        if axis is None:
            return leaf
        leaf = leaf.astype(self.dtype)
        if self.mesh.shape["fsdp"] == 1:
            return leaf
        return jax.lax.all_gather(leaf, "fsdp", axis=axis, tiled=True)

    def _by_layer(self, path: str) -> bool:
        return self.strategy == "fsdp" and _LAYERS in path

    def _fsdp_axis(self, path: str, leaf: Any) -> int | None:
        """The axis of a leaf that the table shares out over `fsdp`."""
        for axis, entry in enumerate(spec_of(path, leaf, self.rules)):
            if "fsdp" in (entry if isinstance(entry, tuple) else (entry,)):
                return axis
        return None


def choose_strategy(strategy: str, parameters: int) -> str:
    """`auto` is `gathered` up to a billion parameters and `fsdp` above."""
    if strategy != "auto":
        return strategy
    return "gathered" if parameters <= _LARGEST_GATHERED else "fsdp"


def fill_mesh(
    config: MeshConfig, strategy: str, encoders: Sequence[EncoderConfig], devices: list[jax.Device]
) -> MeshConfig:
    """A mesh whose `fsdp` is a number, for a strategy that is not `auto`.

    0 becomes the most devices of a slice that share out the encoders' widths evenly, and 1 where every device keeps
    everything.

    Raises:
      UserError: the strategy replicates and the mesh shares out.
    """
    if strategy == "replicated":
        if config.fsdp > 1:
            raise UserError(
                f"runtime.strategy=replicated contradicts runtime.mesh.fsdp={config.fsdp}; use strategy=gathered or "
                "fsdp to share weights out, or leave mesh.fsdp 0"
            )
        return dataclasses.replace(config, fsdp=1)
    if config.fsdp:
        return config
    available = len(devices) // count_slices(devices) // config.tensor
    if config.data:
        available = len(devices) // config.data // config.tensor
    widths = [
        width
        for encoder in encoders
        for width in (encoder.embedded_width, encoder.width // config.tensor, encoder.feedforward // config.tensor)
    ]
    return dataclasses.replace(config, fsdp=math.gcd(max(available, 1), *widths))


def _without(entry: Any, axis: str) -> Any:
    """An entry of a spec without one axis."""
    if isinstance(entry, tuple):
        kept = tuple(name for name in entry if name != axis)
        return kept if len(kept) > 1 else kept[0] if kept else None
    return None if entry == axis else entry
