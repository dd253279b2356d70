"""The benchmark of fine-tuning, as far as it goes without PyTorch: both arms get one recipe, and are scored alike."""

import json
import math
import sys

import pytest

from benchmarks import finetuning, finetuning_cell, finetuning_table, smoke_glue
from benchmarks.finetuning_cell import open_cell
from bertjax import convert
from bertjax.errors import RunFailed, UserError


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """(a folder of transformers, one of GLUE, an export)."""
    folder = tmp_path_factory.mktemp("smoke")
    model, glue = smoke_glue.write(folder)
    convert.run(model, folder / "export")
    return model, glue, folder / "export"


@pytest.fixture(scope="module")
def cells(smoke):
    return {task: open_cell(task, smoke[1], smoke[2], 0, ["stages.0.epochs=1.0"]) for task in smoke_glue.TASKS}


def line(task: str, arm: str, seed: int, score: float = 0.5, seconds: float = 1.0, recipe: dict | None = None) -> dict:
    return {
        "task": task,
        "arm": arm,
        "seed": seed,
        "metric": "f1",
        "score": score,
        "majority": None,
        "train_seconds": seconds,
        "wall_seconds": 2 * seconds,
        "updates": 3,
        "train_examples": 64,
        "recipe": recipe,
    }


def test_both_arms_get_the_recipe_of_the_configuration(smoke, cells):
    cell = cells["MRPC"]
    job = finetuning_cell.job_of(cell, smoke[0], seed=3, threads=2)
    (stage,) = cell.config.stages
    assert (job["epochs"], job["examples"], job["seq_len"]) == (1.0, stage.examples, stage.seq_len)
    assert (job["learning_rate"], job["warmup_share"], job["weight_decay"]) == (3e-5, 0.1, 0.01)
    assert (job["dropout"], job["attention_dropout"]) == (cell.config.model.dropout, 0.1)
    assert (job["seed"], job["classes"], len(job["train"]), len(job["heldout"])) == (3, 2, 64, 64)
    assert json.loads(json.dumps(job)) == job
    for given, record in zip(job["train"], cell.train):
        assert given == {"texts": [record["#1 String"], record["#2 String"]], "label": int(record["Quality"])}


def test_of_a_regression_labels_are_numbers(smoke, cells):
    job = finetuning_cell.job_of(cells["STS-B"], smoke[0], seed=0, threads=2)
    assert job["classes"] == 0
    assert [each["label"] for each in job["heldout"]] == [float(r["score"]) for r in cells["STS-B"].heldout]


def test_the_limit_holds_for_training_alone(smoke):
    cell = open_cell("MRPC", smoke[1], smoke[2], 10, [])
    assert (len(cell.train), len(cell.heldout), cell.recipe["limit"]) == (10, 64, 10)


def test_what_one_arm_does_not_know_is_refused(smoke):
    for override in ("optimizer.kind=lamb", "optimizer.schedule.kind=cosine"):
        with pytest.raises(UserError, match="both arms use AdamW with a linear schedule"):
            _ = open_cell("MRPC", smoke[1], smoke[2], 0, [override]).recipe


def test_scores_do_not_depend_on_the_order(cells):
    cell = cells["MRPC"]
    pairs = [(record["Quality"], "1") for record in cell.heldout]
    positive = sum(label == "1" for label, _ in pairs) / len(pairs)
    expected = {"accuracy": positive, "f1": 2 * positive / (1 + positive), "matthews": 0.0}
    assert finetuning_cell.scores_of(cell, pairs) == pytest.approx(expected)
    assert finetuning_cell.scores_of(cell, pairs[::-1]) == pytest.approx(expected)
    regression = cells["STS-B"]
    pairs = [(record["score"], 2 * float(record["score"]) + 1) for record in regression.heldout]
    assert finetuning_cell.scores_of(regression, pairs) == pytest.approx({"pearson": 1.0, "spearman": 1.0})


def test_predictions_of_other_records_are_refused(cells):
    cell = cells["MRPC"]
    with pytest.raises(RunFailed, match="not those of its 64 held-out records"):
        finetuning_cell.scores_of(cell, [(record["Quality"], "1") for record in cell.heldout[1:]])


