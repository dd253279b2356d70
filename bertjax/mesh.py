"""The mesh axes, and how `terms`, which runs in `jax.shard_map`, sees the other shards of its batch."""

import jax

# All mesh axes, and those over which the rows of a batch are sharded.
AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")


def gather_rows(array: jax.Array) -> jax.Array:
    """Return an array over the whole batch, concatenated from the parts of all shards; differentiable.

    Gradients are summed over the shards: the result is the gradient of the whole batch with respect to this part.
    Outside of `shard_map` there is one shard.
    """
    axes = _sharded_axes()
    return jax.lax.all_gather(array, axes, axis=0, tiled=True) if axes else array


def shard_index() -> jax.Array | int:
    """Return the index of this shard among the parts that `gather_rows` concatenates."""
    axes = _sharded_axes()
    return jax.lax.axis_index(axes) if axes else 0


def _sharded_axes() -> tuple[str, ...]:
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in BATCH_AXES if axis in manual)
