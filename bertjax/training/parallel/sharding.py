"""The mesh, and the one table that says how every array lies on it."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.errors import UserError
from bertjax.mesh import BATCH_AXES
from bertjax.training.config import MeshConfig
from bertjax.training.param_paths import map_with_path

Rules = Sequence[tuple[str, P]]

AXES = ("data", "fsdp", "tensor")

# First match wins. Kernels of the stack have the layer axis first. Where there is a choice, the last axis stays whole:
# a TPU keeps it in tiles of 128, which a small share would not fill.
ENCODER_RULES: Rules = (
    (r"encoder/embeddings/word$", P("tensor", "fsdp")),
    (r"encoder/embeddings/(position|segment|task)$", P(None, "fsdp")),
    (r"encoder/(embeddings/query|layers/attention/relative/segment)$", P()),
    (
        r"encoder/layers/(attention/(query|key|value|relative/distance)|intermediate|gate)/kernel$",
        P(None, "fsdp", "tensor"),
    ),
    (r"encoder/layers/(attention/(query|key|value)|intermediate|gate)/bias$", P(None, "tensor")),
    (r"encoder/layers/(attention/)?output/kernel$", P(None, ("tensor", "fsdp"), None)),
    (r"encoder/.*(bias|scale)$", P()),
    (r"encoder/(projection|pooler)/kernel$", P("fsdp", None)),
)
HEAD_RULES: Rules = ((r"(^|/)heads/", P()),)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of all devices (or of those given) over the axes data, fsdp and tensor.

    Only `data` crosses slices: what fsdp and tensor exchange in every layer stays within one.

    Raises:
      UserError: the axes do not multiply to the number of devices, or fsdp x tensor to a divisor of a slice.
    """
    devices = jax.devices() if devices is None else devices
    data = config.data or len(devices) // (config.fsdp * config.tensor)
    if data * config.fsdp * config.tensor != len(devices):
        raise UserError(
            f"runtime.mesh data={data} x fsdp={config.fsdp} x tensor={config.tensor} does not make {len(devices)} "
            "devices; set runtime.mesh.data=0 and let fsdp x tensor divide them"
        )
    slices = count_slices(devices)
    if data % slices:
        raise UserError(
            f"runtime.mesh fsdp={config.fsdp} x tensor={config.tensor} does not fit into a slice of "
            f"{len(devices) // slices} devices; let fsdp x tensor divide them"
        )
    shape = (data // slices, config.fsdp, config.tensor)
    types = (AxisType.Auto,) * len(AXES)
    if slices > 1:
        laid_out = mesh_utils.create_hybrid_device_mesh(shape, (slices, 1, 1), devices)
        return Mesh(laid_out, AXES, axis_types=types)
    return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)


def count_slices(devices: Sequence[jax.Device]) -> int:
    """How many TPU slices the devices belong to; 1 on other platforms."""
    return len({getattr(device, "slice_index", 0) for device in devices})


def spec_of(path: str, leaf: Any, rules: Rules) -> P:
    """Where an array of a state or of params lies, by the first rule that its path matches; scalars on every device.

    Raises:
      UserError: no rule covers the path; with the line to add.
    """
    if leaf.ndim == 0:
        return P()
    for pattern, spec in rules:
        if re.search(pattern, path):
            return spec
    raise UserError(f'no sharding rule covers {path!r}; add (r"{path}$", P()) to the objective\'s sharding_rules')


def shardings(tree: Any, rules: Rules, mesh: Mesh) -> Any:
    """A sharding for every leaf of a state or of params, see `spec_of`.

    Raises:
      UserError: no rule covers a path, or the devices along its axes do not divide an array.
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


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, P())


def batch_shards(mesh: Mesh) -> tuple[tuple[int, ...], int]:
    """(the shards of every batch that the devices of this process hold, how many there are).

    A mesh orders devices by their links, so those of a process need not lie side by side.
    """
    devices_ST = mesh.devices.reshape(-1, mesh.shape["tensor"])
    mine = [any(device.process_index == jax.process_index() for device in shard_T) for shard_T in devices_ST]
    return tuple(int(shard) for shard in np.flatnonzero(mine)), len(mine)


def put_batches(batches: Sequence[dict[str, np.ndarray]], mesh: Mesh) -> dict[str, jax.Array]:
    """Local batches of consecutive steps as global arrays [steps, B, ...], the batch axis over the mesh.

    A local batch holds the rows of the `batch_shards` of this process, in order.
    """
    sharding = NamedSharding(mesh, P(None, BATCH_AXES))
    shards, of = batch_shards(mesh)

    def put(local: np.ndarray) -> jax.Array:
        rows = local.shape[1] // len(shards) * of
        return jax.make_array_from_process_local_data(sharding, local, (len(local), rows, *local.shape[2:]))

    return {name: put(np.stack([batch[name] for batch in batches])) for name in batches[0]}


def put_whole(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """A batch that every process has made whole, its rows over the mesh."""
    sharding = NamedSharding(mesh, P(BATCH_AXES))
    return {
        name: jax.make_array_from_callback(values.shape, sharding, values.__getitem__) for name, values in batch.items()
    }


def check_batch(name: str, rows: int, mesh: Mesh) -> None:
    """Raises UserError unless the rows of a batch, which the user calls `name`, divide over the devices."""
    devices = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % devices:
        raise UserError(f"{name}={rows} is not divisible by {devices} devices; use a multiple of {devices}")
