"""The mesh, and the one table that says how every array lies on it."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.errors import UserError
from bertjax.training.config import MeshConfig
from bertjax.training.paths import map_with_path

Rules = Sequence[tuple[str, P]]

# The batch axis of every array of a batch.
BATCH_AXES = ("data", "fsdp")

# First match wins. Kernels of the stack have the layer axis first.
ENCODER_RULES: Rules = (
    (r"encoder/embeddings/word$", P("tensor", "fsdp")),
    (r"encoder/embeddings/(position|segment)$", P(None, "fsdp")),
    (r"encoder/layers/(attention/(query|key|value)|intermediate)/kernel$", P(None, "fsdp", "tensor")),
    (r"encoder/layers/(attention/(query|key|value)|intermediate)/bias$", P(None, "tensor")),
    (r"encoder/layers/(attention/)?output/kernel$", P(None, "tensor", "fsdp")),
    (r"encoder/.*(bias|scale)$", P()),
    (r"encoder/pooler/kernel$", P("fsdp", None)),
)
HEAD_RULES: Rules = ((r"(^|/)heads/", P()),)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of all devices (or of those given) over the axes data, fsdp and tensor.

    Raises:
      UserError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    data = config.data or len(devices) // (config.fsdp * config.tensor)
    if data * config.fsdp * config.tensor != len(devices):
        raise UserError(
            f"runtime.mesh data={data} x fsdp={config.fsdp} x tensor={config.tensor} does not make {len(devices)} "
            "devices; set runtime.mesh.data=0 and let fsdp x tensor divide them"
        )
    shape = (data, config.fsdp, config.tensor)
    return jax.make_mesh(shape, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3, devices=devices)


def shardings(tree: Any, rules: Rules, mesh: Mesh) -> Any:
    """A sharding for every leaf of a state or of params, by the first rule that its path matches; scalars replicated.

    Raises:
      UserError: a path that no rule covers, with the line to add.
    """

    def sharding_of(path: str, leaf) -> NamedSharding:
        if leaf.ndim == 0:
            return NamedSharding(mesh, P())
        for pattern, spec in rules:
            if re.search(pattern, path):
                return NamedSharding(mesh, spec)
        raise UserError(f'no sharding rule covers {path!r}; add (r"{path}$", P()) to the objective\'s sharding_rules')

    return map_with_path(sharding_of, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, P())


def put_batches(batches: Sequence[dict[str, np.ndarray]], mesh: Mesh) -> dict[str, jax.Array]:
    """Local batches of consecutive steps as global arrays [steps, B, ...], the batch axis over the mesh."""
    sharding = NamedSharding(mesh, P(None, BATCH_AXES))
    return {
        name: jax.make_array_from_process_local_data(sharding, np.stack([batch[name] for batch in batches]))
        for name in batches[0]
    }


def check_batch(rows: int, micro_batches: int, mesh: Mesh) -> None:
    """Raises UserError unless a batch divides into micro-batches, and these over the devices."""
    devices = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % (micro_batches * devices):
        raise UserError(
            f"stages.0.batch={rows} is not divisible by runtime.micro_batches={micro_batches} x {devices} devices; "
            f"use a multiple of {micro_batches * devices}"
        )
