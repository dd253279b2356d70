"""Sharding strategies: weight storage, weight gathering, gradient reduction.

The forward and backward pass run in `jax.shard_map` over `data` and `fsdp`, each device on its own rows. All
collectives over these axes are in this file, so the compiler does not have to infer any. The axis `tensor` is left to
the compiler. The optimizer is elementwise on shards of weights and moments, so only norms need collectives.

- `replicated` (data parallelism): every device keeps all weights and moments, as with `gathered` and fsdp=1.
- `gathered` (ZeRO-2 with sharded weights): weights and moments are sharded over `fsdp`. Weights are gathered once per
  step in the compute dtype, and gradients are reduce-scattered (Rajbhandari et al., 2020, "ZeRO", arXiv 1910.02054).
- `fsdp` (ZeRO-3): the same, but each layer is gathered just before its computation, forward and backward, and then
  freed. Only one layer's weights are in memory at a time. Twice as much is gathered, overlapped if the chip can.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import linear_call
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.models.layers import GATHERED
from bertjax.runtime.devices import AXES, BATCH_AXES
from bertjax.runtime.errors import UserError
from bertjax.training.param_paths import map_with_path

# (regular expression for paths, partition spec) of params and of all arrays of a state; the first match applies.
Rules = Sequence[tuple[str, P]]
_LAYERS = "encoder/layers/"


def spec_of(path: str, leaf: Any, rules: Rules) -> P:
    """Return the partition spec of an array in a state or in params, by the first rule that matches its path.

    Scalars are replicated.

    Raises:
      UserError: no rule matches; the message has the line to add.
    """
    if leaf.ndim == 0:
        return P()
    for pattern, spec in rules:
        if re.search(pattern, path):
            # An optimizer's state may have fewer axes than its parameter, such as Adafactor's means over rows.
            return spec if len(spec) <= leaf.ndim else P()
    raise UserError(
        f'no sharding rule covers {path!r}; add (r"{path}$", P()) to sharding_rules in the traits of the objective'
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """A strategy on a mesh. Methods that "run on a shard" are called inside `shard_map`.

    Attributes:
      mesh: a mesh with the axes data, fsdp and tensor.
      rules: sharding rules for the params, see `sharding.py`.
      strategy: `replicated`, `gathered` or `fsdp`. With `replicated`, the axis fsdp has size 1, see `fill_mesh`.
      dtype: kernels and embedding tables are cast to it before they are gathered; everything else stays float32.
      reduction: dtype in which kernel and embedding gradients are summed over devices.
    """

    mesh: Mesh
    rules: Rules
    strategy: str
    dtype: str = "float32"
    reduction: str = "float32"

    @property
    def shards(self) -> int:
        """Number of parts that a batch's rows are split into."""
        return math.prod(self.mesh.shape[axis] for axis in BATCH_AXES)

    def shard_map(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """Wrap a per-shard function into one on global arrays; `tensor` is left to the compiler."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            # The compiler cannot shard a Pallas kernel, so make all axes manual if it has nothing to shard.
            axis_names=set(BATCH_AXES if self.mesh.shape["tensor"] > 1 else AXES),
            check_vma=False,  # all sums over devices are explicit, in `reduce_gradients` and `psum`
        )

    def specs(self, params: Any) -> Any:
        """Return the partition specs of params that enter `shard_map` and of gradients that leave it."""
        return map_with_path(
            lambda path, leaf: P(*(_without(entry, "tensor") for entry in spec_of(path, leaf, self.rules))), params
        )

    def gather_params(self, params: Any) -> Any:
        """Gather the params on a shard, except for layers that `gather_layer` gathers."""

        def gather(path: str, leaf: jax.Array) -> jax.Array:
            return leaf if self._is_gathered_by_layer(path) else self._gather(leaf, self._fsdp_axis(path, leaf))

        return map_with_path(gather, params)

    @property
    def gather_layer(self) -> Callable[[dict], dict] | None:
        """A function that gathers one layer's params on a shard; None if `gather_params` gathers all layers."""
        if self.strategy != "fsdp" or self.mesh.shape["fsdp"] == 1:
            return None

        def gather(path: str, leaf: jax.Array) -> jax.Array:
            if (axis := self._fsdp_axis(_LAYERS + path, jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype))) is None:
                return leaf
            # JAX's own transpose of an all-gather is a reduce-scatter in the dtype of the gather, not in `reduction`.
            gathered = linear_call(
                lambda _, leaf: self._gather(leaf, axis - 1), lambda _, grad: self._scatter(grad, axis - 1), (), leaf
            )
            return checkpoint_name(gathered, GATHERED)

        return lambda params: map_with_path(gather, params)

    def reduce_gradients(self, gradient: Any) -> Any:
        """Sum the gradients of gathered params over all shards, on a shard; the result is sharded by `specs`."""

        def reduce(path: str, leaf: jax.Array) -> jax.Array:
            axis = self._fsdp_axis(path, leaf)
            if axis is None:
                return self.psum(leaf.astype(jnp.float32))  # norms, biases: small, so float32 is cheap
            if self.mesh.shape["fsdp"] > 1 and not self._is_gathered_by_layer(path):  # those are already scattered
                leaf = self._scatter(leaf, axis)
            return self.psum(leaf.astype(self.reduction), ("data",)).astype(jnp.float32)

        return map_with_path(reduce, gradient)

    def psum(self, tree: Any, axes: tuple[str, ...] = BATCH_AXES) -> Any:
        """Sum a tree over all shards, or over those along some axes, on a shard, in one collective."""
        axes = tuple(axis for axis in axes if self.mesh.shape[axis] > 1)  # one device needs no collectives
        return jax.lax.psum(tree, axes) if axes else tree

    def _gather(self, leaf: jax.Array, axis: int | None) -> jax.Array:
        if axis is None:
            return leaf
        leaf = leaf.astype(self.dtype)  # before the gather: bfloat16 halves the bytes on the links
        if self.mesh.shape["fsdp"] == 1:
            return leaf
        return jax.lax.all_gather(leaf, "fsdp", axis=axis, tiled=True)

    def _scatter(self, gradient: jax.Array, axis: int) -> jax.Array:
        gradient = gradient.astype(self.reduction)
        return jax.lax.psum_scatter(gradient, "fsdp", scatter_dimension=axis, tiled=True).astype(jnp.float32)

    def _is_gathered_by_layer(self, path: str) -> bool:
        return self.gather_layer is not None and _LAYERS in path

    def _fsdp_axis(self, path: str, leaf: Any) -> int | None:
        """Return the axis that the rules shard over `fsdp`, or None."""
        for axis, entry in enumerate(spec_of(path, leaf, self.rules)):
            if "fsdp" in (entry if isinstance(entry, tuple) else (entry,)):
                return axis
        return None


def _without(entry: Any, axis: str) -> Any:
    """Remove a mesh axis from an entry of a partition spec."""
    names = tuple(name for name in (entry if isinstance(entry, tuple) else (entry,)) if name != axis)
    return names if len(names) > 1 else names[0] if names else None
