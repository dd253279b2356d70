"""DistilBERT's student and teacher: losses, teachers that do not fit, and files that are opened once."""

import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import export
from bertjax.config.config import Config, from_dict, to_dict
from bertjax.config.export import Export
from bertjax.config.task import Task
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses import Values
from bertjax.objectives.distill.losses.layers import OutputCosine
from bertjax.objectives.distill.losses.logits import SoftLogits, TokenLogits
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.finetuning.labels import Classification
from bertjax.objectives.losses import kl_divergence
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from bertjax.training.setup import compile_chunk, init_frozen, make_setups, shapes_of_batches
from bertjax.training.stage_flops import of_stage
from bertjax.training.trace_checks import checked_setups
from tests import batches
from tests.models import reference

BATCH = batches.make()


def distilled(temperature: float = 2.0, soft: type = SoftLogits) -> Distilled:
    """DistilBERT's objective with soft targets at masked or at all tokens, without its teacher."""
    losses = {"soft": soft(temperature=temperature, factor=5.0), "cosine": OutputCosine()}
    return Distilled(MaskedLM(), "a/teacher", losses, own_factor=2.0)


def params_of(encoder) -> dict:
    return batches.filled(batches.param_shapes(MaskedLM(), encoder, BATCH))


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(batches.ENCODER, params_of(batches.ENCODER), "a tokenizer", Path("a/teacher"))


def losses(
    teacher: Teacher, student_params: dict, temperature: float = 2.0, student=batches.ENCODER
) -> dict[str, float]:
    objective = distilled(temperature).bind_teacher(teacher)
    model, frozen = objective.model(student), objective.frozen_params(student)
    sums, metrics = objective.terms(model, student_params, frozen, BATCH, jax.random.key(0), False)
    weights = objective.weights(BATCH)
    return {name: float(sums[name] / weights[name]) for name in sums} | {
        name: float(total / weight) for name, (total, weight) in metrics.items()
    }


