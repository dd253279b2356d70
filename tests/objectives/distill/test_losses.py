"""Losses against a teacher: each against its definition in numpy, on models of other shapes than their teachers."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.blocks.mpnet import MPNetBlock
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses import Values
from bertjax.objectives.distill.losses.layers import AttentionMaps, HiddenStates, Relations, mapped
from bertjax.objectives.distill.losses.logits import SoftLogits
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.finetuning.labels import Classification, Regression, Tagging
from bertjax.objectives.finetuning.question_answering import QuestionAnswering
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from bertjax.training.loss import total_loss
from tests import batches
from tests.models import reference

DRAW = np.random.default_rng(0)
ROWS, SEQ_LEN = 3, 7
EXAMPLES_BT = np.array([[1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1], [1, 2, 2, 2, 3, 3, 0]], np.int32)
BATCH = {
    "examples_BT": EXAMPLES_BT,
    "example_ids_BN": np.array([[0, 1, -1], [2, -1, -1], [3, 4, 5]], np.int32),
    "summary_positions_BN": np.array([[0, 3, -1], [0, -1, -1], [0, 1, 4]], np.int32),
}
STUDENT = dataclasses.replace(batches.ENCODER, layers=2, width=8, heads=2)
TEACHER = dataclasses.replace(batches.ENCODER, layers=4, width=8, heads=2)
LEFT_TO_RIGHT = dataclasses.replace(TEACHER, direction="left_to_right")
LSTM = dataclasses.replace(STUDENT, **batches.LSTM)
LOCAL = dataclasses.replace(TEACHER, **batches.LOCAL)
DEBERTA = dataclasses.replace(STUDENT, **batches.DISENTANGLED)
MPNET = dataclasses.replace(TEACHER, block=MPNetBlock())


def values(config, width: int = 0, heads: int = 0) -> Values:
    """Random captured values of all layers."""
    width, heads = width or config.width, heads or config.heads
    shape = (config.layers, ROWS, SEQ_LEN, heads, width // heads)
    captured = {name: DRAW.normal(size=shape).astype(np.float32) for name in ("queries", "keys", "values")}
    captured["hidden"] = DRAW.normal(size=(config.layers + 1, ROWS, SEQ_LEN, width)).astype(np.float32)
    return Values(config, None, captured, tuple(range(config.layers)))


def of(loss, student: Values, teacher: Values, params=None) -> float:
    """The loss, divided by its weight."""
    total, _ = loss.terms(student, teacher, BATCH, params or {}, None)
    return float(total / loss.weight(BATCH, None))


def tokens() -> list[tuple[int, int, np.ndarray]]:
    """(row, column, columns of the same example) of every token."""
    return [
        (row, column, np.flatnonzero(EXAMPLES_BT[row] == EXAMPLES_BT[row, column]))
        for row, column in np.argwhere(EXAMPLES_BT > 0)
    ]


def summaries() -> list[tuple[int, int]]:
    return [(row, BATCH["summary_positions_BN"][row, n]) for row, n in np.argwhere(BATCH["example_ids_BN"] >= 0)]


def kl(p, q) -> float:
    return float(np.sum(p * np.log(p / q)))


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


DISTANCES = {
    "mse": lambda s, t: np.mean((s - t) ** 2),
    "normalized": lambda s, t: np.mean((unit(s) - unit(t)) ** 2),
    "cosine": lambda s, t: 1 - unit(s) @ unit(t),
    "statistics": lambda s, t: (s.mean() - t.mean()) ** 2 + abs(s.var() - t.var()),
}


@pytest.mark.parametrize("on", ["tokens", "summaries"])
@pytest.mark.parametrize("compare", DISTANCES)
def test_hidden_states(compare, on):
    student, teacher = values(STUDENT), values(TEACHER)
    places = [token[:2] for token in tokens()] if on == "tokens" else summaries()
    expected = np.mean(
        [
            DISTANCES[compare](student.captured["hidden"][own][place], teacher.captured["hidden"][other][place])
            for own, other in ((0, 0), (1, 2), (2, 4))
            for place in places
        ]
    )
    assert of(HiddenStates(compare=compare, on=on), student, teacher) == pytest.approx(expected, rel=1e-5)


def test_states_of_another_width_are_projected():
    student, teacher = values(STUDENT), values(TEACHER, width=6)
    loss = HiddenStates(projection=True, pairs_of_layers=((2, 3),))
    params = {"kernel": DRAW.normal(size=(8, 6)).astype(np.float32), "bias": DRAW.normal(size=6).astype(np.float32)}
    mapped = student.captured["hidden"][2] @ params["kernel"] + params["bias"]
    expected = np.mean([np.mean((mapped[r, c] - teacher.captured["hidden"][3][r, c]) ** 2) for r, c, _ in tokens()])
    assert of(loss, student, teacher, params) == pytest.approx(expected, rel=1e-5)
    wider = dataclasses.replace(TEACHER, width=12)
    assert jax.tree.map(jnp.shape, loss.init(jax.random.key(0), STUDENT, wider)) == {"kernel": (8, 12), "bias": (12,)}
    with pytest.raises(UserError, match="has width=12 and the student 8.* set projection=True, or model.width=12"):
        HiddenStates().check(STUDENT, wider)
    HiddenStates(compare="statistics").check(STUDENT, wider)


@pytest.mark.parametrize("compare", ["scores", "probabilities"])
def test_attention(compare):
    student, teacher = values(STUDENT), values(TEACHER)

    def row(model: Values, layer: int, r: int, c: int, seen: np.ndarray, head: int) -> np.ndarray:
        queries, keys = (model.captured[name][layer - 1][r, :, head] for name in ("queries", "keys"))
        scores = keys[seen] @ queries[c] / np.sqrt(queries.shape[-1])
        return scores if compare == "scores" else reference.softmax(scores)

    losses = []
    for own, other in ((1, 2), (2, 4)):
        for r, c, seen in tokens():
            for head in range(2):
                mine, target = row(student, own, r, c, seen, head), row(teacher, other, r, c, seen, head)
                losses.append(np.mean((mine - target) ** 2) if compare == "scores" else kl(target, mine))
    assert of(AttentionMaps(compare=compare), student, teacher) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("width, heads", [(8, 2), (12, 3)])
def test_relations(width, heads):
    """The teacher may have another width and other heads than the student."""
    student, teacher = values(STUDENT), values(TEACHER, width, heads)
    loss, relation_heads = Relations(heads=4, teacher_layer=3), 4

    def row(model: Values, name: str, layer: int, r: int, c: int, seen: np.ndarray, head: int) -> np.ndarray:
        joined = model.captured[name][layer - 1][r].reshape(SEQ_LEN, relation_heads, -1)[:, head]
        return reference.softmax(joined[seen] @ joined[c] / np.sqrt(joined.shape[-1]))

    expected = sum(
        np.mean(
            [
                kl(row(teacher, name, 3, r, c, seen, head), row(student, name, 2, r, c, seen, head))
                for r, c, seen in tokens()
                for head in range(relation_heads)
            ]
        )
        for name in ("queries", "keys", "values")
    )
    assert of(loss, student, teacher) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("compare, temperature", [("kl", 1.0), ("kl", 4.0), ("mse", 1.0)])
def test_soft_logits(compare, temperature):
    own, target = (3.0 * DRAW.normal(size=(5, 2, 4)).astype(np.float32) for _ in range(2))
    weights = DRAW.integers(0, 2, (5, 2)).astype(np.float32)
    loss = SoftLogits(compare=compare, temperature=temperature)
    student, teacher = (Values(STUDENT, jnp.asarray(logits), {}, ()) for logits in (own, target))
    total, metrics = loss.terms(student, teacher, BATCH, {}, weights)
    distances = {
        "kl": lambda s, t: temperature**2 * kl(reference.softmax(t / temperature), reference.softmax(s / temperature)),
        "mse": lambda s, t: np.mean((s - t) ** 2),
    }
    expected = np.mean([distances[compare](own[place], target[place]) for place in zip(*np.nonzero(weights))])
    assert float(total / loss.weight(BATCH, weights)) == pytest.approx(expected, rel=1e-5)
    agreed, counted = metrics["agreement"]
    assert agreed == ((own.argmax(-1) == target.argmax(-1)) * weights).sum() and counted == weights.sum()


def test_layer_maps():
    assert mapped("uniform", 0, 3, 12) == ((0, 0), (1, 4), (2, 8), (3, 12))
    assert mapped("uniform", 1, 2, 4) == ((1, 2), (2, 4))
    assert mapped("skip", 0, 6, 12) == ((1, 2), (2, 4), (3, 6), (4, 8), (5, 10)), "PKD-Skip"
    assert mapped("last", 0, 6, 12) == ((1, 7), (2, 8), (3, 9), (4, 10), (5, 11)), "PKD-Last"


@pytest.mark.parametrize(
    "settings, student, complaint",
    [
        ({}, 3, "layer_map=uniform does not fit: the student has 3 layers and the teacher 4"),
        ({"layer_map": "skip"}, 3, "layer_map=skip does not fit"),
        ({"layer_map": "last"}, 5, "layer_map=last does not fit: the student has 5 layers and the teacher 4"),
        ({"layer_map": "skip"}, 1, "compares no layers of a student of 1 and a teacher of 4; set pairs_of_layers"),
        ({"pairs_of_layers": ((1, 5),)}, 2, "'attention' compares layer 1 with the teacher's layer 5"),
        ({"pairs_of_layers": ((0, 0),)}, 2, "compares layer 0 .* the student has layers 1 to 2"),
    ],
)
def test_layer_maps_that_do_not_fit(settings, student, complaint):
    with pytest.raises(UserError, match=complaint):
        AttentionMaps(**settings).pairs(dataclasses.replace(STUDENT, layers=student), TEACHER)


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda: HiddenStates(pairs_of_layers=((1,),)), r"has \[1\]; give pairs"),
        (lambda: SoftLogits(compare="mse", temperature=2.0), "temperature=2.0 has no effect with compare=mse"),
        (lambda: Relations(heads=3).check(STUDENT, TEACHER), "the student has width=8, which heads=3 does not divide"),
        (lambda: Relations(heads=4, teacher_layer=5).check(STUDENT, TEACHER), "layer 5; .* the teacher 1 to 4"),
        (
            lambda: AttentionMaps().check(STUDENT, dataclasses.replace(TEACHER, heads=4)),
            "heads=4 and the student 2.* set kind=relations, or model.heads=4",
        ),
        (lambda: AttentionMaps().check(STUDENT, MPNET), "the teacher has .*=mpnet, which adds terms to attention; use"),
        (lambda: AttentionMaps().check(DEBERTA, TEACHER), "the student has .*=deberta, which adds terms to attention"),
        (lambda: AttentionMaps().check(STUDENT, LOCAL), "the teacher has model.block.global_every=2"),
        (
            lambda: HiddenStates(on="summaries").check(STUDENT, LEFT_TO_RIGHT),
            "the teacher has model.direction=left_to_right, whose .CLS. does not see its whole example.*set on=tokens",
        ),
        (
            lambda: HiddenStates(on="summaries").check(LSTM, TEACHER),
            "the student has model.block.kind=lstm, whose .CLS. sees its example from one side",
        ),
    ],
)
def test_settings_that_are_refused(make, complaint):
    with pytest.raises(UserError, match=complaint):
        make()


# The losses of both models in one step.

ENCODER = dataclasses.replace(batches.ENCODER, layers=2, feedforward=16)
BATCH_OF_MODEL = batches.make(rows=4)
LOSSES = {
    "soft": SoftLogits(temperature=2.0),
    "hidden": HiddenStates(layer_map="skip", compare="normalized", on="summaries"),
    "states": HiddenStates(projection=True),
    "maps": AttentionMaps(),
    "relations": Relations(heads=4),
}
FEATURES = {
    "weights_BN": np.ones((4, 1), np.float32),
    "labels_BN": np.array([[0], [1], [2], [0]], np.int32),
    "tags_BT": np.where(BATCH_OF_MODEL["examples_BT"] > 0, 1, -1).astype(np.int32),
    "start_columns_BN": np.ones((4, 1), np.int32),
    "end_columns_BN": 2 * np.ones((4, 1), np.int32),
}
OBJECTIVES = {
    "mlm": MaskedLM(),
    "classification": Classification(classes=("a", "b", "c"), pooling="mean"),
    "mix": Classification(classes=("a", "b", "c"), reads="mix"),
    "pooled": Classification(classes=("a", "b", "c")),
    "regression": Regression(),
    "tagging": Tagging(classes=("a", "b", "c")),
    "question_answering": QuestionAnswering(),
}


def bound(objective, losses, teacher_config=None):
    """An objective with a teacher of four layers, which was trained on the same task."""
    config = teacher_config or dataclasses.replace(ENCODER, layers=4)
    batch = BATCH_OF_MODEL | FEATURES
    params = batches.filled(batches.param_shapes(objective, config, batch))
    teacher = Teacher(config, params, "a tokenizer", Path("a/teacher"), {"classes": list(objective.classes)})
    return Distilled(objective, "a/teacher", losses).bind_teacher(teacher)


def loss_of(objective, params, encoder=ENCODER):
    model, batch = objective.model(encoder), BATCH_OF_MODEL | FEATURES

    @jax.jit
    def losses(params, frozen):
        sums, _ = objective.terms(model, params, frozen, batch, None, False)
        weights = objective.weights(batch)
        return {name: sums[name] / weights[name] for name in sums}

    return losses(params, objective.frozen_params(encoder))


@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_every_objective_has_every_loss(kind):
    """Gradients reach the student, and a step along them lowers the loss."""
    losses = LOSSES | ({"soft": SoftLogits(compare="mse")} if kind == "regression" else {})
    objective = bound(OBJECTIVES[kind], losses)
    params = batches.filled(batches.param_shapes(objective, ENCODER, BATCH_OF_MODEL | FEATURES), scale=0.2)
    assert jax.tree.map(np.shape, params["projections"]) == {"states": {"kernel": (16, 16), "bias": (16,)}}

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def total(params):
        parts = loss_of(objective, params)
        return total_loss(objective, parts, step=0), parts

    (before, parts), gradient = total(params)
    assert parts.keys() == {objective.objective.term, *losses} and all(float(parts[name]) > 0 for name in losses)
    assert np.all(np.isfinite(before)) and float(jnp.abs(gradient["projections"]["states"]["kernel"]).max()) > 0
    (after, _), _ = total(jax.tree.map(lambda leaf, slope: leaf - 1e-3 * slope, params, gradient))
    assert after < before


@pytest.mark.slow
@pytest.mark.parametrize("names", [["soft"], list(LOSSES)], ids=["head", "all"])
def test_groups_of_layers_learn_what_layers_with_copies_of_their_parameters_learn(names):
    """In both models, whose heads read a mix of all layers."""
    grouped = dataclasses.replace(ENCODER, layers=4, sharing="all", sharing_groups=2)
    single = dataclasses.replace(grouped, sharing="none", sharing_groups=1)
    shared = bound(OBJECTIVES["mix"], {name: LOSSES[name] for name in names}, grouped)
    params = batches.filled(batches.param_shapes(shared, grouped, BATCH_OF_MODEL | FEATURES), scale=0.2)

    def copied(params):
        layers = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), params["encoder"]["layers"])
        return params | {"encoder": params["encoder"] | {"layers": layers}}

    teacher = dataclasses.replace(shared.bound_teacher, config=single, params=copied(shared.bound_teacher.params))
    parts = loss_of(shared, params, grouped)
    expected = loss_of(shared.bind_teacher(teacher), copied(params), single)
    assert set(names) <= parts.keys()
    for name in expected:
        np.testing.assert_allclose(parts[name], expected[name], rtol=1e-5, err_msg=name)


def test_the_teacher_keeps_how_its_head_reads_hidden_states():
    objective = bound(Classification(classes=("a", "b"), pooling="mean"), {"soft": SoftLogits()})
    teacher = dataclasses.replace(objective.bound_teacher, objective={"classes": ["a", "b"], "pooling": "cls"})
    assert objective.bind_teacher(teacher).of_teacher.pooling == "cls"
    with pytest.raises(UserError, match="predicts the classes b, c and the student a, b; name a teacher of this task"):
        other = dataclasses.replace(objective.bound_teacher, objective={"classes": ["b", "c"]})
        objective.bind_teacher(other).frozen_params(ENCODER)


@pytest.mark.parametrize("block", [{}, batches.LOCAL, batches.GROUPED], ids=["bert", "modern", "llama"])
@pytest.mark.parametrize("kind", ["classification", "mix", "tagging"])
def test_the_classes_of_a_teacher_are_matched_by_name(kind, block):
    """A published teacher has its classes in an order and a spelling of its own: the loss is the same."""
    objective = bound(OBJECTIVES[kind], {"soft": SoftLogits()}, dataclasses.replace(ENCODER, layers=4, **block))
    params = batches.filled(batches.param_shapes(objective, ENCODER, BATCH_OF_MODEL | FEATURES), scale=0.2)
    teacher, order = objective.bound_teacher, np.roll(np.arange(len(objective.classes)), 1)
    head = teacher.params["heads"][objective.objective.term]
    last = {name: leaf[..., order] for name, leaf in head.get("classifier", head).items()}
    head = {**head, "classifier": last} if "classifier" in head else last
    other = dataclasses.replace(
        teacher,
        params=teacher.params | {"heads": teacher.params["heads"] | {objective.objective.term: head}},
        objective={"classes": [objective.classes[place].upper() for place in order]},
    )
    expected = loss_of(objective, params)["soft"]
    np.testing.assert_allclose(loss_of(objective.bind_teacher(other), params)["soft"], expected, rtol=1e-6)
