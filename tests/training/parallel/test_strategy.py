"""The choice of the sharding strategy and of the mesh."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from bertjax.config.config import from_dict
from bertjax.models.config import Execution
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError
from bertjax.runtime.mesh import AXES
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.make_mesh import choose_strategy, fill_mesh
from bertjax.training.parallel.sharding import ENCODER_RULES, HEAD_RULES
from bertjax.training.parallel.strategy import Layout
from bertjax.training.program import Program
from bertjax.training.step import gradients
from tests import batches
from tests.training.trainer import make_step

BASE = PRESETS["base"]


class Device:
    """A device with the attributes that `fill_mesh` reads."""

    def __init__(self, slice_index: int):
        self.slice_index = slice_index


def devices(count: int, slices: int = 1) -> list:
    return [Device(index * slices // count) for index in range(count)]


def test_large_layers_of_their_own_are_gathered_one_by_one():
    assert choose_strategy("auto", 110_000_000) == "fsdp"
    assert choose_strategy("auto", 14_000_000) == "gathered"
    assert choose_strategy("auto", 220_000_000, sharing="all") == "gathered"
    assert choose_strategy("replicated", 1_500_000_000) == "replicated"


@pytest.mark.parametrize(
    ("mesh", "count", "slices", "fsdp"),
    [
        (MeshConfig(), 16, 1, 16),
        (MeshConfig(), 8, 2, 4),  # only replicas cross slices
        (MeshConfig(), 512, 1, 16),
        (MeshConfig(), 24, 1, 12),
        (MeshConfig(tensor=2), 16, 1, 8),
        (MeshConfig(tensor=96), 16 * 96, 1, 8),  # attention's output shares 768 out over both axes
        (MeshConfig(data=4), 16, 1, 4),
        (MeshConfig(fsdp=2), 16, 1, 2),
        (MeshConfig(), 7, 1, 1),
    ],
)
def test_weights_are_sharded_within_a_slice(mesh, count, slices, fsdp):
    assert fill_mesh(mesh, "gathered", [BASE], devices(count, slices)).fsdp == fsdp


def test_replicas_shard_nothing():
    assert fill_mesh(MeshConfig(), "replicated", [BASE], devices(16)).fsdp == 1
    with pytest.raises(UserError, match=r"runtime.strategy=replicated contradicts runtime.mesh.fsdp=4; use"):
        fill_mesh(MeshConfig(fsdp=4), "replicated", [BASE], devices(16))


def test_the_error_of_an_unknown_strategy_lists_the_known_ones():
    with pytest.raises(UserError, match="runtime.strategy='zero' is unknown; choose one of auto, replicated, gathered"):
        from_dict({"runtime": {"strategy": "zero"}})


def test_a_program_is_checked_before_there_is_a_corpus():
    config = from_dict({"model": {"preset": "tiny"}, "optimizer": {"frozen": ["embedings/"]}})
    with pytest.raises(UserError, match="optimizer.frozen.0='embedings/' matches no parameter; the nearest paths are "):
        Program(config, 100, (jax.devices()[0],)).check()


def equations(jaxpr) -> Iterator:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def collectives(
    strategy: str, dtype: str = "float32", reduction: str = "float32", remat: str = "dots"
) -> dict[str, list[str]]:
    """Return {collective: dtype of each one} in the traced gradient of a small BERT on two times two devices."""
    mesh = jax.sharding.AbstractMesh((2, 2, 1), AXES, (jax.sharding.AxisType.Auto,) * len(AXES))
    layout = Layout(mesh, (*ENCODER_RULES, *HEAD_RULES), strategy, dtype, reduction)
    execution = Execution(dtype=dtype, remat=remat, gather_layer=layout.gather_layer)
    encoder = dataclasses.replace(batches.ENCODER, execution=execution)
    parts = make_step()
    loss = dataclasses.replace(parts.loss, layout=layout, model=parts.loss.objective.model(encoder))
    parts = dataclasses.replace(parts, loss=loss)
    batch = batches.make()
    params = batches.param_shapes(parts.loss.objective, batches.ENCODER, batch)
    traced = jax.make_jaxpr(functools.partial(gradients, parts))(params, None, batch, jnp.int32(0))
    dtypes = {"all_gather": [], "reduce_scatter": []}
    for equation in equations(traced.jaxpr):
        if equation.primitive.name in dtypes:
            dtypes[equation.primitive.name].append(str(equation.invars[0].aval.dtype))
    return dtypes


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["gathered", "fsdp"])
@pytest.mark.parametrize(
    ("dtype", "reduction"), [("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]
)
def test_weights_travel_in_the_compute_dtype_and_gradients_in_that_of_reduction(strategy, dtype, reduction):
    sent = collectives(strategy, dtype, reduction)
    assert set(sent["all_gather"]) == {dtype} and set(sent["reduce_scatter"]) == {reduction}
    assert len(sent["reduce_scatter"]) >= 8, "those of each kernel of a layer, of the embeddings and of the heads"


def test_no_policy_keeps_the_gathered_weights_of_all_layers():
    """The backward pass gathers them again."""
    once, *twice = (
        len(collectives(strategy, remat=remat)["all_gather"])
        for strategy, remat in (("gathered", "none"), ("fsdp", "none"), ("fsdp", "dots"), ("fsdp", "full"))
    )
    assert twice[0] == twice[1] == twice[2] > once
