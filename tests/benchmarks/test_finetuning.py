"""The fine-tuning benchmark without PyTorch: both arms get the same recipe, and their scores the same code."""

import json
import math
import sys

import jax
import numpy as np
import pytest

from benchmarks import finetuning, finetuning_cell, finetuning_scores, finetuning_smoke, finetuning_table, resumable
from benchmarks.arms.trainer_tasks import TASKS
from benchmarks.finetuning_cell import open_cell
from bertjax import convert
from bertjax.data import tokenizer
from bertjax.errors import RunFailed, UserError


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """(a folder of transformers, one of data, an export)."""
    folder = tmp_path_factory.mktemp("smoke")
    model, data = finetuning_smoke.write(folder)
    convert.run(model, folder / "export")
    return model, data, folder / "export"


@pytest.fixture(scope="module")
def cells(smoke):
    return {task: open_cell(task, smoke[1], smoke[2], 0, ["stages.0.epochs=1.0"]) for task in finetuning_smoke.TASKS}


def line(task: str, arm: str, seed: int, score: float = 0.5, seconds: float = 1.0, recipe: dict | None = None) -> dict:
    return {
        "task": task,
        "arm": arm,
        "seed": seed,
        "metric": "f1",
        "scores": {"f1": score},
        "majority": None,
        "train_seconds": seconds,
        "wall_seconds": 2 * seconds,
        "updates": 3,
        "train_examples": 64,
        "recipe": recipe,
    }


def test_heads_of_both_arms_have_the_same_initial_deviation(cells):
    """transformers draws them from a normal distribution of `initializer_range`, 0.02."""
    for cell in cells.values():
        drawn = jax.nn.initializers.truncated_normal(cell.config.model.init_stddev)(jax.random.key(0), (400, 400))
        np.testing.assert_allclose(drawn.std(), 0.02, rtol=0.01)


def test_both_arms_get_the_recipe_of_the_configuration(smoke, cells):
    cell = cells["MRPC"]
    job = finetuning_cell.job_of(cell, smoke[0], seed=3, threads=2)
    (stage,) = cell.config.stages
    assert (job["epochs"], job["examples"], job["seq_len"]) == (1.0, stage.examples, stage.seq_len)
    assert (job["learning_rate"], job["warmup_share"], job["weight_decay"]) == (3e-5, 0.1, 0.01)
    assert (job["dropout"], job["attention_dropout"]) == (cell.config.model.dropout, 0.1)
    assert (job["seed"], job["classes"], len(job["train"]), len(job["heldout"])) == (3, 2, 64, 64)
    assert json.loads(json.dumps(job)) == job
    for example, record in zip(job["train"], cell.train):
        assert example == {"texts": [record["#1 String"], record["#2 String"]], "label": int(record["Quality"])}


def test_labels_of_a_regression_are_numbers(smoke, cells):
    job = finetuning_cell.job_of(cells["STS-B"], smoke[0], seed=0, threads=2)
    assert job["classes"] == 0
    assert [example["label"] for example in job["train"]] == [float(r["score"]) for r in cells["STS-B"].train]
    assert all(set(example) == {"texts"} for example in job["heldout"])


def test_the_limit_is_for_training_only(smoke):
    cell = open_cell("MRPC", smoke[1], smoke[2], 10, [])
    assert (len(cell.train), len(cell.heldout), cell.recipe["limit"]) == (10, 64, 10)


def test_an_override_of_one_task_is_not_for_the_others(smoke):
    overrides = ["tasks.ner.examples.tag=1", "tasks.MRPC.row_examples=2", "optimizer.learning_rate=1e-4"]
    cells = {task: open_cell(task, smoke[1], smoke[2], 0, overrides) for task in ("MRPC", "CoNLL-2003", "QA")}
    assert (cells["CoNLL-2003"].config.task.examples.tag, cells["MRPC"].config.task.row_examples) == (1, 2)
    assert {cell.recipe["learning_rate"] for cell in cells.values()} == {1e-4}
    with pytest.raises(UserError, match="NER"):
        open_cell("QA", smoke[1], smoke[2], 0, ["tasks.NER.examples.tag=1"])


