import dataclasses

import jax
import pytest

from bertjax.objectives.base import Objective
from bertjax.training.step import total_loss


@dataclasses.dataclass(frozen=True)
class Weighted(Objective):
    @property
    def coefficients(self):
        return {"replaced": 50.0}


def test_terms_are_summed_by_their_coefficients():
    assert total_loss(Weighted(), {"mlm": 2.0, "replaced": 0.1}) == pytest.approx(7.0)
    assert total_loss(Objective(), {"mlm": 2.0, "replaced": 0.1}) == pytest.approx(2.1)


def test_what_an_objective_must_have_is_named():
    empty = Weighted()
    for call in (lambda: empty.module(None), lambda: empty.features(None, None), lambda: empty.weights({})):
        with pytest.raises(TypeError, match="^Weighted has no "):
            call()
    with pytest.raises(TypeError, match=r"^Weighted has no terms\(\)$"):
        empty.terms(None, {}, None, {}, jax.random.key(0), True)
