"""A run's mesh and sharding strategy, and the sharding rules: one table from array paths to partition specs."""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.models.config import EncoderConfig
from bertjax.runtime.devices import AXES, BATCH_AXES
from bertjax.runtime.errors import UserError
from bertjax.training.config import MeshConfig
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


# Over 64 chips, libtpu 0.0.42 turns the all-gather of one of BERT's matrices into an all-reduce of the whole matrix.
_LARGEST_FSDP = 16
# The layers of a smaller model compute too little to pay for collectives in each layer.
_SMALLEST_BY_LAYER = 50_000_000


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return a mesh over all devices (or `devices`) with the axes data, fsdp and tensor.

    Only `data` crosses slices: fsdp and tensor communicate in every layer, so they stay on a slice's fast links.

    Raises:
      UserError: processes have different numbers of devices, the axes do not multiply to the number of devices, or
        fsdp x tensor does not divide a slice.
    """
    devices = jax.devices() if devices is None else devices
    counts = collections.Counter(device.process_index for device in devices)
    if len(set(counts.values())) > 1:
        raise UserError(
            f"processes have different numbers of devices ({', '.join(map(str, counts.values()))}), for which Orbax "
            "cannot write checkpoints; give each process the same number, as with CUDA_VISIBLE_DEVICES"
        )
    data = config.data or len(devices) // (config.fsdp * config.tensor)
    if data * config.fsdp * config.tensor != len(devices):
        raise UserError(
            f"runtime.mesh data={data} x fsdp={config.fsdp} x tensor={config.tensor} is not the {len(devices)} devices "
            "of the run; set runtime.mesh.data=0, and fsdp x tensor to a divisor of them"
        )
    slices = count_slices(devices)
    if data % slices:
        raise UserError(
            f"runtime.mesh fsdp={config.fsdp} x tensor={config.tensor} does not fit into a slice of "
            f"{len(devices) // slices} devices; set fsdp x tensor to a divisor of them"
        )
    shape = (data // slices, config.fsdp, config.tensor)
    # Lets 16 devices take one axis of an 8x8 torus and part of the other.
    split = {"allow_split_physical_axes": True}
    if slices > 1:
        grid = mesh_utils.create_hybrid_device_mesh(shape, (slices, 1, 1), devices, **split)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices, **split)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def count_slices(devices: Sequence[jax.Device]) -> int:
    """Return the number of TPU slices among the devices; 1 on other platforms."""
    return len({getattr(device, "slice_index", 0) for device in devices})


def choose_strategy(strategy: str, parameters: int, sharing: str = "none") -> str:
    """Resolve `auto`: `fsdp` from 50 million parameters on, `gathered` for smaller models and for shared layers.

    With `fsdp`, shared weights would be gathered again for each layer that uses them.
    """
    if strategy != "auto":
        return strategy
    return "fsdp" if parameters >= _SMALLEST_BY_LAYER and sharing == "none" else "gathered"


def fill_mesh(
    config: MeshConfig, strategy: str, encoders: Sequence[EncoderConfig], devices: list[jax.Device]
) -> MeshConfig:
    """Return the mesh with `fsdp` filled in, for a strategy other than `auto`.

    0 becomes 1 for `replicated`. Otherwise it becomes the largest number up to 16 that divides a slice's devices and
    all widths of the encoders.

    Raises:
      UserError: the strategy is `replicated`, and the mesh shards weights.
    """
    if strategy == "replicated":
        if config.fsdp > 1:
            raise UserError(
                f"runtime.strategy=replicated contradicts runtime.mesh.fsdp={config.fsdp}; use strategy=gathered or "
                "fsdp to shard weights, or leave mesh.fsdp=0"
            )
        return dataclasses.replace(config, fsdp=1)
    if config.fsdp:
        return config
    # fsdp must not cross slices, see `make_mesh`.
    available = len(devices) // count_slices(devices) // config.tensor
    if config.data:
        available = len(devices) // config.data // config.tensor
    widths = []
    for encoder in encoders:
        sharded = (wide // config.tensor for wide in encoder.block.tensor_widths(encoder))
        widths += [encoder.embedded_width, encoder.layer_width, *sharded]
    # A shard must have the same size on every device, so fsdp divides every width that the rules shard.
    # Without `max`, available = 0 would not limit the result: gcd(0, width) is the width.
    common = math.gcd(max(available, 1), *widths)
    return dataclasses.replace(config, fsdp=max(n for n in range(1, _LARGEST_FSDP + 1) if common % n == 0))
