"""The shortest time that a step can take on its chips, and the resource that limits it."""

import dataclasses

from bertjax.forecast.collectives import Collective
from bertjax.hardware.chips import Chip


@dataclasses.dataclass(frozen=True)
class Floor:
    """Seconds per step that each resource is busy, at its published speed.

    Attributes:
      compute: matrix products in bfloat16.
      memory: transfers between core and HBM.
      interconnect: transfers between chips of a slice, over all links of a chip at once.
      network: transfers between slices.
    """

    compute: float
    memory: float
    interconnect: float
    network: float

    @property
    def seconds(self) -> float:
        """Lower bound of a step: the time of the busiest resource, if all others work at the same time."""
        return max(dataclasses.astuple(self))

    @property
    def binds(self) -> str:
        """Name of the busiest resource."""
        return max(dataclasses.fields(self), key=lambda field: getattr(self, field.name)).name


def floor(chip: Chip, flops: float, hbm_bytes: float, collectives: list[Collective], steps: int) -> Floor:
    """Return the floor of a step.

    Args:
      chip: the chip; its devices share its speed.
      flops: FLOPs of the matrix products of one device.
      hbm_bytes: bytes that one device reads and writes.
      collectives: collectives of one device.
      steps: number of steps that these counts are for.
    """
    busy = steps * (1 / chip.devices)

    def sent(between_slices: bool) -> float:
        return sum(one.sent * one.runs for one in collectives if one.between_slices is between_slices)

    return Floor(
        compute=flops / (chip.flops * busy),
        memory=hbm_bytes / (chip.memory_bandwidth * busy),
        interconnect=sent(False) / (chip.interconnect * busy),
        network=sent(True) / (chip.network * busy) if chip.network else 0.0,
    )
