"""Reports of a run: the parameter tree, samples, and tables."""

import dataclasses
import io

import pytest
from rich.console import Console

from bertjax.config.config import from_dict
from bertjax.objectives.outputs import Sample
from bertjax.training.evaluation import Evaluation
from bertjax.training.results.report import (
    masked_sentence,
    print_summary,
    replacing_lines,
    show_samples,
    summary_of,
)
from bertjax.training.run.goodput import goodput_of
from bertjax.training.run.metrics import Totals

EVALUATION = Evaluation(
    metrics={"mlm_loss": 4.5, "mlm_accuracy": 0.25, "nsp_accuracy": 0.5},
    baselines={"unigram_loss": 6.25, "majority_accuracy": 0.03125, "nsp_majority": 0.4375},
    samples=[Sample("the [MASK] sat on [MASK] mat", ("cat", "the"), (("dog", "cat"), ("the", "a")))],
    predictions=[],
    rank=4.5,
)


def test_control_characters_of_a_corpus_do_not_reach_the_terminal():
    samples = [Sample("\x1b]0;title\x07 the [MASK]\r\u202e", ("\x9b2J",), (("a\nb", "\x00"),))]
    text = show_samples(7, dataclasses.replace(EVALUATION, samples=samples))
    assert text.splitlines()[1] == r"  \x1b]0;title\x07 the [MASK]\r\u202e"
    assert text.splitlines()[2].endswith(r"\x9b2J <- a\nb  \x00") and len(text.splitlines()) == 3


def summary(evaluation: Evaluation = EVALUATION) -> dict:
    totals = Totals(tokens=6000.0, seconds=120.0, compile_seconds=20.0)
    return summary_of(evaluation, totals, 40, goodput_of(totals, wall_seconds=200.0), 1000)


@pytest.mark.parametrize(
    "steps, expected",
    [
        (60, "task mine: from step 50 on the student's layers run alone"),
        (26, "task mine: the last step replaces a module of the teacher with probability 0.70, so the student's layers "
         "never run alone; set tasks.mine.objective.steps to about 12"),
    ],
)  # fmt: skip
def test_the_step_from_which_the_layers_of_a_student_run_alone(steps, expected):
    replacing = {"kind": "replacing", "objective": {"kind": "mlm"}, "teacher": "a", "first": 0.4, "steps": 50}
    tasks = {"mine": {"objective": replacing}, "other": {"objective": {"kind": "mlm"}}}
    stages = [{"steps": steps // 2}, {"steps": steps - steps // 2}]
    config = from_dict({"tasks": tasks, "stages": stages, "optimizer": {"warmup_steps": 2}})
    assert replacing_lines(config) == [expected]


def test_keys_of_the_summary():
    assert summary() == {
        "parameters": 1000,
        "eval": EVALUATION.metrics,
        "baseline": EVALUATION.baselines,
        "tokens": 6000.0,
        "steps": 40,
        "seconds": 120.0,
        "tokens_per_second": 50.0,
        "accounts": {
            "step": 100.0,
            "data_wait": 0.0,
            "compile": 20.0,
            "checkpoint": 0.0,
            "evaluation": 0.0,
            "wall": 200.0,
            "goodput": 0.5,
        },
    }


def printed(summary: dict) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_summary(summary, console)
    return console.file.getvalue()


def test_the_table_has_baselines_beside_the_metrics():
    text = printed(summary())
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert "4.5000" in rows["mlm_loss"] and "6.2500" in rows["mlm_loss"]
    assert "0.2500" in rows["mlm_accuracy"] and "0.0312" in rows["mlm_accuracy"]
    assert "0.5000" in rows["nsp_accuracy"] and "0.4375" in rows["nsp_accuracy"]
    assert "40 steps, 6,000 tokens in 2.0 min (50 tokens/s, everything included)" in " ".join(text.split())
    assert "step 100 s, data wait 0 s, compile 20 s" in text and "; 50.0% of 200 s are steps (the goodput)" in text


def test_the_table_and_the_samples_have_the_moving_average_beside_the_model():
    evaluation = dataclasses.replace(EVALUATION, ema=dataclasses.replace(EVALUATION, metrics={"mlm_loss": 4.25}))
    [row] = [line for line in printed(summary(evaluation)).splitlines() if "mlm_loss" in line]
    assert row.replace("│", " ").split() == ["mlm_loss", "4.5000", "4.2500", "6.2500"]
    assert show_samples(7, evaluation).splitlines()[1] == "step 7, held out, moving average: mlm_loss 4.2500"


@pytest.mark.parametrize(
    "texts, sentence",
    [
        (
            ["[CLS] 바람 [MASK] 분다. [SEP] [MASK] 온다. [SEP]", "[CLS] 비 [SEP]"],
            "[MASK] 온다.",
        ),
        (["[CLS] [MASK] 부\ufffd의소 [SEP] 채권의 [MASK] 취지 [SEP]"], "채권의 [MASK] 취지"),
        (["[CLS] [MASK] 부\ufffd의소 [SEP]"], "The [MASK] is old."),
        (["[CLS] “No!” [MASK] he. [SEP]"], "The [MASK] is old."),
        (["<s>Grüße <mask></s>"], "The [MASK] is old."),
        ([], "The [MASK] is old."),
    ],
)
def test_a_sentence_to_try_is_of_the_language_of_the_run(texts, sentence):
    assert masked_sentence([{"text": text, "answers": [], "guesses": []} for text in texts]) == sentence
