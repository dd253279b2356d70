"""Which settings change what a held-out metric measures: every one unless it is known to change training only."""

import copy
import dataclasses

import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.models.heads import MaskedLMHead
from bertjax.models.model import HeadSpec
from bertjax.objectives.base import OBJECTIVES
from bertjax.training.results.heldout_task import heldout_task

TEXT = {"stages": [{"steps": 9, "seq_len": 32, "batch": 8}], "model": {"max_positions": 64},
        "optimizer": {"warmup_steps": 2}}  # fmt: skip
DISTILLED = {"kind": "distilled", "objective": {"kind": "mlm"}, "teacher": "t", "losses": {"soft": {"kind": "logits"}}}
RECORDS = TEXT | {"tasks": {"rte": {"objective": {"kind": "classification"}, "examples": {
    "kind": "labeled_text", "train": "a/train.tsv", "heldout": "a/dev.tsv"}}}}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sharp(OBJECTIVES.class_of("bert")):
    rho: float = 0.05
    question = "bert"

    def heads(self, config):
        return super().heads(config) | {"bag": HeadSpec(MaskedLMHead)}


@dataclasses.dataclass(frozen=True)
class Heir(Sharp):
    """It declares no question: its metrics may mean something else."""


def task(base, metric, changes=(), store="a"):
    """The held-out task of a run with some settings by dotted name."""
    config = copy.deepcopy(to_dict(from_dict(base)))
    for name, value in dict(changes).items():
        *path, last = name.split(".")
        part = config
        for key in path:
            part = part[int(key)] if isinstance(part, list) else part[key]
        part[last] = value
    settings = to_dict(from_dict(config))
    return heldout_task(settings, from_dict(config).identity(store * 64), metric)


@pytest.mark.parametrize(
    "name, value",
    [
        ("tasks.bert.objective.masking", {"kind": "words"}),
        ("tasks.bert.objective.masking.rate", 0.4),
        ("tasks.bert.objective.masking.random", 0.0),
        ("tasks.bert.examples", {"kind": "full_sentences"}),
        ("tasks.bert.examples.trim", "outer_ends"),
        ("tasks.bert.objective.kind", "structbert"),
        ("data.tokenizer.kind", "wordpiece"),
        ("data.tokenizer.vocab_size", 4000),
        ("data.heldout_share", 0.1),
        ("data.splitter", "line"),
        ("data.corpus", "embedded:ko"),
        ("stages.0.seq_len", 64),
        ("eval.seed", 1),
    ],
)
def test_another_question(name, value):
    if value == "structbert":
        changes = {name: value, "tasks.bert.examples": {"kind": "sentence_structure"}}
    elif value == {"kind": "full_sentences"}:
        changes = {name: value, "tasks.bert.objective": {"kind": "mlm"}}
    else:
        changes = {name: value}
    last = name.split(".")[-1]
    assert any(last in line for line in task(TEXT, "mlm_loss").changes(task(TEXT, "mlm_loss", changes, store="b")))


def test_an_own_objective_answers_the_question_that_it_declares():
    def own(metric, kind="Sharp", **changes):
        settings = {"kind": f"{__name__}:{kind}", "rho": 0.05, **changes}
        return task(TEXT, metric, {f"tasks.bert.objective.{name}": value for name, value in settings.items()})

    for metric in ("mlm_loss", "nsp_accuracy"):
        assert task(TEXT, metric).changes(own(metric)) == own(metric).changes(own(metric, rho=0.1)) == []
        [change] = task(TEXT, metric).changes(own(metric, **{"masking.rate": 0.4}))
        assert change == "objective.masking.rate: 0.15 -> 0.4"
        assert any(f"{__name__}:Heir" in change for change in task(TEXT, metric).changes(own(metric, "Heir")))
    assert own("bag_loss").changes(own("bag_loss", rho=0.1)) == ["objective.rho: 0.05 -> 0.1"], "a metric of its own"


def test_what_is_measured_against_a_teacher_depends_on_the_teacher():
    taught = TEXT | {"tasks": {"bert": {"objective": DISTILLED}}}
    other = {"tasks.bert.objective.teacher": "u"}
    assert task(taught, "mlm_loss").changes(task(taught, "mlm_loss", other)) == []
    for metric in ("soft_loss", "agreement", "soft_agreement"):
        assert task(taught, metric).changes(task(taught, metric, other)) == ["objective.teacher: 't' -> 'u'"]


def test_scores_of_records_depend_on_the_records_and_a_loss_on_its_settings_too():
    """Models with different tokenizers and lengths answer the same questions about the same records."""
    inputs = {"data.tokenizer.vocab_size": 4000, "stages.0.seq_len": 64, "tasks.rte.examples.train": "b/train.tsv"}
    smoothing = {"tasks.rte.objective.label_smoothing": 0.1}
    records = {"tasks.rte.examples.heldout": "b/dev.tsv"}
    accuracy, loss = task(RECORDS, "accuracy"), task(RECORDS, "label_loss")
    assert accuracy.changes(task(RECORDS, "accuracy", inputs | smoothing, "b")) == []
    assert loss.changes(task(RECORDS, "label_loss", inputs, "b")) == []
    assert loss.changes(task(RECORDS, "label_loss", smoothing)) == ["objective.label_smoothing: 0.0 -> 0.1"]
    assert accuracy.changes(task(RECORDS, "accuracy", records)) == [], "a file that was moved"
    assert accuracy.changes(task(RECORDS, "accuracy", records, "b")) == ["examples.heldout: 'a/dev.tsv' -> 'b/dev.tsv'"]
