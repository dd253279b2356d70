"""What a step does, as a function of its number alone: there is no iterator state."""

import collections
import dataclasses
from collections.abc import Sequence

from bertjax.training.config import OptimizerConfig, Stage
from bertjax.training.schedules import Rise


@dataclasses.dataclass(frozen=True)
class Slot:
    """What one step trains on.

    Attributes:
      stage: index of the stage.
      task: name of the task.
      seq_len: T.
      rows: B of the global batch.
      first: ordinal of its first row in the endless sequence of rows of this task and T.
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
        """The slot of a step in [0, steps).

        Each T has plans of its own, so a stage goes on where the one before it with the same T ended.
        """
        used: dict[int, int] = collections.defaultdict(int)
        for index, stage in enumerate(self.stages):
            if step < stage.steps:
                first = 0 if self.overfit else used[stage.seq_len] + step * stage.batch
                return Slot(index, self.task, stage.seq_len, stage.batch, first)
            step -= stage.steps
            used[stage.seq_len] += stage.steps * stage.batch
        raise IndexError(f"step lies {step} after the end of the run")

    def edge_after(self, step: int, steps_per_call: int) -> int:
        """End of the dispatch that starts at `step`: the next absolute multiple, or the end of the stage."""
        end = 0
        for stage in self.stages:
            end += stage.steps
            if step < end:
                return min((step // steps_per_call + 1) * steps_per_call, end)
        raise IndexError(f"step {step} lies after the end of the run")


def rises(stages: Sequence[Stage], optimizer: OptimizerConfig) -> tuple[Rise, ...]:
    """The rises of the learning rate: the run's, and one anew at every later stage with a peak of its own.

    Raises:
      UserError: a rise is not longer than its warm-up.
    """
    begins = [0, *(index for index, stage in enumerate(stages) if index and stage.learning_rate)]
    found = []
    for begin, end in zip(begins, [*begins[1:], len(stages)]):
        peak, warmup_steps, where = stages[begin].learning_rate, stages[begin].warmup_steps, f"stages.{begin}"
        if not begin:
            peak, warmup_steps, where = optimizer.learning_rate, optimizer.warmup_steps, "optimizer"
        first, steps = (sum(stage.steps for stage in part) for part in (stages[:begin], stages[begin:end]))
        optimizer.schedule.check(warmup_steps, steps, f"{where}.warmup_steps")
        found.append(Rise(first, steps, peak, warmup_steps))
    return tuple(found)


def micro_batches(rows: int, seq_len: int, micro_tokens: int) -> int:
    """In how many equal parts rows of a device are computed, so that none holds more than `micro_tokens` tokens.

    A single row may be longer. 0 takes all rows at once.
    """
    if not micro_tokens:
        return 1
    fewest = -(-rows * seq_len // micro_tokens)
    return next(count for count in range(min(fewest, rows), rows + 1) if rows % count == 0)
