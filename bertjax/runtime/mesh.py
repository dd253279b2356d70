"""The mesh axes, and access to other batch shards from inside `jax.shard_map`, in which `terms` runs."""

import jax

# All mesh axes, and the ones that shard batch rows.
AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")


def gather_rows(array: jax.Array) -> jax.Array:
    """Concatenate an array over all batch shards; differentiable.

    Gradients are summed over shards, which gives the whole batch's gradient with respect to this shard. Outside
    `shard_map` there is one shard.
    """
    axes = _sharded_axes()
    return jax.lax.all_gather(array, axes, axis=0, tiled=True) if axes else array


def shard_index() -> jax.Array | int:
    """Return this shard's index in the result of `gather_rows`."""
    axes = _sharded_axes()
    return jax.lax.axis_index(axes) if axes else 0


def _sharded_axes() -> tuple[str, ...]:
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in BATCH_AXES if axis in manual)
