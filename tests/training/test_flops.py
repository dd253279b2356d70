"""The formula of FLOPs beside the matrix products of the loss's gradient, traced and not compiled."""

import dataclasses
import math
from pathlib import Path

import jax
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

from bertjax.config.config import Config, Task
from bertjax.data.formats import FORMATS, kinds_with
from bertjax.models import kernels
from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks.llama import LlamaBlock, WordEmbeddings
from bertjax.models.blocks.lstm import LSTMBlock
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.blocks.mpnet import MPNetBlock
from bertjax.models.config import EncoderConfig
from bertjax.models.fixed import FIXED_PATTERNS
from bertjax.models.flops import Counts, encoder_products
from bertjax.objectives import KINDS
from bertjax.objectives.base import OBJECTIVES
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.losses.layers import OutputCosine
from bertjax.objectives.distill.losses.logits import SoftLogits, TokenLogits
from bertjax.objectives.distill.replacing import Replacing
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.finetuning.labels import Classification
from bertjax.objectives.finetuning.setfit import SetFit
from bertjax.objectives.pretraining.causal import CausalLM
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.permutation import PermutationLM, PermutedMaskedLM
from bertjax.objectives.wrapper import Taught
from bertjax.training.config import Stage
from bertjax.training.loss import normalized, total_loss
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.setup import Setup, make_setups, make_step, shapes_of_batches
from bertjax.training.stage_flops import of_stage
from tests import batches

SMALL = EncoderConfig(vocab_size=1024, layers=2, width=128, heads=2, feedforward=512, max_positions=32)
# Rows that a CPU computes in parts.
LONG = dataclasses.replace(SMALL, max_positions=kernels.SHORTEST_IN_PARTS)


class Twice:
    """Runs the model of an objective twice, and says nothing of it."""

    def terms(self, *arguments):
        (first, metrics), (second, _) = (super(Twice, self).terms(*arguments) for _ in range(2))
        return {term: first[term] + second[term] for term in first}, metrics


LOSSES = {"soft": SoftLogits(), "everywhere": TokenLogits(), "output": OutputCosine()}
WRAPPERS = {
    "distilled": Distilled(MaskedLM(), "teacher", LOSSES),
    "replacing": Replacing(MaskedLM(), "teacher"),
    "setfit": SetFit(Classification(("0", "1", "2"))),
    "twice": type("Own", (Twice, MaskedLM), {})(),
}


def setup_of(kind: str, encoder: EncoderConfig, **fields) -> Setup:
    """A run of full rows, 16 of them."""
    objective = WRAPPERS.get(kind) or OBJECTIVES.class_of(kind)()
    if "classes" in {field.name for field in dataclasses.fields(objective)}:
        objective = dataclasses.replace(objective, classes=("0", "1", "2"))
    if isinstance(objective, PermutationLM):
        encoder = dataclasses.replace(encoder, **batches.RELATIVE)
    if isinstance(objective, PermutedMaskedLM):
        encoder = dataclasses.replace(encoder, block=MPNetBlock())
    if isinstance(objective, CausalLM):
        encoder = dataclasses.replace(encoder, direction="left_to_right")
    if isinstance(objective, Taught):
        deeper = dataclasses.replace(encoder, layers=2 * encoder.layers)
        teacher = Teacher(deeper, batches.param_shapes(MaskedLM(), deeper), "a tokenizer", Path("teacher"))
        objective = objective.bind_teacher(teacher)
    examples = FORMATS.class_of(kinds_with(objective.traits.labels)[0])()
    tasks, stages = {kind: Task(objective, examples)}, (Stage(10**6, encoder.max_positions, 16),)
    return make_setups(Config(model=encoder, tasks=tasks, stages=stages, **fields), encoder.vocab_size)[0]


def traced(made: Setup) -> int:
    """The FLOPs of the products in the gradient of the loss that a step computes."""
    [loss_of_task] = made.losses.values()
    objective, model = loss_of_task.objective, loss_of_task.model
    batch = {name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in arguments(made).items()}

    model_params = make_step(made, made.config.task_name).model_params

    def loss(params, frozen, batch):
        params = model_params(params, 0)
        sums, _ = objective.terms(model, params, frozen, batch, jax.random.key(0), True)
        return total_loss(objective, normalized(sums, objective.weights(batch)), step=0)

    frozen = objective.frozen_params(made.encoder)
    closed = jax.make_jaxpr(jax.grad(loss))(made.shapes["params"], frozen, batch)
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))  # as the compiler does
    return products(jaxpr)


