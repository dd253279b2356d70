"""The line about a kept checkpoint that scores better than the last step."""

import json
import math

import pytest

from bertjax.config.config import from_dict
from bertjax.training.results.best import average_scores, better_checkpoint
from bertjax.training.run.workdir import Workdir

TASK = {"objective": {"kind": "classification", "classes": ["no", "yes"]}, "examples": {"kind": "labeled_text"}}


def finished(folder, scores, kept, name="accuracy") -> Workdir:
    """A run with evaluations {step: score} that has kept the checkpoints of some."""
    for step in kept:
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    records = [{"step": 1, "train/classification_loss": 0.5}]
    records += [{"step": step, f"eval/heldout/{name}": score} for step, score in scores.items()]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return Workdir.at(folder)


@pytest.mark.parametrize(
    "scores, kept, expected",
    [
        ({10: 0.77, 20: 0.75, 30: 0.72}, (10, 30), "@10 has accuracy 0.7700; the export is the last step, with 0.7200"),
        ({10: 0.80, 20: 0.75, 30: 0.72}, (20, 30), "@20 has accuracy 0.7500"),  # that of step 10 is gone
        ({10: 0.72, 30: 0.72}, (10, 30), ""),
        ({10: 0.70, 30: 0.72}, (30,), ""),
        ({}, (), ""),
    ],
)
def test_the_best_kept_checkpoint(tmp_path, scores, kept, expected):
    files, config = finished(tmp_path, scores, kept), from_dict({"tasks": {"mine": TASK}})
    line = better_checkpoint(files, config, {"accuracy": scores.get(30, 0.5)})
    assert line.startswith(f"{tmp_path}{expected}") if expected else line == ""


def test_a_checkpoint_with_weights_that_were_pruned_later_is_not_the_best(tmp_path):
    files = finished(tmp_path, {10: 0.9, 85: 0.78, 100: 0.75}, (10, 85, 100))
    for pruning, best in (({"kind": "magnitude", "end_share": 0.8}, 85), ({}, 10)):
        config = from_dict({"tasks": {"mine": TASK}, "pruning": pruning})
        assert better_checkpoint(files, config, {"accuracy": 0.75}).startswith(f"{tmp_path}@{best} has accuracy")


@pytest.mark.parametrize(
    "last, average, is_better",
    [
        *[(3.0, 2.5, True), (2.5, 3.0, False), (2.5, 2.5, False)],
        *[(math.nan, 2.5, True), (2.5, math.nan, False), (math.nan, math.nan, False), (math.inf, math.inf, False)],
    ],
)
def test_the_moving_average_is_compared_with_the_last_weights(last, average, is_better):
    config = from_dict({"tasks": {"mlm": {"objective": {"kind": "mlm"}}}})
    figures = {"eval": {"mlm_loss": last}, "eval_ema": {"mlm_loss": average}}
    assert average_scores(config, figures) == (f"mlm_loss {average:.4f}, and {last:.4f} in export", is_better)
    assert average_scores(config, figures | {"eval_ema": {}}) == ("no mlm_loss", False)
