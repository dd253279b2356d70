"""Roofline model: a lower bound on the step time, and the resource that sets it."""

import dataclasses

from bertjax.forecast.collectives import Collective
from bertjax.runtime.devices import Chip


@dataclasses.dataclass(frozen=True)
class Floor:
    """Busy seconds per step for each resource, at its published peak.

    Attributes:
      compute: matrix products in bfloat16.
      memory: transfers between core and HBM.
      interconnect: transfers within a slice, over all links of a chip that lead to other chips in the group.
      network: transfers between slices.
      synchronous: part of both transfers during which the device cannot compute.
    """

    compute: float
    memory: float
    interconnect: float
    network: float
    synchronous: float = 0.0

    @property
    def seconds(self) -> float:
        """Lower bound with perfect overlap, except during synchronous collectives."""
        return max(self._least.values())

    @property
    def seconds_without_overlap(self) -> float:
        """Lower bound if only one resource works at a time."""
        return self.compute + self.memory + self.interconnect + self.network

    @property
    def binds(self) -> str:
        """Name of the resource that sets the lower bound."""
        return max(self._least, key=self._least.get)

    @property
    def description(self) -> str:
        """Name of the limiting resource, with the collectives that it waits for."""
        waits = self.synchronous > 0 and self.binds in ("compute", "memory")
        return f"{self.binds} plus synchronous collectives" if waits else self.binds

    @property
    def _least(self) -> dict[str, float]:
        """{resource: lower bound that it sets}."""
        return {
            "compute": self.compute + self.synchronous,
            "memory": self.memory + self.synchronous,
            "interconnect": self.interconnect,
            "network": self.network,
        }


def floor(chip: Chip, flops: float, hbm_bytes: float, collectives: list[Collective], steps: int) -> Floor:
    """Return the floor of a step.

    Args:
      chip: target chip; its devices share its peak rates.
      flops: matrix-product FLOPs on one device.
      hbm_bytes: bytes that one device reads and writes.
      collectives: collectives that one device runs. They account for devices that share a chip.
      steps: number of steps that the counts cover.
    """
    # Dividing a device's work by `peak * busy` gives seconds per step, since a device has 1 / devices of the chip.
    busy = steps * (1 / chip.devices)

    def seconds(some: list[Collective], between_slices: bool) -> float:
        speed = chip.network if between_slices else chip.interconnect
        sent = sum(one.sent * one.runs / one.links for one in some if one.between_slices is between_slices)
        return sent / (speed * steps) if speed else 0.0

    # During a synchronous collective the core waits, so its time adds to the other resources instead of overlapping.
    synchronous = [one for one in collectives if not one.asynchronous]
    return Floor(
        compute=flops / (chip.flops * busy),
        memory=hbm_bytes / (chip.memory_bandwidth * busy),
        interconnect=seconds(collectives, False),
        network=seconds(collectives, True),
        synchronous=seconds(synchronous, False) + seconds(synchronous, True),
    )