def test_questions_without_an_answer_are_refused(smoke, tmp_path):
    content = json.loads((smoke[1] / "qa" / "xquad.en.json").read_text())
    content["data"][0]["paragraphs"][0]["qas"][0] |= {"is_impossible": True, "answers": []}
    (tmp_path / "squad2.json").write_text(json.dumps(content))
    override = f"tasks.qa.examples.train={tmp_path / 'squad2.json'}"
    with pytest.raises(UserError, match="questions without an answer; give files of SQuAD 1.1"):
        open_cell("QA", smoke[1], smoke[2], 0, [override])
    with pytest.raises(UserError, match="the other arm cannot skip"):
        open_cell("QA", smoke[1], smoke[2], 0, ["tasks.qa.examples.on_bad_record=skip"])


def test_settings_that_one_arm_lacks_are_refused(smoke):
    for override in ("optimizer.kind=lamb", "optimizer.schedule.kind=cosine"):
        with pytest.raises(UserError, match="both arms use AdamW with a linear schedule"):
            _ = open_cell("MRPC", smoke[1], smoke[2], 0, [override]).recipe


def test_scores_do_not_depend_on_the_order(cells):
    cell = cells["MRPC"]
    pairs = [(record["Quality"], "1") for record in cell.heldout]
    positive = sum(label == "1" for label, _ in pairs) / len(pairs)
    expected = {"accuracy": positive, "f1": 2 * positive / (1 + positive), "matthews": 0.0}
    assert finetuning_scores.scores_of(cell, pairs) == pytest.approx(expected)
    assert finetuning_scores.scores_of(cell, pairs[::-1]) == pytest.approx(expected)
    regression = cells["STS-B"]
    pairs = [(record["score"], 2 * float(record["score"]) + 1) for record in regression.heldout]
    assert finetuning_scores.scores_of(regression, pairs) == pytest.approx({"pearson": 1.0, "spearman": 1.0})


def test_entities_are_scored_whole(cells):
    """The guess is one entity per sentence, its first word."""
    cell = cells["CoNLL-2003"]
    pairs = [(record["tags"], ["B-PER"] + ["O"] * (len(record["tags"]) - 1)) for record in cell.heldout]
    right = sum(tags[0] == "B-PER" for tags, _ in pairs)
    guessed, there = len(pairs), sum(tags.count("B-PER") for tags, _ in pairs)
    scores = finetuning_scores.scores_of(cell, pairs[::-1])
    assert scores["precision"] == pytest.approx(right / guessed)
    assert scores["f1"] == pytest.approx(2 * right / (guessed + there))
    assert finetuning_scores.majority(cell)["f1"] == 0.0
    with pytest.raises(RunFailed, match="not those of its 64 held-out records"):
        finetuning_scores.scores_of(cell, [(tags, prediction[1:]) for tags, prediction in pairs])


def test_answers_are_scored_as_squad_does(cells):
    cell = cells["QA"]
    golds = [record["answers"] for record in cell.heldout]
    predictions = [gold[0]["text"] if number % 2 else f"The {gold[0]['text']}, x." for number, gold in enumerate(golds)]
    scores = finetuning_scores.scores_of(cell, list(zip(golds, predictions))[::-1])
    assert scores == pytest.approx({"exact_match": 0.5, "f1": (1 + 2 / 3) / 2})


@pytest.mark.parametrize("task", ["CoNLL-2003", "QA"])
@pytest.mark.parametrize("override", ["seed=0", "tasks.{}.examples.stride=1000"])
def test_both_arms_learn_the_same_windows(smoke, task, override):
    """Token ids and labels are equal, for rows with a whole text and for windows of a longer one."""
    transformers = pytest.importorskip("transformers", reason="the other arm's tokenizer needs the extra [interop]")
    name = finetuning_cell.SOURCES[task].name
    cell = open_cell(task, smoke[1], smoke[2], 0, [override.format(name)])
    job = finetuning_cell.job_of(cell, smoke[0], seed=0, threads=1)
    theirs = TASKS[job["kind"]](job, transformers.AutoTokenizer.from_pretrained(job["model"])).train()
    classes = cell.classes or ("answer",)
    ours = cell.config.task.examples.encode(cell.train, tokenizer.load(smoke[2] / "tokenizer"), job["seq_len"], classes)
    bounds = ours.ragged.offsets
    assert len(theirs) == len(ours) > len(cell.train)
    assert [window["input_ids"] for window in theirs] == [
        ours.ragged.tokens[a:b].tolist() for a, b in zip(bounds, bounds[1:])
    ]
    if task == "QA":
        spans = [(window["start_positions"], window["end_positions"]) for window in theirs]
        assert spans == list(zip(ours.ragged.labels["start"].tolist(), ours.ragged.labels["end"].tolist()))
    else:
        tags = [tag for window in theirs for tag in window["labels"]]
        assert [max(tag, -1) for tag in tags] == ours.ragged.token_labels["tag"].tolist()


