"""Objectives by their kind, and names that are not kinds."""

import dataclasses

import pytest

from bertjax.data.masking import MASKINGS
from bertjax.errors import UserError
from bertjax.objectives import KINDS, OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training.schedules import SCHEDULES


@dataclasses.dataclass(frozen=True)
class Elsewhere(Objective):
    """An objective of someone else's module."""


@pytest.mark.parametrize("objective", [MaskedLM(), BERT(), Elsewhere()])
def test_the_kind_of_an_objective_leads_back_to_its_class(objective):
    assert OBJECTIVES.class_of(OBJECTIVES.kind_of(objective)) is type(objective)


def test_registered_names():
    assert {kind: OBJECTIVES.kind_of(OBJECTIVES.class_of(kind)()) for kind in KINDS} == {kind: kind for kind in KINDS}
    assert OBJECTIVES.class_of(None) is BERT
    assert OBJECTIVES.class_of(f"{__name__}:Elsewhere") is Elsewhere


@pytest.mark.parametrize(
    "kind, message",
    [
        (
            "nope",
            f"^objective.kind='nope' is unknown; choose one of {', '.join(KINDS)}, or name module:Class$",
        ),
        ("no_such_module:X", "cannot be imported: No module named 'no_such_module'; is its folder on PYTHONPATH"),
        ("bertjax.objectives.pretraining.mlm:Nothing", "cannot be imported: .* has no attribute 'Nothing'"),
        (
            "bertjax.objectives.pretraining.mlm:token_terms",
            "is not a subclass of Objective; derive it from bertjax.objectives.base.Objective$",
        ),
    ],
)
def test_unknown_kinds_are_errors(kind, message):
    with pytest.raises(UserError, match=message):
        OBJECTIVES.class_of(kind)


@pytest.mark.parametrize("union", [MASKINGS, SCHEDULES])
def test_maskings_and_schedules_come_from_bertjax_only(union):
    """A file that names a module must not make its reader import it."""
    with pytest.raises(UserError, match=f"^{union.setting}.kind='nowhere.evil:X' is unknown; choose one of .*[a-z]$"):
        union.class_of("nowhere.evil:X")
