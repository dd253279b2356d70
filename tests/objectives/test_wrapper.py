"""A wrapped objective: it knows nothing of its wrapper, has its settings, and is what an export holds."""

import dataclasses
from pathlib import Path

import jax

from bertjax.config import private_paths
from bertjax.config.config import Config, from_dict, to_dict
from bertjax.config.task import Task
from bertjax.data.formats.full_sentences import FullSentences
from bertjax.data.labeled.texts import LabeledText
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.logits import SoftLogits
from bertjax.objectives.distill.replacing import Replacing
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.question_answering import NO_ANSWER, QuestionAnswering
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.training.evaluation import tuned
from bertjax.training.program import Program
from tests import batches

SOFT = {"soft": SoftLogits()}
TEACHER = Teacher(batches.ENCODER, {}, "a tokenizer", Path("a/teacher"))


@dataclasses.dataclass(frozen=True)
class Own(MaskedLM):
    """An objective from outside of bertjax."""

    share: float = 0.1
    fails: bool = False

    def terms_of(self, logits, batch):
        if self.fails:
            raise ValueError("a mistake in user code")
        return super().terms_of(logits, batch)


def config_of(**settings) -> Config:
    own = {"kind": f"{__name__}:Own", **settings}
    objective = {"kind": "distilled", "objective": own, "teacher": "a/teacher", "losses": {"soft": {"kind": "logits"}}}
    task = {"objective": objective, "examples": {"kind": "full_sentences"}}
    model = {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16, "vocab_size": 100}
    stages = [{"steps": 2, "seq_len": 16, "batch": 8}]
    run = {"model": model, "tasks": {"mine": task}, "stages": stages, "optimizer": {"warmup_steps": 0}}
    return from_dict(run, trust_code=True)


def with_teacher(config: Config) -> Config:
    params = batches.filled(batches.param_shapes(MaskedLM(), batches.ENCODER))
    objective = config.task.objective.bind_teacher(dataclasses.replace(TEACHER, params=params))
    return dataclasses.replace(config, tasks={"mine": dataclasses.replace(config.task, objective=objective)})


def test_an_objective_of_a_user_is_wrapped_by_its_name():
    config = config_of(share=0.5)
    assert config.task.objective == Distilled(Own(share=0.5), "a/teacher", SOFT)
    assert from_dict(to_dict(config), trust_code=True) == config
    assert config.foreign_kinds == (f"{__name__}:Own",)
    assert Config(tasks={name: Task(Own(), FullSentences()) for name in "ab"}).foreign_kinds == config.foreign_kinds
    Program(with_teacher(config), 100, tuple(jax.devices()[:1])).check()


def test_an_export_holds_the_wrapped_objective_alone():
    settings = private_paths.without_teachers(to_dict(config_of(share=0.5)))
    assert "teacher" not in str(settings)
    assert from_dict(settings, trust_code=True).task.objective == Own(share=0.5)
    unlabeled = LabeledText(train="a.csv", heldout="b.csv", unlabeled="more.txt")
    task = Task(Replacing(Classification(("0", "1")), "a/teacher"), unlabeled)
    settings = private_paths.without_teachers(to_dict(Config(tasks={"mine": task})))
    assert from_dict(settings).task == Task(Classification(("0", "1")), dataclasses.replace(unlabeled, unlabeled=""))


def test_settings_of_the_wrapped_objective_change_and_the_teacher_stays():
    objective = Distilled(MaskedLM(), "a/teacher", SOFT).bind_teacher(TEACHER)
    changed = Task(objective).with_masking_rate(0.3).objective
    assert changed.objective.masking.rate == 0.3 and changed.bound_teacher is TEACHER
    answers = Distilled(QuestionAnswering(classes=(NO_ANSWER,)), "a/teacher", SOFT).bind_teacher(TEACHER)
    assert tuned(answers, {"threshold": 0.5}).objective.threshold == 0.5
    assert tuned(answers, {"threshold": 0.5}).bound_teacher is TEACHER


def test_what_the_data_decides_is_a_setting_of_the_wrapped_objective():
    task = Task(Distilled(Classification(), "a/teacher", SOFT), LabeledText(train="a.csv", heldout="b.csv"))
    assert task.has_classes and task.kind == "classification"
    assert "tasks.mine.objective.objective.classes" in Config(tasks={"mine": task}).open_settings
