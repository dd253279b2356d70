"""Sharding rules: one table that maps every array path to a partition spec on the mesh."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.runtime.errors import UserError
from bertjax.runtime.mesh import BATCH_AXES
from bertjax.training.parallel.strategy import Rules, spec_of
from bertjax.training.param_paths import map_with_path

# The first matching rule applies. Stacked kernels start with the layer axis. The last axis stays unsharded if there is
# a choice: a TPU stores it in tiles of 128, which a small shard would not fill.
ENCODER_RULES: Rules = (
    (r"(encoder/embeddings|heads/.+)/word$", P("tensor", "fsdp")),
    (r"encoder/(embeddings/(position|segment|task)|shared/embedding)$", P(None, "fsdp")),
    (r"encoder/(embeddings/query|layers/attention/relative/segment)$", P()),
    (
        r"encoder/layers/(attention/(query|key|value|relative/distance)|(feedforward_\d+/)?intermediate|gate)/kernel$",
        P(None, "fsdp", "tensor"),
    ),
    (r"encoder/layers/(attention/(query|key|value)|(feedforward_\d+/)?intermediate|gate)/bias$", P(None, "tensor")),
    (r"encoder/layers/(forward|backward)/(input/)?kernel$", P(None, "fsdp", None)),
    (r"encoder/layers/bottleneck/(input|attention|output)/kernel$", P(None, "fsdp", None)),
    (r"encoder/layers/(attention/|feedforward_\d+/)?output/kernel$", P(None, ("tensor", "fsdp"), None)),
    (r"encoder/.*(bias|scale)$", P()),
    (r"encoder/((embeddings/)?projection|pooler)/kernel$", P("fsdp", None)),
)
# Adam's step counts per parameter have other shapes than the parameters.
COUNT_RULES: Rules = ((r"(^|/)count/", P()),)
# Fallback: arrays under these roots are replicated, such as heads, the parameters of a user's block, and small arrays
# that an optimizer keeps besides moments.
_REPLICATED = ("heads", "lora", "projections", "slots", "encoder/layers", "encoder/embeddings", "opt_state")
HEAD_RULES: Rules = tuple((rf"(^|/){root}/", P()) for root in _REPLICATED)


def shardings(tree: Any, rules: Rules, mesh: Mesh) -> Any:
    """Return a sharding for every leaf in a state or in params, see `spec_of`.

    Raises:
      UserError: no rule matches a path, or the devices do not divide an array's axis.
    """

    def sharding_of(path: str, leaf) -> NamedSharding:
        spec = spec_of(path, leaf, rules)
        for axis, names in enumerate(spec):
            names = names if isinstance(names, tuple) else (names,)
            devices = int(np.prod([mesh.shape[name] for name in names if name]))
            if leaf.shape[axis] % devices:
                raise UserError(
                    f"{path} with shape {leaf.shape} is not divisible by {devices} devices along its axis {axis} "
                    f"({' x '.join(name for name in names if name)}); choose another runtime.mesh"
                )
        return NamedSharding(mesh, spec)

    return map_with_path(sharding_of, tree)


def shardings_of(tree: Any) -> Any:
    """Return the shardings of arrays, or of their shapes."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding for arrays that every device holds completely."""
    return NamedSharding(mesh, P())


def batch_shards(mesh: Mesh) -> tuple[tuple[int, ...], int]:
    """Return (batch shards on this process's devices, total number of shards).

    A mesh orders devices by their links, so the devices of one process need not be neighbors in it.
    """
    devices_ST = mesh.devices.reshape(-1, mesh.shape["tensor"])
    # Devices along `tensor` hold the same rows, so a batch shard is one row of this array.
    is_local_S = [any(device.process_index == jax.process_index() for device in shard_T) for shard_T in devices_ST]
    return tuple(int(shard) for shard in np.flatnonzero(is_local_S)), len(is_local_S)


def put_batches(batches: Sequence[dict[str, np.ndarray]], mesh: Mesh) -> dict[str, jax.Array]:
    """Combine local batches for consecutive steps into global arrays [steps, B, ...], with B sharded over the mesh.

    A local batch holds the rows of this process's `batch_shards`, in order.
    """
    sharding = NamedSharding(mesh, P(None, BATCH_AXES))
    shards, count = batch_shards(mesh)

    def put(local: np.ndarray) -> jax.Array:
        # All shards are equally large, so the global number of rows follows from the local one.
        rows = local.shape[1] // len(shards) * count
        return jax.make_array_from_process_local_data(sharding, local, (len(local), rows, *local.shape[2:]))

    return {name: put(np.stack([batch[name] for batch in batches])) for name in batches[0]}


def put_global(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Shard a batch's rows over the mesh. Every process must hold the whole global batch."""
    sharding = NamedSharding(mesh, P(BATCH_AXES))
    # JAX asks only for slices on this process's own devices.
    return {
        name: jax.make_array_from_callback(values.shape, sharding, values.__getitem__) for name, values in batch.items()
    }
