"""Published chip specifications (every TPU generation, the peak FLOP/s of a JAX device), and the axes of a mesh."""

import dataclasses

import jax

_GIB = 1 << 30
_GB = 1e9
_TERA = 1e12


@dataclasses.dataclass(frozen=True)
class Chip:
    """Specifications of a TPU generation. All figures are per chip, not per core.

    Attributes:
      name: generation in topology names such as `v5e:4x4`.
      memory: HBM bytes.
      flops: peak FLOP/s of bfloat16 matrix products.
      memory_bandwidth: HBM bytes/s.
      interconnect: bytes/s to other chips in the slice over all links, one way.
      network: bytes/s to other slices, one way; 0 if slices cannot be combined.
      devices: JAX devices per chip, which share all of the above.
      cores: TensorCores per chip.
      compiler_name: chip configuration that libtpu compiles for.
    """

    name: str
    memory: int
    flops: float
    memory_bandwidth: float
    interconnect: float
    network: float
    devices: int
    cores: int
    compiler_name: str


# For v5e and later, the documentation adds up both directions of the interconnect, so one way is half of its figure.
# For v3 and v4 it gives the all-reduce bandwidth of a pod, which is the chips' total one-way bandwidth: 340 TB/s for
# 1,024 chips and 1.1 PB/s for 4,096. (Check on v5e: 51.2 TB/s for 256 chips is half of 400 GB/s per chip.) The figures
# of v2 are in Jouppi et al. (2020), "A domain-specific supercomputer for training deep neural networks", CACM 63(7),
# table 3 (https://dl.acm.org/doi/10.1145/3360307).
# Pages: https://cloud.google.com/tpu/docs/v2 to /v6e and /tpu7x, the latter for v5p and v6e too. The network of v4 is
# from https://jax-ml.github.io/scaling-book/tpus.
_CHIPS = (
    # name, memory, FLOP/s, memory bandwidth, interconnect, network, devices, cores, compiler name
    Chip("v2", 16 * _GIB, 46 * _TERA, 700 * _GB, 4 * 496 / 8 * _GB, 0.0, 2, 2, "default"),
    Chip("v3", 32 * _GIB, 123 * _TERA, 900 * _GB, 340 * _TERA / 1024, 0.0, 2, 2, "default"),
    Chip("v4", 32 * _GIB, 275 * _TERA, 1200 * _GB, 1100 * _TERA / 4096, 50 / 8 * _GB, 1, 2, "megacore"),
    Chip("v5e", 16 * _GIB, 197 * _TERA, 819 * _GB, 400 / 2 * _GB, 6.4 * _TERA / 8 / 256, 1, 1, "default"),
    Chip("v5p", 95 * _GIB, 459 * _TERA, 2765 * _GB, 1200 / 2 * _GB, 50 / 8 * _GB, 1, 2, "megachip"),
    Chip("v6e", 32 * _GIB, 918 * _TERA, 1638 * _GB, 800 / 2 * _GB, 100 / 8 * _GB, 1, 1, "default"),
    Chip("tpu7x", 192 * _GIB, 2307 * _TERA, 7380 * _GB, 1200 / 2 * _GB, 100 / 8 * _GB, 2, 2, "megachip"),
)
CHIPS = {chip.name: chip for chip in _CHIPS}

# `device_kind` -> generation, as in JAX's Pallas (jax/_src/pallas/mosaic/tpu_info.py).
_TPUS = {
    "TPU v2": "v2",
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}
# Dense bfloat16: half of the figures with sparsity on https://www.nvidia.com/en-us/data-center/h100/ and /h200/.
_GPUS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}


def peak_flops(device_kind: str) -> float | None:
    """Return the published peak bfloat16 FLOP/s of a JAX device, or None if unknown."""
    # A device is a full chip or, on v2, v3 and tpu7x, one of two cores.
    if device_kind in _TPUS:
        chip = CHIPS[_TPUS[device_kind]]
        return chip.flops / chip.devices
    return _GPUS.get(device_kind)


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
