"""TPU topologies by name, and abstract devices to compile for. No TPU is needed."""

import dataclasses
import importlib.util
import math
import os
import re
from importlib import metadata

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from bertjax.runtime.devices import CHIPS, Chip
from bertjax.runtime.errors import UserError

# Slice shapes that Cloud TPU offers (see the pages in `chips`). libtpu aborts the process for some other shapes.
_FLAT = ("2x2", "4x4", "8x8", "8x16", "16x16")
_LITE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
SHAPES = {
    "v2": _FLAT,
    "v3": (*_FLAT, "16x32", "32x32"),
    "v4": _CUBES,
    "v5e": _LITE,
    "v5p": _CUBES,
    "v6e": _LITE,
    "tpu7x": _CUBES,
}

# Accelerator type prefix -> generation. The number after the prefix counts TensorCores, not chips: v4-32 has 16 chips.
_TYPES = {"v2": "v2", "v3": "v3", "v4": "v4", "v5litepod": "v5e", "v5e": "v5e", "v5p": "v5p", "v6e": "v6e"}

# Without these variables, libtpu probes the machine, prints that it is not a TPU, and locks out other processes.
_NO_TPU_HERE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A set of TPU chips that train together.

    Attributes:
      chip: TPU generation.
      shape: chips along each interconnect axis of a slice, for example "16x16".
      slices: number of slices, connected by the data center network.
    """

    chip: Chip
    shape: str
    slices: int = 1

    def __str__(self) -> str:
        slices = f"{self.slices}x" if self.slices > 1 else ""
        return f"{slices}{self.chip.name}:{self.shape}"

    @property
    def chips(self) -> int:
        return self.slices * _chips(self.shape)

    def devices(self) -> tuple[jax.Device, ...]:
        """Return abstract devices: programs compile for them but cannot run on them.

        Raises:
          UserError: libtpu is not installed.
        """
        if not importlib.util.find_spec("libtpu") and "TPU_LIBRARY_PATH" not in os.environ:
            raise UserError("compiling for a TPU needs libtpu, which is not installed: pip install '.[tpu]'")
        for name, value in _NO_TPU_HERE.items():
            os.environ.setdefault(name, value)
        description = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{self.chip.name}:{self.shape}",
            chip_config_name=self.chip.compiler_name,
            # Hosts in a slice have 2x2 chips; the 1x1 topology is a host with a single chip.
            chips_per_host_bounds=(1, 1, 1) if _chips(self.shape) == 1 else (2, 2, 1),
            num_slices=self.slices,
        )
        return tuple(description.devices)


def parse(name: str) -> Topology:
    """Parse a topology name.

    It is `v5e:16x16`, `2xv5e:16x16` (two slices), or an accelerator type such as `v4-32` (16 chips) or `v5litepod-256`.

    Raises:
      UserError: the topology does not exist; the message lists the existing ones.
    """
    match = re.fullmatch(r"(?:(\d+)x(?=[a-z]))?([a-z]\w*?)(?::([\dx]+)|-(\d+))", name)
    if not match:
        raise UserError(
            f"--topology={name} is not a topology; write v5e:16x16, 2xv5e:16x16 (two slices) or v4-32, "
            f"of {', '.join(CHIPS)}"
        )
    slices, generation, shape, number = match.groups()
    chip = CHIPS.get(_TYPES.get(generation, "") if number else generation)
    if chip is None:
        known = ", ".join(_TYPES) if number else ", ".join(CHIPS)
        raise UserError(f"--topology={name} is not of a known TPU generation; choose one of {known}")
    # An accelerator type gives a size only; SHAPES has one shape for each size.
    by_number = {_number(chip, shape): shape for shape in SHAPES[chip.name]}
    shape = by_number.get(int(number)) if number else shape
    if shape not in SHAPES[chip.name]:
        offered = ", ".join(f"{generation}-{n}" for n in by_number) if number else ", ".join(SHAPES[chip.name])
        raise UserError(f"--topology={name} does not exist; {chip.name} has {offered}")
    slices = int(slices or 1)
    if slices < 1 or (slices > 1 and not chip.network):
        remedy = f"slices of {chip.name} cannot be combined, leave out {slices}x"
        raise UserError(f"--topology={name} does not exist; {remedy}")
    return Topology(chip, shape, slices)


def libtpu_version() -> str:
    """Return the version of the libtpu package; without one, the library path in TPU_LIBRARY_PATH."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        return os.environ["TPU_LIBRARY_PATH"]


def usable_memory(device: jax.Device) -> int:
    """Return the bytes of HBM that a program can use on a device."""
    # There is no API for this limit, so compile a program of 1 TiB and parse the compiler's error message.
    too_much = jax.ShapeDtypeStruct((1 << 40,), jnp.uint8, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1).lower(too_much).compile()
    except jax.errors.JaxRuntimeError as error:
        if size := re.search(r"available HBM \(([\d.]+)G\)", str(error)):
            return int(float(size[1]) * (1 << 30))
        raise
    raise AssertionError(f"a program of 1 TiB compiled for {device.device_kind}")


def _chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


def _number(chip: Chip, shape: str) -> int:
    """Return the number that an accelerator type has after its prefix."""
    return _chips(shape) * chip.cores
