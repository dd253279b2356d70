"""The contract of an objective: size, loss weights, missing methods, depth of classes, no Flax modules of its own."""

import dataclasses
import re
from pathlib import Path

import pytest

import bertjax
from bertjax.objectives import KINDS, OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.wrapper import Wrapper
from bertjax.training.loss import total_loss

PACKAGE = Path(bertjax.__file__).parent


@dataclasses.dataclass(frozen=True)
class Weighted(Objective):
    def loss_weights(self, terms, step):
        return {"replaced": 50.0}


def test_terms_are_summed_by_their_weights():
    assert total_loss(Weighted(), {"mlm": 2.0, "replaced": 0.1}, step=0) == pytest.approx(7.0)
    assert total_loss(Objective(), {"mlm": 2.0, "replaced": 0.1}, step=0) == pytest.approx(2.1)


def members(cls) -> set[str]:
    """The public members that a subclass may define."""
    return {name for name, value in vars(cls).items() if not name.startswith("_") and not hasattr(value, "__final__")}


def test_an_objective_has_few_members_and_none_is_about_teachers():
    assert len(members(Objective)) <= 16
    assert not [name for name in members(Objective) if "teacher" in name]


def test_a_wrapper_delegates_every_member():
    assert members(Objective) - members(Wrapper) == set()


def test_missing_methods_are_errors():
    empty = Weighted()
    for call in (
        lambda: empty.model(None),
        lambda: empty.logits(None, {}),
        lambda: empty.features(None, None),
        lambda: empty.weights({}),
    ):
        with pytest.raises(TypeError, match="^Weighted has no "):
            call()
    with pytest.raises(TypeError, match=r"^Weighted has no terms_of\(\)$"):
        empty.terms_of({}, {})


@pytest.mark.parametrize(
    "defined, missing", [("bind", "fingerprints"), ("fingerprints", "bind"), ("soft_logits", "soft_weights")]
)
def test_half_of_an_ability_is_an_error(defined, missing):
    """It would never be called: the ability is checked by all of its methods."""
    with pytest.raises(TypeError, match=f"^Own defines {defined} without {missing}; define both, see "):
        type("Own", (Objective,), {defined: lambda self, *arguments: None})
    both = dict.fromkeys((defined, missing), lambda self, *arguments: None)
    type("Other", (type("Own", (Objective,), both),), {defined: both[defined]})


def test_objectives_are_at_most_two_classes_deep():
    for kind in KINDS:
        depth = OBJECTIVES.class_of(kind).__mro__.index(Objective)
        assert depth <= 2, f"{kind} is {depth} classes below Objective"


def test_only_models_has_flax_modules():
    others = {path: path.read_text() for path in PACKAGE.rglob("*.py") if PACKAGE / "models" not in path.parents}
    assert [path for path, text in others.items() if re.search(r"\blinen\b|(?<!torch\.)nn\.Module", text)] == []
