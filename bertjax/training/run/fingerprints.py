"""Array fingerprints: full arrays to verify checkpoints, each device's copy to detect corruption."""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.runtime.errors import RunFailed, shorten
from bertjax.training.parallel import processes
from bertjax.training.param_paths import leaves_of


def _leaf_fingerprint(leaf: jax.Array) -> jax.Array:
    """Hash an array to uint32: mix each word with its position and sum. Flips and swaps change the sum.

    The mix is a bijection for each position (MurmurHash3's finalizer), so changing one word always changes the sum.
    """
    # Unlike in a chained hash, the order of summation does not matter: XLA may reduce in parallel, also over shards.
    words = _words(leaf.ravel()).ravel()
    # Without the position (times Knuth's multiplier, 2^32 / golden ratio), swapped words would keep the sum.
    words ^= jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(2654435761)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words = (words ^ (words >> shift)) * jnp.uint32(factor)
    return jnp.sum(words ^ (words >> 16), dtype=jnp.uint32)


def _words(leaf: jax.Array) -> jax.Array:
    """Return each element's bits as one or more uint32; an objective's slots may have any dtype."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag])
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    bits = (jnp.finfo if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.iinfo)(leaf.dtype).bits
    if bits >= 32:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32)  # 64 bits become two words
    return jax.lax.bitcast_convert_type(leaf, f"uint{bits}").astype(jnp.uint32)


_fingerprint_tree = jax.jit(lambda tree: jax.tree.map(_leaf_fingerprint, tree))


def fingerprints(tree: Any) -> dict[str, int]:
    """Return {path: fingerprint} for all leaves."""
    return {path: int(value) for path, value in leaves_of(jax.device_get(_fingerprint_tree(tree))).items()}


def check_replicas(state: Any, step: int) -> None:
    """Compare the copies of replicated arrays between devices; all processes call this at the same step.

    Gradients are summed over devices, but copies of weights are never compared, so a flipped bit in one copy persists.

    Args:
      state: a tree of arrays.
      step: step of the state, for messages.

    Raises:
      RunFailed: a device's copy differs from the others, or another process is at another step.
    """
    leaves = {path: leaf for path, leaf in leaves_of(state).items() if isinstance(leaf.sharding, NamedSharding)}
    if jax.process_count() == 1 and all(len(leaf.sharding.device_set) == 1 for leaf in leaves.values()):
        return
    # Each device hashes its own shards, so only a few bytes per array and device travel between hosts.
    mesh = next(iter(leaves.values())).sharding.mesh
    by_device = _on_each_device(mesh, tuple(leaf.sharding.spec for leaf in leaves.values()))(*leaves.values())
    local = {shard.device.id: np.asarray(shard.data)[0].tobytes().hex() for shard in by_device.addressable_shards}
    values: dict[int, np.ndarray] = {}
    for rows in processes.gather(list(local.items()), f"replicas-{step}"):
        values |= {device: np.frombuffer(bytes.fromhex(row), np.uint32) for device, row in rows}
    # The majority names the faulty device, if at least three devices hold copies.
    wrong = collections.defaultdict(list)
    for index, (path, leaf) in enumerate(leaves.items()):
        for devices in _replicas(leaf.sharding, leaf.shape):
            for device in _disagreeing(devices, [values[device.id][index] for device in devices]):
                wrong[device].append(path)
    if wrong:
        devices = "; ".join(
            f"{device} of process {device.process_index} in {shorten(paths, limit=1)}"
            for device, paths in wrong.items()
        )
        raise RunFailed(
            f"after step {step} the copies of the state differ between devices ({devices}); nothing was saved after it "
            "and the older checkpoints are kept; run the same command again without the machine of that process"
        )


@functools.cache
def _on_each_device(mesh: Mesh, specs: tuple[P, ...]) -> Callable[..., jax.Array]:
    """Return a function from arrays to the fingerprints of each device's shards, uint32 [device, array]."""

    def local(*shards: jax.Array) -> jax.Array:
        return jnp.stack([_leaf_fingerprint(shard) for shard in shards])[None]

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(mesh.axis_names), check_vma=False))


@functools.cache
def _replicas(sharding: NamedSharding, shape: tuple[int, ...]) -> list[list[jax.Device]]:
    """Return groups of devices that must hold identical copies of an array's shard.

    On GPU, devices along `tensor` are not compared. Each computes the same gradient itself, and a GPU's scatter adds in
    any order, so roundings may differ. Devices along the other axes receive the same sum.
    """
    groups = collections.defaultdict(list)
    places = dict(zip(sharding.mesh.devices.flat, np.ndindex(sharding.mesh.devices.shape)))
    for device, part in sharding.devices_indices_map(shape).items():
        alone = places[device][sharding.mesh.axis_names.index("tensor")] if device.platform == "gpu" else 0
        groups[str(part), alone].append(device)
    return list(groups.values())


def _disagreeing(devices: Sequence[jax.Device], values: Sequence[int]) -> list[jax.Device]:
    """Return the devices that disagree with the majority, or all devices if there is no majority."""
    common, count = collections.Counter(values).most_common(1)[0]
    return [device for device, value in zip(devices, values) if value != common or 2 * count <= len(values)]
