"""Sharding rules, and training on eight simulated devices."""

import dataclasses
import functools
from collections.abc import Iterator
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from bertjax.models.config import Execution
from bertjax.models.presets import PRESETS
from bertjax.runtime.devices import AXES
from bertjax.runtime.errors import UserError
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.sharding import ENCODER_RULES, HEAD_RULES, batch_shards, fill_mesh, make_mesh, shardings
from bertjax.training.parallel.strategy import Layout
from bertjax.training.step import gradients
from bertjax.training.trace_checks import check_batch
from tests import batches, runs
from tests.training.trainer import make_step


@pytest.mark.slow
def test_eight_devices_train_like_one():
    differences = runs.on_devices(8, "tests.training.on_eight_devices")
    for layout, difference in differences.items():
        assert difference["losses"] < 1e-5, layout
        assert difference["params"] < 1e-4, layout
    shares = {layout: difference["kernels"] for layout, difference in differences.items()}
    assert shares == {
        "replicated": 1.0,
        "gathered": 1 / 8,
        "gathered, data x fsdp x tensor": 1 / 4,
        "gathered, two micro-batches": 1 / 2,
        "gathered, two micro-batches, dropout by hash": 1 / 2,
        "fsdp": 1 / 8,
        "fsdp, data x fsdp x tensor, remat": 1 / 4,
    }


@pytest.mark.parametrize("process, shards", [(0, (0, 3)), (1, (1, 2))])
def test_a_process_holds_its_shards_in_the_order_of_the_mesh(process, shards, monkeypatch):
    """A mesh follows the links of its devices: those of two processes may alternate."""
    monkeypatch.setattr(jax, "process_index", lambda: process)
    devices = np.array([SimpleNamespace(process_index=owner) for owner in (0, 0, 1, 1, 1, 1, 0, 0)])
    mesh = SimpleNamespace(devices=devices.reshape(2, 2, 2), shape={"data": 2, "fsdp": 2, "tensor": 2})
    assert batch_shards(mesh) == (shards, 4)


@pytest.mark.slow
def test_gradients_are_sums_over_all_devices():
    differences = runs.on_devices(4, "tests.training.gradients_on_four_devices")
    assert differences.keys() == {"replicated", "gathered", "gathered lstm", "padded"}
    assert max(differences.values()) < 1e-5


@pytest.mark.parametrize("mesh", [MeshConfig(2, 1, 1), MeshConfig(0, 3, 1), MeshConfig(0, 1, 2)])
def test_a_mesh_with_a_wrong_number_of_devices(mesh):
    with pytest.raises(UserError, match=r"is not the 1 devices of the run; set runtime.mesh.data=0, and fsdp x tensor"):
        make_mesh(mesh, jax.devices()[:1])


def test_processes_with_different_numbers_of_devices():
    """Orbax arranges devices as a rectangle, processes by devices, when it writes a checkpoint."""
    devices = [SimpleNamespace(process_index=process) for process in (0, 1, 1, 1)]
    with pytest.raises(UserError, match=r"processes have different numbers of devices \(1, 3\), for which Orbax"):
        make_mesh(MeshConfig(0, 1, 1), devices)


def test_the_error_names_an_array_that_the_devices_do_not_divide():
    mesh = jax.sharding.AbstractMesh((1, 3, 1), ("data", "fsdp", "tensor"))
    with pytest.raises(UserError) as error:
        shardings({"a": {"kernel": jax.ShapeDtypeStruct((2, 8), jnp.float32)}}, ((r"kernel$", P(None, "fsdp")),), mesh)
    message = "a/kernel with shape (2, 8) is not divisible by 3 devices along its axis 1 (fsdp); choose another"
    assert str(error.value) == f"{message} runtime.mesh"


def test_a_batch_that_the_devices_do_not_divide():
    four = AbstractMesh((2, 2, 2), ("data", "fsdp", "tensor"))
    check_batch("stages.1.batch", 32, four)
    with pytest.raises(UserError) as error:
        check_batch("stages.1.batch", 30, four)
    assert str(error.value) == "stages.1.batch=30 is not divisible by 4 devices; use a multiple of 4"


BASE = PRESETS["base"]


class Device:
    """A device with the attributes that `fill_mesh` reads."""

    def __init__(self, slice_index: int):
        self.slice_index = slice_index


def devices(count: int, slices: int = 1) -> list:
    return [Device(index * slices // count) for index in range(count)]


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
