"""What a step does, as a function of its number alone: there is no iterator state."""

import dataclasses
from collections.abc import Sequence

from bertjax.training.config import Stage


@dataclasses.dataclass(frozen=True)
class Slot:
    """What one step trains on.

    Attributes:
      stage: index of the stage.
      task: name of the task.
      seq_len: T.
      rows: B of the global batch.
      first: ordinal of its first row in the task's endless sequence of rows.
    """

    stage: int
    task: str
    seq_len: int
    rows: int
    first: int


@dataclasses.dataclass(frozen=True)
class Timetable:
    """The stages of a run and the task that they train.

    Attributes:
      stages: in order.
      task: name of the one task.
      overfit: every step draws the rows of the first.
    """

    stages: Sequence[Stage]
    task: str
    overfit: bool = False

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> Slot:
        """The slot of a step in [0, steps)."""
        rows_before = 0
        for index, stage in enumerate(self.stages):
            if step < stage.steps:
                first = 0 if self.overfit else rows_before + step * stage.batch
                return Slot(index, self.task, stage.seq_len, stage.batch, first)
            step -= stage.steps
            rows_before += stage.steps * stage.batch
        raise IndexError(f"step lies {step} after the end of the run")

    def edge_after(self, step: int, steps_per_call: int) -> int:
        """End of the dispatch that starts at `step`: the next absolute multiple, or the end of the stage."""
        end = 0
        for stage in self.stages:
            end += stage.steps
            if step < end:
                return min((step // steps_per_call + 1) * steps_per_call, end)
        raise IndexError(f"step {step} lies after the end of the run")
