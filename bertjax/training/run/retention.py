"""Choose which checkpoints to keep when a new one is saved."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

# A power failure may destroy the newest checkpoint, because not all of its files are flushed to disk.
_MIN_NEWEST = 2


@dataclasses.dataclass(frozen=True)
class Retention:
    """Which checkpoints to keep; a checkpoint stays if any field asks for it.

    Attributes:
      newest: number of newest checkpoints, at least two.
      every: the first checkpoint at or after each multiple of this many steps; 0 for none.
      best: number of checkpoints with the lowest scores.
      at: the checkpoints at these steps.
    """

    newest: int = 1
    every: int = 0
    best: int = 0
    at: tuple[int, ...] = ()

    def kept(
        self, steps: Sequence[int], scores: Mapping[int, float | None], hold_before: int | None = None
    ) -> set[int]:
        """Return the steps to keep.

        Args:
          steps: steps of all checkpoints, in order.
          scores: {step: score}, lower is better; None or absent without a score.
          hold_before: also keep the newest checkpoints up to this step, from before a loss diverged; None for none.
        """
        kept = {*steps[-max(self.newest, _MIN_NEWEST) :], *self.at}
        if self.every:
            # Orbax's `EveryNSteps` keeps exact multiples only, which `save_seconds` may never save. With
            # `exact_interval=False`, what it keeps depends on where earlier starts stopped.
            multiples = [0, *(step // self.every for step in steps)]
            kept |= {step for step, (before, own) in zip(steps, itertools.pairwise(multiples)) if own > before}
        # Orbax's `BestN` reads scores from the checkpoints, so a state could only be saved after its evaluation.
        scored = sorted((scores[step], step) for step in steps if scores.get(step) is not None)
        kept |= {step for _, step in scored[: self.best]}  # of equal scores, the earlier step
        if hold_before is not None:
            kept |= {*[step for step in steps if step <= hold_before][-self.newest :]}
        return kept & set(steps)
