"""The shortest time that a step can take on its chips, and what forbids a shorter one."""

import dataclasses

from bertjax.forecast.collectives import Collective
from bertjax.hardware.chips import Chip


@dataclasses.dataclass(frozen=True)
class Floor:
    """Seconds a step that each resource is busy for, at its published speed and with nothing else in its way.

    Attributes:
      compute: matrix products in bfloat16.
      memory: between core and HBM.
      interconnect: between chips of a slice, all links of a chip at once.
      network: between slices.
    """

    compute: float
    memory: float
    interconnect: float
    network: float

    @property
    def seconds(self) -> float:
        """No step is shorter: that of the busiest resource, as if all others worked meanwhile."""
        return max(dataclasses.astuple(self))

    @property
    def binds(self) -> str:
        """Name of the busiest resource."""
        return max(dataclasses.fields(self), key=lambda field: getattr(self, field.name)).name


def floor(chip: Chip, flops: float, hbm_bytes: float, collectives: list[Collective], steps: int) -> Floor:
    """The floor of a step.

    Args:
      chip: whose devices share its speed.
      flops: of the matrix products of one device.
      hbm_bytes: read and written by one device.
      collectives: of one device.
      steps: how many steps all of that is for.
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