def arguments(made: Setup) -> dict[str, jax.ShapeDtypeStruct]:
    return shapes_of_batches(made, made.config.task_name, stage=0, steps=1)


def products(jaxpr) -> int:
    """Two operations for each multiply-add of every product; what a scan repeats counts each time.

    Of the branches for different platforms the last counts, which is the program of an accelerator.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            sizes = [equation.invars[0].aval.shape[axis] for axis in contracted]
            total += 2 * math.prod(sizes) * math.prod(equation.outvars[0].aval.shape)
        held = equation.params["branches"][-1:] if "branches" in equation.params else equation.params.values()
        inner = [getattr(value, "jaxpr", value) for value in held]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(products(value) for value in inner if hasattr(value, "eqns"))
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "encoder"), [("mlm", LONG), *((kind, SMALL) for kind in KINDS)])
def test_the_formula_counts_the_products_of_every_objective(kind, encoder):
    made = setup_of(kind, encoder)
    assert of_stage(made, made.config.task_name, 0).executed(arguments(made)) == pytest.approx(traced(made), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        batches.ROTARY,
        {"block": LlamaBlock(key_value_heads=1), "embeddings": WordEmbeddings()},
        {"embeddings": BertEmbeddings(32), "sharing": "all"},
        {"heads": 8, "block": BertBlock(FIXED_PATTERNS)},
        {"block": MobileBertBlock(inner_width=32, feedforwards=3), "embeddings": MobileBertEmbeddings(32)},
        {"block": MobileBertBlock(inner_width=32, feedforwards=1, bottlenecked="all")},
        {"block": MobileBertBlock(inner_width=256, feedforwards=1, bottlenecked="none")},
        batches.LSTM,
    ],
    ids=["modern", "grouped", "albert", "fixed", "mobile", "mobile_tiny", "inverted", "lstm"],
)
def test_the_formula_counts_the_products_of_other_architectures(changes):
    made = setup_of("mlm", dataclasses.replace(SMALL, **changes))
    assert of_stage(made, made.config.task_name, 0).executed(arguments(made)) == pytest.approx(traced(made), rel=0.01)


@pytest.mark.parametrize("kind", ["classification", "bert"])
def test_the_formula_counts_the_pooler_of_a_pair_that_is_read_separately(kind):
    """Its input is four times as wide as the states. One layer and a short row, or it would not be seen."""
    siamese = batches.LSTM | {"block": LSTMBlock("siamese"), "layers": 1, "max_positions": 8}
    made = setup_of(kind, dataclasses.replace(SMALL, vocab_size=128, **siamese))
    assert of_stage(made, made.config.task_name, 0).executed(arguments(made)) == pytest.approx(traced(made), rel=0.01)


@pytest.mark.parametrize("frozen", [(), ("encoder/layers",)])
def test_the_passes_of_an_own_objective_are_counted(frozen):
    made, once = (setup_of(kind, SMALL, optimizer=OptimizerConfig(frozen=frozen)) for kind in ("twice", "mlm"))
    flops, of_one = (of_stage(each, each.config.task_name, 0).executed(arguments(each)) for each in (made, once))
    assert flops == pytest.approx(traced(made), rel=0.01) and flops == pytest.approx(2 * of_one)


def test_a_frozen_encoder_has_no_backward_pass():
    whole, frozen = (
        setup_of("classification", SMALL, optimizer=OptimizerConfig(frozen=paths)) for paths in ((), ("^encoder/",))
    )
    assert of_stage(frozen, "classification", 0).executed(arguments(frozen)) == pytest.approx(traced(frozen), rel=0.01)
    assert traced(whole) == pytest.approx(3 * traced(frozen), rel=0.01)


def test_products_by_hand():
    """Layers 3, width 16, feed-forward 32. 10 tokens, 50 pairs, 2 predictions, 4 examples."""
    counts = Counts(10, 50, 2, 4)
    each, keys, pair = 2 * 16 * 16 + 2 * 16 * 32, 2 * 16 * 16, 2 * 16
    whole = keys * 10 + each * 10 + pair * 50
    assert encoder_products(batches.ENCODER, counts) == 3 * whole
    last = keys * 10 + (2 + 4) * (each + pair * 5)
    assert encoder_products(batches.ENCODER, counts, read=1.0) == 2 * whole + last
    two_streams = keys * 10 + 12 * (each + pair * 5)
    last = keys * 10 + 2 * (each + pair * 5)
    assert encoder_products(batches.ENCODER, counts, read=1.0, queries=True) == 2 * two_streams + last
    narrow = dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(8))
    assert encoder_products(narrow, counts) == 3 * whole + 8 * 16 * 10
