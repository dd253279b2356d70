"""What terms see of the other shards of a batch: `terms` runs on one shard, in `jax.shard_map` (`training/layout`)."""

import jax

# The axes of the mesh over which the rows of a batch are shared out.
BATCH_AXES = ("data", "fsdp")


def gather_rows(array: jax.Array) -> jax.Array:
    """The first axis of an array over the whole batch, from its part on this shard; differentiable.

    A gradient that comes back is summed over the shards: that of the whole batch with respect to this part. Outside of
    `shard_map` there is one shard.
    """
    axes = _shared_axes()
    return jax.lax.all_gather(array, axes, axis=0, tiled=True) if axes else array


def shard_index() -> jax.Array | int:
    """The place of this shard among the parts that `gather_rows` joins."""
    axes = _shared_axes()
    return jax.lax.axis_index(axes) if axes else 0


def _shared_axes() -> tuple[str, ...]:
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in BATCH_AXES if axis in manual)
