"""Names of topologies, and the figures that the compiler has of their chips."""

import math

import pytest

from bertjax.forecast import topologies
from bertjax.forecast.topologies import SHAPES, Topology
from bertjax.models.presets import PRESETS
from bertjax.runtime.chips import CHIPS
from bertjax.runtime.errors import UserError
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.make_mesh import fill_mesh, make_mesh


@pytest.mark.parametrize(
    "name, full, chips",
    [
        ("v2-8", "v2:2x2", 4),
        ("v3:8x8", "v3:8x8", 64),
        ("v3-128", "v3:8x8", 64),
        ("v4-32", "v4:2x2x4", 16),
        ("v5litepod-256", "v5e:16x16", 256),
        ("v5e-16", "v5e:4x4", 16),
        ("v5p-128", "v5p:4x4x4", 64),
        ("v6e-256", "v6e:16x16", 256),
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 4),
        ("2xv5e:16x16", "2xv5e:16x16", 512),
        ("2xv4-32", "2xv4:2x2x4", 32),
    ],
)
def test_names(name, full, chips):
    topology = topologies.parse(name)
    assert (str(topology), topology.chips) == (full, chips)


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("v5e:3x3", "v5e has 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("v4-33", "v4 has v4-8, v4-16, v4-32"),
        ("v9:2x2", "choose one of v2, v3, v4, v5e, v5p, v6e, tpu7x"),
        ("h100-8", "choose one of v2, v3, v4, v5litepod"),
        ("16x16", "write v5e:16x16"),
        ("2xv3:4x4", "leave out 2x"),
        ("0xv5e:4x4", "does not exist"),
    ],
)
def test_unknown_names(name, complaint):
    with pytest.raises(UserError) as error:
        topologies.parse(name)
    assert f"--topology={name} " in str(error.value) and complaint in str(error.value)


@pytest.mark.parametrize("name", CHIPS)
def test_the_compiler_agrees_with_the_published_chip(name):
    """The number of devices is equal, and usable memory is 90% to 101% of the published memory."""
    topology = topologies.parse(f"{name}:{SHAPES[name][-1]}")
    devices = topology.devices()
    assert len(devices) == topology.chips * topology.chip.devices
    usable = topologies.usable_memory(devices[0]) * topology.chip.devices / topology.chip.memory
    assert 0.9 < usable < 1.01


def test_slices():
    devices = topologies.parse("2xv5e:2x2").devices()
    assert [device.slice_index for device in devices].count(1) == len(devices) // 2 == 4


@pytest.mark.parametrize("name", CHIPS)
def test_every_slice_has_a_default_mesh(name):
    for shape in SHAPES[name]:
        for slices in (1, 2) if CHIPS[name].network else (1,):
            devices = Topology(CHIPS[name], shape, slices).devices()
            mesh = make_mesh(fill_mesh(MeshConfig(), "fsdp", [PRESETS["base"]], devices), devices)
            assert mesh.size == len(devices) and mesh.shape["fsdp"] == math.gcd(16, len(devices) // slices)


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)  # jax sets it when it finds libtpu
    with pytest.raises(UserError, match=r"pip install '\.\[tpu\]'"):
        topologies.parse("v5e:2x2").devices()
