"""Build a run's mesh and choose its sharding strategy, as far as the configuration leaves them open."""

import collections
import dataclasses
import math
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bertjax.models.config import EncoderConfig
from bertjax.runtime.errors import UserError
from bertjax.runtime.mesh import AXES
from bertjax.training.config import MeshConfig

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
