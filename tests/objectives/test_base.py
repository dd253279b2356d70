"""The contract of objectives: losses, wrappers and the registry."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.objectives import KINDS
from bertjax.objectives.base import OBJECTIVES, Objective
from bertjax.objectives.host import Host
from bertjax.objectives.losses import binary_term, classification_term, kl_divergence
from bertjax.objectives.wrapper import Wrapper
from bertjax.runtime.errors import UserError

PACKAGE = Path(bertjax.__file__).parent


@dataclasses.dataclass(frozen=True)
class Weighted(Objective):
    def loss_weights(self, terms, step):
        return {"replaced": 50.0}


def members(cls) -> set[str]:
    """The public members that a subclass may define."""
    return {name for name, value in vars(cls).items() if not name.startswith("_") and not hasattr(value, "__final__")}


def test_an_objective_has_few_members_and_none_is_about_teachers():
    assert len(members(Objective)) <= 13 and len(members(Host)) <= 11
    assert not [name for name in members(Objective) if "teacher" in name]


def test_a_wrapper_delegates_every_member():
    assert (members(Objective) | members(Host)) - members(Wrapper) == set()


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


def test_only_models_has_flax_modules():
    others = {path: path.read_text() for path in PACKAGE.rglob("*.py") if PACKAGE / "models" not in path.parents}
    assert [path for path, text in others.items() if re.search(r"\blinen\b|(?<!torch\.)nn\.Module", text)] == []


DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("label, right", [(0, 0), (1, 1), (2, 0)])
def test_of_equal_logits_the_first_is_the_answer(label, right):
    assert classification_term(jnp.array([[0.0, 5.0, 5.0]]), jnp.array([label]), jnp.ones(1))[1] == right


def test_binary_term_is_cross_entropy_over_what_counts():
    logits = DRAW.normal(size=(4, 50)).astype(np.float32)
    is_positive, is_counted = DRAW.random((4, 50)) < 0.3, DRAW.random((4, 50)) < 0.6
    loss, metrics = binary_term("fact", jnp.array(logits), jnp.array(is_positive), jnp.array(is_counted))
    chance = 1 / (1 + np.exp(-np.float64(logits)))
    expected = -np.log(np.where(is_positive, chance, 1 - chance))[is_counted].sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    is_predicted = logits > 0
    correct, both = is_predicted == is_positive, is_predicted & is_positive
    assert {name: tuple(map(float, pair)) for name, pair in metrics.items()} == {
        "fact_accuracy": (correct[is_counted].sum(), is_counted.sum()),
        "fact_precision": (both[is_counted].sum(), is_predicted[is_counted].sum()),
        "fact_recall": (both[is_counted].sum(), is_positive[is_counted].sum()),
    }


@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 4.0])
def test_padded_entries_count_at_no_temperature(temperature):
    """Neither in the divergence nor in its gradient; they hold the lowest float."""
    real = 3.0 * DRAW.normal(size=(2, 5, 7))
    logits = np.full((2, 5, 9), np.finfo(np.float32).min, np.float32)
    logits[..., :7] = real
    scaled = real / temperature
    logs = scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
    expected = temperature**2 * np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)
    np.testing.assert_allclose(kl_divergence(*jnp.asarray(logits), temperature), expected, rtol=1e-5)
    gradient = jax.grad(lambda student: kl_divergence(jnp.asarray(logits[0]), student, temperature).sum())(logits[1])
    np.testing.assert_allclose(
        gradient[..., :7], temperature * (np.exp(logs[1]) - np.exp(logs[0])), rtol=1e-4, atol=1e-6
    )
    assert not np.any(gradient[..., 7:])


@pytest.mark.parametrize(
    "kind, message",
    [
        ("nope", f"^objective.kind='nope' is unknown; choose one of {', '.join(KINDS)}, or name module:Class$"),
        ("no_such_module:X", "cannot be imported: No module named 'no_such_module'; is its folder on PYTHONPATH"),
        ("bertjax.objectives.pretraining.mlm:Nothing", "cannot be used: .* has no class 'Nothing'"),
        (
            "bertjax.objectives.pretraining.mlm:token_terms",
            "is not a subclass of Objective; derive it from bertjax.objectives.base.Objective$",
        ),
        ("bertjax.objectives.pretraining.mlm:MaskedLm", "has no class 'MaskedLm'; did you mean 'MaskedLM'[?]$"),
        (":", "cannot be imported: ValueError: Empty module name"),
        (".relative:X", "cannot be imported: TypeError: "),
    ],
)
def test_unknown_kinds_are_errors(kind, message):
    with pytest.raises(UserError, match=message):
        OBJECTIVES.class_of(kind, trust_code=True)


@pytest.mark.parametrize(
    "code, line, error",
    [
        ("import nosuchlib", 1, "ModuleNotFoundError: No module named 'nosuchlib'"),
        ("import json\nX = json.no_such_thing", 2, "AttributeError: module 'json' has no attribute 'no_such_thing'"),
        ("import json\n\ndef f(:", 3, "SyntaxError: invalid syntax"),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(tmp_path, monkeypatch, code, line, error):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_objective.py").write_text(code)
    with pytest.raises(UserError) as caught:
        OBJECTIVES.class_of("failing_objective:X", trust_code=True)
    message = str(caught.value)
    assert f"cannot be imported: {tmp_path / 'failing_objective.py'}:{line}: {error}" in message
    assert message.endswith("; correct the file") and "\n" not in message
