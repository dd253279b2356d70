"""A student beside its teacher: losses, and teachers that cannot be."""

import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import export
from bertjax.config import from_dict, to_dict
from bertjax.errors import UserError
from bertjax.models.config import Execution
from bertjax.objectives.losses import kl_divergence
from bertjax.objectives.pretraining.distillation import Distillation, HiddenModule
from bertjax.objectives.pretraining.electra import Electra
from tests import batches
from tests.models import reference

BATCH = batches.make()


def params_of(encoder) -> dict:
    return batches.filled(jax.eval_shape(HiddenModule(encoder).init, jax.random.key(0), BATCH)["params"])


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """An export folder but for its tokenizer."""
    folder, encoder = tmp_path_factory.mktemp("teacher"), batches.ENCODER
    model = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(encoder)}
    del model["execution"]
    config = to_dict(from_dict({"model": model, "stages": [{"seq_len": 16}]}))
    export.write_params(folder, params_of(encoder), encoder)
    export.write_manifest(folder, config, encoder.vocab_size, {})
    return folder


def losses(teacher: Path, student_params: dict, temperature: float = 2.0, student=batches.ENCODER) -> dict[str, float]:
    objective = Distillation(teacher=str(teacher), temperature=temperature)
    module, frozen = objective.module(student), objective.frozen_params(student)
    sums, metrics = objective.terms(module, student_params, frozen, BATCH, jax.random.key(0), False)
    weights = objective.weights(BATCH)
    return {name: float(sums[name] / weights[name]) for name in sums} | {
        name: float(total / weight) for name, (total, weight) in metrics.items()
    }


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(teacher):
    found = losses(teacher, params_of(batches.ENCODER))
    assert found["soft"] == 0.0 and found["agreement"] == 1.0
    assert abs(found["cosine"]) < 1e-6
    assert found["mlm"] > 1.0


def test_another_student_has(teacher):
    other = jax.tree.map(
        lambda leaf: leaf + 0.1 * np.cos(np.arange(leaf.size)).reshape(leaf.shape), params_of(batches.ENCODER)
    )
    found = losses(teacher, other)
    assert found["soft"] > 0.01 and found["cosine"] > 0.01


def test_a_teacher_adds_its_own_first_task_embedding(teacher):
    student = dataclasses.replace(batches.ENCODER, task_types=8, execution=Execution(unroll=True, task_type=7))
    found = Distillation(teacher=str(teacher)).teacher_encoder(student).execution
    assert found == Execution(unroll=True, task_type=0)


def test_a_student_may_be_half_as_deep_and_without_segments(teacher):
    student = dataclasses.replace(batches.ENCODER, layers=1, segments=0)
    found = losses(teacher, params_of(student), student=student)
    assert found["soft"] > 0.0 and np.isfinite(list(found.values())).all()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_divergence_is_that_of_the_softened_distributions(temperature):
    draw = np.random.default_rng(0)
    teacher, student = (4.0 * draw.normal(size=(3, 5, 128)) for _ in range(2))
    for logits in (teacher, student):
        logits[..., 100:] = np.finfo(np.float32).min  # as the padding of the vocabulary
    p, q = (reference.softmax(logits[..., :100] / temperature) for logits in (teacher, student))
    expected = temperature**2 * (p * np.log(p / q)).sum(axis=-1)
    found = kl_divergence(jnp.array(teacher, jnp.float32), jnp.array(student, jnp.float32), temperature)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_published_coefficients():
    assert Distillation().coefficients == {"soft": 5.0, "mlm": 2.0, "cosine": 1.0}
    assert Distillation().temperature == 2.0


def test_students_and_teachers_that_cannot_be(teacher, tmp_path):
    encoder = batches.ENCODER
    with pytest.raises(UserError, match="has no teacher; set objective.teacher"):
        Distillation().module(encoder)
    with pytest.raises(UserError, match="is not an export: bertjax.json is missing"):
        Distillation(teacher=str(tmp_path)).module(encoder)
    of_teacher = Distillation(teacher=str(teacher))
    with pytest.raises(UserError, match="has width=16 and the student 32, .* set model.width=16"):
        of_teacher.module(dataclasses.replace(encoder, width=32))
    with pytest.raises(UserError, match="has max_positions=16 and the student 64; set model.max_positions=16"):
        of_teacher.module(dataclasses.replace(encoder, max_positions=64))
    with pytest.raises(UserError, match="has 100 tokens and the student 90; set model.vocab_size=100"):
        losses(teacher, params_of(encoder), student=dataclasses.replace(encoder, vocab_size=90))
    with pytest.raises(UserError, match="objective.temperature=0.5 must be at least 1"):
        Distillation(temperature=0.5)
    with pytest.raises(UserError, match="objective.cosine_coefficient=-1.0 must be a number and not negative"):
        Distillation(cosine_coefficient=-1.0)


def test_a_teacher_needs_a_masked_lm_head(teacher, tmp_path):
    params = params_of(batches.ENCODER)
    export.write_params(tmp_path, {"encoder": params["encoder"]}, batches.ENCODER)
    shutil.copy(teacher / export.MANIFEST, tmp_path)
    with pytest.raises(UserError, match="has no masked-LM head on its encoder to imitate"):
        Distillation(teacher=str(tmp_path)).frozen_params(batches.ENCODER)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_generators_head_is_not_that_of_the_encoder(teacher, tmp_path, share):
    """Though that of a generator as wide would fit."""
    module = Electra(generator_share=share).module(batches.ENCODER)
    params = batches.filled(jax.eval_shape(module.init, jax.random.key(0), BATCH)["params"])
    export.write_params(tmp_path, params, batches.ENCODER)
    shutil.copy(teacher / export.MANIFEST, tmp_path)
    with pytest.raises(UserError, match="has no masked-LM head on its encoder to imitate"):
        Distillation(teacher=str(tmp_path)).frozen_params(batches.ENCODER)


def test_a_teacher_whose_manifest_is_damaged(teacher, tmp_path):
    for config in ({}, "text"):
        export.write_manifest(tmp_path, config, batches.ENCODER.vocab_size, {})
        with pytest.raises(UserError, match="the export .* is damaged"):
            Distillation(teacher=str(tmp_path)).module(batches.ENCODER)
