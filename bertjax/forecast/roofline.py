"""The shortest time that a step can take on its chips, and the resource that limits it."""

import dataclasses

from bertjax.forecast.collectives import Collective
from bertjax.hardware.chips import Chip


@dataclasses.dataclass(frozen=True)
class Floor:
    """Seconds per step that each resource is busy, at its published speed.

    Attributes:
      compute: matrix products in bfloat16.
      vector: elementwise operations and reductions in float32; 0 if the speed of the vector unit is not published.
      memory: transfers between core and HBM.
      interconnect: transfers between chips of a slice, over all links of a chip that lead to others of its group.
      network: transfers between slices.
      synchronous: the part of both transfers during which a device computes nothing.
    """

    compute: float
    vector: float
    memory: float
    interconnect: float
    network: float
    synchronous: float = 0.0

    @property
    def seconds(self) -> float:
        """Lower bound of a step, if all resources work at the same time except during synchronous collectives."""
        return max(self._least.values())

    @property
    def seconds_without_overlap(self) -> float:
        """Lower bound of a step if only one resource works at a time."""
        return self.compute + self.vector + self.memory + self.interconnect + self.network

    @property
    def binds(self) -> str:
        """Name of the resource that sets the lower bound."""
        return max(self._least, key=self._least.get)

    @property
    def description(self) -> str:
        """What the lower bound consists of: a resource, with the collectives during which it waits."""
        waits = self.synchronous > 0 and self.binds in ("compute", "vector", "memory")
        return f"{self.binds} plus synchronous collectives" if waits else self.binds

    @property
    def _least(self) -> dict[str, float]:
        """Return the shortest time of a step that each resource allows."""
        return {
            "compute": self.compute + self.synchronous,
            "vector": self.vector + self.synchronous,
            "memory": self.memory + self.synchronous,
            "interconnect": self.interconnect,
            "network": self.network,
        }


def floor(
    chip: Chip, flops: float, operations: float, hbm_bytes: float, collectives: list[Collective], steps: int
) -> Floor:
    """Return the floor of a step.

    Args:
      chip: the chip; its devices share its speed.
      flops: FLOPs of the matrix products of one device.
      operations: operations of its vector unit.
      hbm_bytes: bytes that one device reads and writes.
      collectives: collectives of one device, which know how many share its chip.
      steps: number of steps that these counts are for.
    """
    busy = steps * (1 / chip.devices)

    def seconds(some: list[Collective], between_slices: bool) -> float:
        speed = chip.network if between_slices else chip.interconnect
        sent = sum(one.sent * one.runs / one.links for one in some if one.between_slices is between_slices)
        return sent / (speed * steps) if speed else 0.0

    synchronous = [one for one in collectives if not one.asynchronous]
    return Floor(
        compute=flops / (chip.flops * busy),
        vector=operations / (chip.vector * busy) if chip.vector else 0.0,
        memory=hbm_bytes / (chip.memory_bandwidth * busy),
        interconnect=seconds(collectives, False),
        network=seconds(collectives, True),
        synchronous=seconds(synchronous, False) + seconds(synchronous, True),
    )
