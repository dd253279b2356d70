"""Teachers that would have no effect are refused before their folder is read."""

import dataclasses

import pytest

from bertjax.config.config import Config
from bertjax.config.task import Task
from bertjax.objectives.pretraining.distillation import Distillation
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.replacement import Replacing
from bertjax.objectives.teacher_losses.logits import SoftLogits
from bertjax.runtime.errors import UserError
from bertjax.training.teachers import open_teachers

SOFT = {"soft": SoftLogits()}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Electra(teacher="a"), "objective.teacher=a has no effect with objective.kind=electra, .*; remove it"),
        (Electra(teacher_losses=SOFT), "teacher_losses=soft have no effect with objective.kind=electra"),
        (Electra(teacher="a", replacing=Replacing()), "replacing has no effect with objective.kind=electra"),
        (Electra(own_factor=0.5), "objective.own_factor=0.5 has no effect without objective.teacher_losses"),
        (MaskedLM(teacher="a"), "objective.teacher=a has no effect without losses"),
        (MaskedLM(teacher="a", replacing=Replacing(), teacher_losses=SOFT), "replacing and .*=soft do not go together"),
        (
            MaskedLM(teacher="a", replacing=Replacing(), own_factor=0.0),
            "replacing and objective.own_factor=0.0 do not go together.*set objective.own_factor=1",
        ),
    ],
)
def test_settings_without_effect(objective, message):
    with pytest.raises(UserError, match=message):
        open_teachers(Config(tasks={"mine": Task(objective)}))


@dataclasses.dataclass(frozen=True)
class OwnTeacher(Electra):
    """Terms that read the teacher's parameters by themselves."""

    def frozen_params(self, config):
        return {"teacher": self.bound_teacher.params}


@pytest.mark.parametrize(
    "objective",
    [
        Distillation(teacher="no/such/folder"),
        OwnTeacher(teacher="no/such/folder"),
        MaskedLM(teacher="no/such/folder", teacher_losses=SOFT, own_factor=0.5),
        MaskedLM(teacher="no/such/folder", replacing=Replacing()),
    ],
)
def test_a_teacher_with_an_effect_is_read(objective):
    with pytest.raises(UserError, match="no/such/folder"):
        open_teachers(Config(tasks={"mine": Task(objective)}))
