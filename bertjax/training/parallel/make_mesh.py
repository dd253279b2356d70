"""The mesh of a run: its shape, and the sharding strategy if the configuration leaves it open."""

import collections
import dataclasses
import math
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bertjax.errors import UserError
from bertjax.mesh import AXES
from bertjax.models.config import EncoderConfig
from bertjax.training.config import MeshConfig

# Over 64 chips, libtpu 0.0.42 turns the gather of a matrix of BERT into an all-reduce of the whole matrix.
_LARGEST_FSDP = 16
# A smaller model computes too little in a layer to be worth the collectives of each layer.
_SMALLEST_BY_LAYER = 50_000_000


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return a mesh of all devices, or of `devices`, over the axes data, fsdp and tensor.

    Only `data` crosses slices: what fsdp and tensor exchange in every layer stays within a slice.

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
    # 16 devices may be one direction of a torus of 8x8 and a part of the other.
    split = {"allow_split_physical_axes": True}
    if slices > 1:
        grid = mesh_utils.create_hybrid_device_mesh(shape, (slices, 1, 1), devices, **split)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices, **split)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def count_slices(devices: Sequence[jax.Device]) -> int:
    """Return the number of TPU slices that the devices belong to; 1 on other platforms."""
    return len({getattr(device, "slice_index", 0) for device in devices})


def choose_strategy(strategy: str, parameters: int, sharing: str = "none") -> str:
    """Return the strategy; `auto` is `fsdp` from 50 million parameters, and `gathered` below and for shared layers.

    The weights of shared layers would be gathered again for each layer that uses them.
    """
    if strategy != "auto":
        return strategy
    return "fsdp" if parameters >= _SMALLEST_BY_LAYER and sharing == "none" else "gathered"


def fill_mesh(
    config: MeshConfig, strategy: str, encoders: Sequence[EncoderConfig], devices: list[jax.Device]
) -> MeshConfig:
    """Return the mesh with a number for `fsdp`, for a strategy that is not `auto`.

    0 becomes 1 for `replicated`, else the largest number of devices of a slice that divides all widths of the encoders,
    up to 16.

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
    available = len(devices) // count_slices(devices) // config.tensor
    if config.data:
        available = len(devices) // config.data // config.tensor
    widths = [
        width
        for encoder in encoders
        for width in (
            encoder.embedded_width,
            encoder.layer_width,
            *(wide // config.tensor for wide in _inner_widths(encoder)),
        )
    ]
    common = math.gcd(max(available, 1), *widths)
    return dataclasses.replace(config, fsdp=max(n for n in range(1, _LARGEST_FSDP + 1) if common % n == 0))


def _inner_widths(encoder: EncoderConfig) -> tuple[int, ...]:
    """Return the widths that `tensor` shards: those of a Transformer, or of the two directions of an LSTM."""
    if not encoder.has_attention:
        return encoder.width, encoder.width // 2
    return encoder.width, encoder.context_width, encoder.feedforward