def test_a_restarted_call_goes_on_and_arms_take_turns(cells):
    cell = cells["MRPC"]
    assert finetuning.missing(cell, finetuning.ARMS, 2, []) == [
        (0, "bertjax"),
        (0, "trainer"),
        (1, "trainer"),
        (1, "bertjax"),
    ]
    done = [line("MRPC", "bertjax", 0, recipe=cell.recipe), line("STS-B", "trainer", 1)]
    assert finetuning.missing(cell, finetuning.ARMS, 1, done) == [(0, "trainer")]
    other = line("MRPC", "bertjax", 0, recipe=cell.recipe | {"epochs": 9.0})
    with pytest.raises(UserError, match=r"--out has MRPC with epochs=9.0, and this call has 1.0"):
        finetuning.missing(cell, finetuning.ARMS, 1, [other])


def test_a_line_that_was_cut_off_is_not_finished(tmp_path):
    path = tmp_path / "out.jsonl"
    assert finetuning.finished(path) == []
    path.write_text('{"task": "MRPC"}\n{"task": "ST')
    assert finetuning.finished(path) == [{"task": "MRPC"}]


def test_the_difference_is_in_pooled_deviations():
    """Variances 4 of two values and 1 of three: pooled (4 + 2) / 3."""
    ours, theirs = [0.0, 8**0.5], [10.0, 11.0, 12.0]
    assert finetuning_table.effect(ours, theirs) == pytest.approx((2**0.5 - 11) / math.sqrt((4 + 2) / 3))
    assert finetuning_table.effect([1.0], theirs) is None
    assert finetuning_table.effect([1.0, 1.0], [2.0, 2.0]) is None


def test_seconds_are_compared_within_a_seed():
    lines = [
        line("MRPC", "trainer", 1, 0.8, seconds=9.0),
        line("MRPC", "bertjax", 1, 0.9, seconds=3.0),
        line("MRPC", "bertjax", 0, 0.7, seconds=2.0),
        line("MRPC", "trainer", 0, 0.6, seconds=2.0),
    ]
    text = finetuning_table.markdown(lines)
    assert "| MRPC | f1 | bertjax | 70.0, 90.0 | 80.00 | 14.14 | +0.71 |" in text
    assert "| MRPC | f1 | transformers `Trainer` | 60.0, 80.0 | 70.00 | 14.14 |  |" in text
    assert "| MRPC | 64 | bertjax | 3 | 2.5 | 5.0 | 2.00 (1.00 to 3.00) | 2.00 (1.00 to 3.00) |" in text


@pytest.mark.slow
def test_our_arm_runs_and_a_second_call_has_nothing_to_do(tmp_path, capsys):
    flags = ["--smoke", "--arms=bertjax", f"--out={tmp_path / 'out.jsonl'}"]
    assert finetuning.main(flags) == 0
    lines = finetuning.finished(tmp_path / "out.jsonl")
    assert [(each["task"], each["arm"]) for each in lines] == [("MRPC", "bertjax"), ("STS-B", "bertjax")]
    for each in lines:
        assert each["score"] == each["scores"][each["metric"]] and each["updates"] > 0
        assert 0.0 < each["train_seconds"] < each["wall_seconds"]
    assert "| MRPC | 64 | bertjax |" in capsys.readouterr().out
    assert finetuning.main(flags) == 0
    assert finetuning.finished(tmp_path / "out.jsonl") == lines


@pytest.mark.parametrize(
    "flags, complaint",
    [
        ([], "--out is missing"),
        (["--out=x", "--glue=glue"], "--model is missing"),
        (["--tasks=MNLI"], "'MNLI' is not among MRPC"),
        (["--seeds=0"], "--seeds=0 must be at least 1"),
        (["--smoke", f"--torch-python={sys.executable}-not"], "cannot be started"),
        (["--smoke", "--torch-python=false"], "does not import torch, transformers, accelerate"),
    ],
)
def test_bad_input(flags, complaint):
    with pytest.raises(UserError) as error:
        finetuning.main(flags)
    assert complaint in str(error.value)
