"""What a run costs on absent chips: time and chip-hours at an assumed MFU and at the floor of its steps, and epochs."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from bertjax.config.config import Config
from bertjax.forecast.forecast import Forecast
from bertjax.training.results.source_epochs import MOST_EPOCHS_OF_CORPUS

_HOUR, _DAY = 3600, 86_400


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a run or of some of its stages; nothing in it was measured.

    Attributes:
      stages: indices of the included stages.
      chips: number of chips.
      tokens: token positions in all rows, padding included.
      assumed_mfu: model FLOPs utilization, the assumed share of peak FLOP/s.
      seconds: duration of all steps at the assumed MFU.
      floor_seconds: duration of all steps at the floor; None if a step does not fit.
      corpus_tokens: assumed corpus size; None if unspecified.
    """

    stages: tuple[int, ...]
    chips: int
    tokens: int
    assumed_mfu: float
    seconds: float
    floor_seconds: float | None
    corpus_tokens: float | None

    @property
    def epochs(self) -> float | None:
        return self.tokens / self.corpus_tokens if self.corpus_tokens else None

    def as_dict(self) -> dict[str, Any]:
        """Return the cost as JSON values, with epochs and chip-hours added."""
        # `predicted` keeps a reader of the JSON from taking it for a measurement.
        added = {"predicted": True, "epochs": self.epochs, "chip_hours": self.seconds * self.chips / _HOUR}
        return dataclasses.asdict(self) | added

    def as_text(self, whole: bool) -> str:
        """Return the cost as lines of text.

        Args:
          whole: whether all stages are included.
        """
        label = "whole run" if whole else f"stage {', '.join(map(str, self.stages))}"
        epochs = f", {self.epochs:.3g} epochs of {self.corpus_tokens:.4g}" if self.epochs else ""
        lines = [
            f"{label:<12} {self.tokens:.4g} tokens{epochs}",
            f"             assumed MFU {self.assumed_mfu:.0%} (--mfu; none was measured on a TPU): "
            f"{self._cost(self.seconds)}",
        ]
        if self.floor_seconds is not None:
            above = "; the assumed MFU is above it" if self.floor_seconds > self.seconds else ""
            lines.append(f"             at the floor: {self._cost(self.floor_seconds)}{above}")
        lines.append("             compilation, evaluation, checkpoints and preemptions are not included")
        if self.epochs and self.epochs > MOST_EPOCHS_OF_CORPUS:
            lines.append(
                f"warning: {self.epochs:,.0f} epochs; beyond about {MOST_EPOCHS_OF_CORPUS}, repeated text adds "
                "nothing (arXiv 2305.16264); add text, or lower stages.N.steps"
            )
        return "\n".join(lines)

    def _cost(self, seconds: float) -> str:
        return f"{duration(seconds)}, {seconds * self.chips / _HOUR:.3g} chip-hours"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days, whichever fits."""
    units = (("seconds", 1, 120), ("minutes", 60, 2 * _HOUR), ("hours", _HOUR, 2 * _DAY), ("days", _DAY, float("inf")))
    name, unit = next((name, unit) for name, unit, most in units if seconds < most)
    return f"{seconds / unit:.3g} {name}"


def shape_of(config: Config, stage: int) -> Hashable:
    """Return a key for the cost of a step; stages with equal keys have steps of equal cost."""
    at = config.stages[stage]
    return dataclasses.replace(at.shape, tasks=at.among(config.tasks), layers=at.layers or config.model.layers)


def cost_of(
    forecasts: Sequence[Forecast],
    config: Config,
    mfu: float,
    corpus_tokens: float | None = None,
    stages: Sequence[int] | None = None,
) -> Cost:
    """Add up step forecasts to the cost of a run.

    Args:
      forecasts: one for each distinct stage shape, and for each task in a mixture. A task without a forecast uses
        another task's forecast for the same shape.
      config: configuration of the run.
      mfu: assumed model FLOPs utilization.
      corpus_tokens: corpus size.
      stages: indices of the stages to include; all by default.
    """
    indices = tuple(range(len(config.stages)) if stages is None else stages)
    by_shape: dict[Hashable, dict[str, Forecast]] = {}
    for one in forecasts:
        by_shape.setdefault(shape_of(config, one.step.stage), {})[one.step.task or config.task_name] = one

    def seconds_of(step_seconds: Callable[[Forecast], float]) -> float:
        """Return the duration of all steps, split among tasks by weight."""
        total = 0.0
        for index in indices:
            stage = config.stages[index]
            of_task = by_shape[shape_of(config, index)]
            weights = {task: config.tasks[task].weight for task in stage.among(config.tasks)}
            for task, weight in weights.items():
                # Tasks differ in their heads only, so another task's step is a good estimate.
                one = of_task.get(task) or next(iter(of_task.values()))
                total += stage.steps * weight / sum(weights.values()) * step_seconds(one)
        return total

    fits = all(one.counts for one in forecasts)
    return Cost(
        stages=indices,
        chips=forecasts[0].step.topology.chips,
        tokens=sum(config.stages[i].steps * config.stages[i].batch * config.stages[i].seq_len for i in indices),
        assumed_mfu=mfu,
        # MFU = ideal time / real time, so an assumed MFU turns the ideal time into a duration.
        seconds=seconds_of(lambda one: one.step.ideal_seconds) / mfu,
        floor_seconds=seconds_of(lambda one: one.counts.floor.seconds) if fits else None,
        corpus_tokens=corpus_tokens,
    )
