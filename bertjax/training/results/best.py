"""Find weights that score better than a finished run's export, which has those of the last step."""

import math
from collections.abc import Mapping
from typing import Any

from bertjax.config.config import Config
from bertjax.training.evaluation import HELDOUT
from bertjax.training.results.scores import is_lower_better
from bertjax.training.run.workdir import Workdir, read_jsonl


def better_checkpoint(files: Workdir, config: Config, metrics: Mapping[str, float]) -> str:
    """Return a line with the best kept checkpoint and both scores; empty if none scores better than the last step.

    Checkpoints from before pruning has ended are left out, because they are larger models.

    Args:
      files: workdir of the finished run.
      config: configuration of the run.
      metrics: metrics from the last evaluation.
    """
    name, sign = _best_metric(config)
    last = metrics.get(name)
    kept = files.saved_steps()
    key = f"eval/{HELDOUT}/{name}"
    scores = {record["step"]: record[key] for record in read_jsonl(files.metrics, "step") if key in record}
    # The last step is always evaluated, so this is the length of the run.
    end = max(scores, default=0)
    scores = {
        step: score
        for step, score in scores.items()
        # Only steps with a checkpoint can be used; a score that was not finite is null in the log.
        if step in kept and score is not None and config.pruning.has_ended(step, end)
    }
    if last is None or not scores:
        return ""
    best = min(scores, key=lambda step: sign * scores[step])
    if sign * scores[best] >= sign * last:
        return ""
    return f"{files.root}@{best} has {name} {scores[best]:.4f}; the export is the last step, with {last:.4f}"


def average_scores(config: Config, figures: Mapping[str, Any]) -> tuple[str, bool]:
    """Return a text with the score of the moving average beside the last step's, and whether the average is better.

    Args:
      config: configuration of the run, with `optimizer.ema_decay`.
      figures: its figures, as in `summary.json`.
    """
    name, sign = _best_metric(config)
    average, last = (figures[part].get(name) for part in ("eval_ema", "eval"))
    if average is None or last is None:
        return f"no {name}", False
    # The last weights may score NaN after a divergence, and no comparison with NaN is true.
    is_better = math.isfinite(average) and not sign * last <= sign * average
    return f"{name} {average:.4f}, and {last:.4f} in export", is_better


def _best_metric(config: Config) -> tuple[str, int]:
    """Return the metric that ranks checkpoints, and 1 if lower is better, else -1."""
    name = config.qualified(config.task_name, config.task.objective.best_metric)
    return name, 1 if is_lower_better(name) else -1