def test_the_cosine_is_that_of_real_tokens():
    draw, batch = np.random.default_rng(0), batches.make(rows=3)
    student, teacher = draw.normal(size=(2, 3, 16, 4)).astype(np.float32)
    is_real_BT = batch["examples_BT"] > 0
    a, b = student[is_real_BT], teacher[is_real_BT]
    cosines = (a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    own, other = (Values(batches.ENCODER, None, {"output": states}, ()) for states in (student, teacher))
    total, _ = OutputCosine().terms(own, other, batch, {}, None)
    assert 0 < is_real_BT.sum() < is_real_BT.size
    np.testing.assert_allclose(total, (1 - cosines).sum(), rtol=1e-5)
    assert OutputCosine().weight(batch, None) == is_real_BT.sum()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_divergence_is_that_of_the_softened_distributions(temperature):
    draw = np.random.default_rng(0)
    teacher, student = (4.0 * draw.normal(size=(3, 5, 128)) for _ in range(2))
    for logits in (teacher, student):
        logits[..., 100:] = np.finfo(np.float32).min  # as the padding of the vocabulary
    p, q = (reference.softmax(logits[..., :100] / temperature) for logits in (teacher, student))
    expected = temperature**2 * (p * np.log(p / q)).sum(axis=-1)
    actual = kl_divergence(jnp.array(teacher, jnp.float32), jnp.array(student, jnp.float32), temperature)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


def all_tokens(batch: dict) -> dict:
    """The batch whose predicted positions are all tokens, so that `masked` is `all`, in one product."""
    rows, seq_len = batch["tokens_BT"].shape
    return batch | {
        "mlm_positions_BK": np.tile(np.arange(seq_len, dtype=np.int32), (rows, 1)),
        "mlm_labels_BK": batch["tokens_BT"],
        "mlm_weights_BK": (batch["examples_BT"] > 0).astype(np.float32),
    }


def soft(teacher: Teacher, kind: type, batch: dict, params: dict) -> tuple[jax.Array, dict]:
    """The soft loss and the sums and weights of `agreement`."""
    objective = distilled(soft=kind).bind_teacher(teacher)
    student = dataclasses.replace(batches.ENCODER, layers=1)
    model, frozen = objective.model(student), objective.frozen_params(student)
    sums, metrics = objective.terms(model, params, frozen, batch, jax.random.key(0), False)
    return sums["soft"] / objective.weights(batch)["soft"], metrics["agreement"]


@pytest.mark.slow
def test_the_soft_loss_on_all_tokens_is_computed_a_few_rows_at_a_time(teacher, monkeypatch):
    """It has the value and the gradients of one product over all tokens, without an array of that size."""
    monkeypatch.setattr(TokenLogits.__module__ + "._TOKENS_AT_ONCE", 50)  # 2 of 8 rows of 16 tokens
    params = jax.tree.map(np.cos, params_of(dataclasses.replace(batches.ENCODER, layers=1)))
    actual, expected = (
        jax.value_and_grad(lambda params, on=on, batch=batch: soft(teacher, on, batch, params), has_aux=True)
        for on, batch in ((TokenLogits, BATCH), (SoftLogits, all_tokens(BATCH)))
    )
    for mine, other in zip(jax.tree.leaves(actual(params)), jax.tree.leaves(expected(params)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=1e-6)
    shape = "f32[{},16,128]".format
    assert shape(2) in str(jax.make_jaxpr(actual)(params)) and shape(8) in str(jax.make_jaxpr(expected)(params))
    assert shape(8) not in str(jax.make_jaxpr(actual)(params))


def test_the_soft_loss_on_all_tokens_is_another_than_on_masked_ones(teacher):
    params = jax.tree.map(np.cos, params_of(dataclasses.replace(batches.ENCODER, layers=1)))
    (everywhere, (_, tokens)), (masked, (_, predicted)) = (
        soft(teacher, kind, BATCH, params) for kind in (TokenLogits, SoftLogits)
    )
    assert tokens == np.sum(BATCH["examples_BT"] > 0) and predicted == np.sum(BATCH["mlm_weights_BK"])
    assert abs(everywhere - masked) > 1e-3


def test_students_and_teachers_that_do_not_fit(teacher):
    encoder = batches.ENCODER
    objective = distilled().bind_teacher(teacher)
    for check in (objective.flops_parts, objective.frozen_params):
        with pytest.raises(UserError, match="has width=16 and the student 32.* set model.width=16"):
            check(dataclasses.replace(encoder, width=32))
        with pytest.raises(UserError, match="has max_positions=16 and the student 64; set model.max_positions=16"):
            check(dataclasses.replace(encoder, max_positions=64))
    model = objective.model(dataclasses.replace(encoder, vocab_size=90))
    with pytest.raises(UserError, match="has 100 tokens and the student 90; set model.vocab_size=100"):
        batch = BATCH | {"tokens_BT": BATCH["tokens_BT"] % 90}
        objective.terms(model, params_of(model.config), {}, batch, None, False)
    with pytest.raises(UserError, match="Classification has no masked-LM head, which a teacher loss of kind=token_log"):
        Distilled(Classification(), losses={"soft": TokenLogits()}).teacher_heads(encoder)


def test_a_teacher_needs_a_masked_lm_head(teacher):
    headless = dataclasses.replace(teacher, params={"encoder": teacher.params["encoder"]})
    with pytest.raises(UserError, match="has no masked-LM head on its encoder to imitate"):
        distilled().bind_teacher(headless).frozen_params(batches.ENCODER)


@pytest.fixture(scope="module")
def folder(store, tmp_path_factory) -> Path:
    """A teacher's export, with the tokenizer of the store."""
    folder = tmp_path_factory.mktemp("teacher")
    encoder = dataclasses.replace(batches.ENCODER, vocab_size=store.tokenizer.vocab_size)
    export.write(folder, Export(settings(encoder), encoder, params_of(encoder), store.tokenizer, {}))
    return folder


def plain(objective: Distilled, teacher: Path) -> dict:
    """The objective's settings, with another teacher."""
    config = Config(tasks={"task": Task(dataclasses.replace(objective, teacher=str(teacher)))})
    return to_dict(config)["tasks"]["task"]["objective"]


def settings(encoder, **objective) -> dict:
    """The configuration of a small run."""
    model = encoder.architecture()
    del model["vocab_size"]
    stage = {"seq_len": 16, "batch": 8, "steps": 2}
    tasks = {"task": {"objective": objective or {"kind": "mlm"}, "examples": {"kind": "full_sentences"}}}
    return to_dict(from_dict({"model": model, "stages": [stage], "tasks": tasks, "optimizer": {"warmup_steps": 1}}))


def test_a_teacher_is_opened_once(folder, store, tmp_path, monkeypatch):
    """After its start a run does not read the teacher: the step is traced although the folder is gone."""
    gone, opened = tmp_path / "teacher", []
    shutil.copytree(folder, gone)
    read = export.read_manifest
    monkeypatch.setattr(export, "read_manifest", lambda folder: opened.append(folder) or read(folder))
    config = from_dict(settings(batches.ENCODER, **plain(distilled(), gone)))
    [setup] = make_setups(config, store.tokenizer.vocab_size)
    shutil.rmtree(gone)
    assert opened == [gone]
    [again], task = checked_setups(setup.config, store.tokenizer.vocab_size), config.task_name
    frozen = init_frozen([again])[again][task]
    assert of_stage(again, task, 0).parts[1].encoder.layers == 3 and frozen.keys() == {"teacher"}
    compile_chunk(again, task, 0).lower(again.shapes, frozen, shapes_of_batches(again, task, stage=0, steps=2))
    assert opened == [gone]
