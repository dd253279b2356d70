"""Teachers that would have no effect are refused before their folder is read."""

import dataclasses

import pytest

from bertjax.config.config import Config
from bertjax.config.task import Task
from bertjax.data.labeled.texts import LabeledText
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.hidden import HiddenStates
from bertjax.objectives.distill.losses.logits import SoftLogits
from bertjax.objectives.distill.replacing import Replacing
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.embeddings import EmbeddingContrastive
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from bertjax.training.teachers import open_teachers
from tests import runs

SOFT = {"soft": SoftLogits()}
NO_LOSS = {"soft": SoftLogits(factor=0.0)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Distilled(Electra(), "a", SOFT),
            "kind=electra computes its own losses.*without objective.kind=dis",
        ),
        (lambda: Replacing(Electra(), "a"), "kind=electra computes its own losses.*without objective.kind=replacing"),
        (lambda: Distilled(MaskedLM(), "a"), "has no objective.losses; set objective.losses="),
        (
            lambda: Replacing(Distilled(MaskedLM(), losses=SOFT), "b"),
            "objective.objective.kind=distilled is a second wrapper; wrap an objective once",
        ),
        (lambda: Distilled(MaskedLM(), "a", NO_LOSS, own_factor=0.0), "own_factor=0 leaves nothing to learn: .*=soft"),
        (
            lambda: Distilled(EmbeddingContrastive(), "a", SOFT),
            "EmbeddingContrastive has no logits .* kind=hidden",
        ),
    ],
)
def test_settings_without_effect(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("objective", [Distilled(MaskedLM(), losses=SOFT), Replacing(MaskedLM())])
def test_a_teacher_is_named(objective):
    with pytest.raises(UserError, match="needs a teacher; set objective.teacher to an export folder"):
        open_teachers(Config(tasks={"mine": Task(objective)}))


@pytest.mark.parametrize(
    "objective",
    [
        Classification(),
        Replacing(Classification(), "a"),
        Distilled(Classification(), "a", NO_LOSS | {"states": HiddenStates(factor=0.0)}),
    ],
)
def test_unlabeled_texts_need_a_teacher_that_labels_them(objective):
    examples = LabeledText(train="a.csv", heldout="b.csv", unlabeled="more.txt")
    with pytest.raises(UserError, match="more.txt needs a teacher, which labels it; set objective.kind=distilled"):
        open_teachers(Config(tasks={"mine": Task(objective, examples)}))


@dataclasses.dataclass(frozen=True)
class Own(MaskedLM):
    """An objective that does not handle teachers."""


@pytest.mark.parametrize(
    "objective",
    [
        Distilled(MaskedLM(), "no/such/folder", SOFT, own_factor=0.5),
        Distilled(Own(), "no/such/folder", SOFT),
        Replacing(MaskedLM(), "no/such/folder"),
    ],
)
def test_a_teacher_with_an_effect_is_read(objective):
    with pytest.raises(UserError, match="no/such/folder"):
        open_teachers(Config(tasks={"mine": Task(objective)}))


@pytest.mark.slow
def test_devices_compare_the_whole_batch():
    results = runs.on_devices(8, "tests.training.contrast_on_eight_devices")
    plain = results.pop("plain")
    assert plain["loss"] > 2.0 and plain["evaluated"] > 2.0, "of ten pairs; one device has two at most"
    assert len(results) == 4
    for layout, difference in results.items():
        assert difference["loss"] < 1e-5 and difference["evaluated"] < 1e-5, layout
        assert difference["right"] == 0 and difference["gradient"] < 1e-5, layout
