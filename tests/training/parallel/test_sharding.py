"""Sharding rules, and training on eight simulated devices."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import UserError
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.make_mesh import make_mesh
from bertjax.training.parallel.sharding import (
    ENCODER_RULES,
    HEAD_RULES,
    batch_shards,
    check_batch,
    shardings,
)
from bertjax.training.param_paths import map_with_path
from tests import batches, runs


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


def one_device():
    return make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])


@pytest.mark.parametrize("process, shards", [(0, (0, 3)), (1, (1, 2))])
def test_a_process_holds_its_shards_in_the_order_of_the_mesh(process, shards, monkeypatch):
    """A mesh follows the links of its devices: those of two processes may alternate."""
    monkeypatch.setattr(jax, "process_index", lambda: process)
    devices = np.array([SimpleNamespace(process_index=owner) for owner in (0, 0, 1, 1, 1, 1, 0, 0)])
    mesh = SimpleNamespace(devices=devices.reshape(2, 2, 2), shape={"data": 2, "fsdp": 2, "tensor": 2})
    assert batch_shards(mesh) == (shards, 4)


def test_gradients_are_sums_over_all_devices():
    differences = runs.on_devices(4, "tests.training.gradients_on_four_devices")
    assert differences.keys() == {"replicated", "gathered", "gathered lstm", "padded"}
    assert max(differences.values()) < 1e-5


def test_the_rules_cover_bert_and_its_optimizer():
    params = batches.param_shapes(BERT(), batches.ENCODER)
    state = {"step": jnp.zeros(()), "params": params, "opt_state": {"mu": params, "nu": params}}
    laid_out = shardings(state, (*ENCODER_RULES, *HEAD_RULES), one_device())
    specs = {}
    map_with_path(lambda path, sharding: specs.__setitem__(path, sharding.spec), laid_out)
    assert specs["params/encoder/embeddings/word"] == P("tensor", "fsdp")
    assert specs["opt_state/mu/encoder/layers/attention/output/kernel"] == P(None, ("tensor", "fsdp"), None)
    assert specs["opt_state/nu/encoder/layers/intermediate/kernel"] == P(None, "fsdp", "tensor")
    assert specs["params/encoder/layers/output/bias"] == specs["params/heads/nsp/classifier/kernel"] == P()
    assert specs["step"] == P()


def test_a_parameter_without_a_rule_is_an_error_with_the_line_to_add():
    with pytest.raises(UserError) as error:
        shardings({"generator": {"kernel": jnp.ones((2, 2))}}, (*ENCODER_RULES, *HEAD_RULES), one_device())
    line = 'add (r"generator/kernel$", P()) to sharding_rules in the traits of the objective'
    assert str(error.value) == f"no sharding rule covers 'generator/kernel'; {line}"
    rules = ((r"generator/kernel$", P()), *ENCODER_RULES)
    assert shardings({"generator": {"kernel": jnp.ones((2, 2))}}, rules, one_device())


def test_the_first_rule_that_matches_wins():
    rules = ((r"kernel$", P("fsdp")), (r"a/kernel$", P("tensor")))
    assert shardings({"a": {"kernel": jnp.ones(4)}}, rules, one_device())["a"]["kernel"].spec == P("fsdp")


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