def test_the_other_arm_predicts_the_answers_of_certain_logits(smoke, cells):
    """Logits that are certain of the true answers give those answers, from padded windows."""
    transformers = pytest.importorskip("transformers", reason="the other arm's tokenizer needs the extra [interop]")
    for name in ("CoNLL-2003", "QA"):
        cell = cells[name]
        job = finetuning_cell.job_of(cell, smoke[0], seed=0, threads=1)
        job["heldout"] = job["train"]
        task = TASKS[job["kind"]](job, transformers.AutoTokenizer.from_pretrained(job["model"]))
        windows, labels = task.heldout(), task.train()
        longest = max(len(example["input_ids"]) for example in windows)
        if name == "QA":
            outputs = tuple(np.full((len(windows), longest), -100.0, np.float32) for _ in range(2))
            for window, example in enumerate(labels):
                for logits, place in zip(outputs, ("start_positions", "end_positions")):
                    logits[window, : len(example["input_ids"])] = 0.0
                    logits[window, example[place]] = 9.0
            assert task.predictions(outputs) == [record["answers"][0]["text"] for record in cell.train]
        else:
            outputs = np.full((len(windows), longest, len(cell.classes)), -100.0, np.float32)
            for window, example in enumerate(labels):
                for token, tag in enumerate(example["labels"]):
                    outputs[window, token, max(tag, 0)] = 9.0
            assert [cell.named(tags) for tags in task.predictions(outputs)] == [r["tags"] for r in cell.train]


def test_predictions_of_other_records_are_refused(cells):
    cell = cells["MRPC"]
    with pytest.raises(RunFailed, match="not those of its 64 held-out records"):
        finetuning_scores.scores_of(cell, [(record["Quality"], "1") for record in cell.heldout[1:]])


def test_a_restarted_command_continues_and_arms_take_turns(cells):
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


def test_answers_have_a_row_for_either_metric():
    lines = [line("QA", arm, 0) | {"scores": {"exact_match": 0.25, "f1": 0.5}} for arm in finetuning.ARMS]
    rows = finetuning_table.markdown(lines).splitlines()
    assert [row.split(" | ")[1:5] for row in rows[2:6]] == [
        ["exact_match", "bertjax", "25.0", "25.00"],
        ["exact_match", "transformers `Trainer`", "25.0", "25.00"],
        ["f1", "bertjax", "50.0", "50.00"],
        ["f1", "transformers `Trainer`", "50.0", "50.00"],
    ]


@pytest.mark.slow
def test_our_arm_runs_and_a_second_call_has_nothing_to_do(tmp_path, capsys):
    flags = ["--smoke", "--arms=bertjax", f"--out={tmp_path / 'out.jsonl'}"]
    assert finetuning.main(flags) == 0
    lines = resumable.finished(tmp_path / "out.jsonl")
    assert [(entry["task"], entry["arm"]) for entry in lines] == [(task, "bertjax") for task in finetuning_smoke.TASKS]
    for entry in lines:
        assert entry["score"] == entry["scores"][entry["metric"]] and entry["updates"] > 0
        assert 0.0 < entry["train_seconds"] < entry["wall_seconds"]
    assert "| MRPC | 64 | bertjax |" in capsys.readouterr().out
    assert finetuning.main(flags) == 0
    assert resumable.finished(tmp_path / "out.jsonl") == lines


@pytest.mark.parametrize(
    "flags, complaint",
    [
        ([], "--out is missing"),
        (["--out=x", "--data=data"], "--model is missing"),
        (["--tasks=MNLI"], "--tasks has 'MNLI'; choose among MRPC"),
        (["--seeds=0"], "--seeds=0 must be at least 1"),
        (["--smoke", f"--torch-python={sys.executable}-not"], "cannot be started"),
        (["--smoke", "--torch-python=false"], "does not import torch, transformers, accelerate"),
    ],
)
def test_bad_input(flags, complaint):
    with pytest.raises(UserError) as error:
        finetuning.main(flags)
    assert complaint in str(error.value)
