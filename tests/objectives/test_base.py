"""The contract of objectives: losses, wrappers and the registry."""

import dataclasses
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.config import private_paths
from bertjax.config.config import Config, from_dict, to_dict
from bertjax.config.task import Task
from bertjax.data.formats.runs import FullSentences
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.masking import MASKINGS
from bertjax.models.blocks import BLOCKS
from bertjax.models.embeddings import EMBEDDINGS
from bertjax.objectives import KINDS, OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.logits import SoftLogits
from bertjax.objectives.distill.replacing import Replacing
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.question_answering import NO_ANSWER, QuestionAnswering
from bertjax.objectives.losses import binary_term, cosine_distance, kl_divergence, squared_error
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.objectives.wrapper import Wrapper
from bertjax.runtime.errors import Untrusted, UserError
from bertjax.training.evaluation import tuned
from bertjax.training.loss import total_loss
from bertjax.training.program import Program
from bertjax.training.schedules import SCHEDULES
from tests import batches

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


DRAW = np.random.default_rng(0)


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


def test_distances_are_weighted_sums():
    first, second = DRAW.normal(size=(2, 3, 5, 8)).astype(np.float32)
    weights = DRAW.integers(0, 2, (3, 5)).astype(np.float32)
    cosines = (first * second).sum(-1) / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)
    np.testing.assert_allclose(cosine_distance(first, second, weights), ((1 - cosines) * weights).sum(), rtol=1e-5)
    squares = (first - second) ** 2 * weights[..., None]
    np.testing.assert_allclose(squared_error(first, second, weights[..., None]), squares.sum(), rtol=1e-5)


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


@dataclasses.dataclass(frozen=True)
class Elsewhere(Objective):
    """An objective of someone else's module."""


@pytest.mark.parametrize("objective", [MaskedLM(), BERT(), Elsewhere()])
def test_the_kind_of_an_objective_leads_back_to_its_class(objective):
    assert OBJECTIVES.class_of(OBJECTIVES.kind_of(objective)) is type(objective)


@pytest.mark.parametrize(
    "kind, message",
    [
        (
            "nope",
            f"^objective.kind='nope' is unknown; choose one of {', '.join(KINDS)}, or name module:Class$",
        ),
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


@pytest.mark.parametrize("kind", ["idlelib.idle:X", ":", ".relative:X", "a b:X"])
def test_a_module_that_is_not_imported_needs_trust(kind):
    with pytest.raises(Untrusted, match=f"^objective.kind='{kind}' asks to import .* add --trust-code") as caught:
        OBJECTIVES.class_of(kind)
    assert "\n" not in str(caught.value)
    assert kind.partition(":")[0] not in sys.modules


@pytest.mark.parametrize("union", [MASKINGS, SCHEDULES, BLOCKS, EMBEDDINGS])
def test_what_a_file_names_is_not_imported(union):
    """A file that names a module must not make its reader import it."""
    with pytest.raises(Untrusted, match=f"^{union.setting}.kind='nowhere.evil:X' asks to import .* add --trust-code"):
        union.class_of("nowhere.evil:X")
