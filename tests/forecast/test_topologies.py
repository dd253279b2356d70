"""Names of topologies, and the figures that the compiler has of their chips."""

import functools
import re
from pathlib import Path

import pytest

from bertjax.config import config_file
from bertjax.forecast import topologies
from bertjax.forecast.collectives import first_group, share_of_links
from bertjax.forecast.hlo import Instruction
from bertjax.forecast.topologies import SHAPES
from bertjax.runtime.devices import CHIPS
from bertjax.runtime.errors import UserError
from bertjax.training.setup import compile_chunk, make_setups, shapes_of_batches
from tests.forecast.programs import mesh


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


@pytest.mark.parametrize(
    "attributes, group",
    [
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true", (0, 4)),
        ("channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}", (0, 1, 2, 3)),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", (0, 4)),
        ("replica_groups=mesh['a'=2,'b'=4], {'a'}, to_apply=%sum", (0, 4)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", (0, 1, 2, 3)),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", (0, 2)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}", (0, 1)),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", (0, 1, 2, 3)),
        ("source_target_pairs={{0,2},{2,0}}", (0, 2)),
        ("dimensions={0}", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("replica_groups={}, dimensions={0}", (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_the_first_group_is_read(attributes, group):
    assert first_group(Instruction("name", "all-gather", (), (), attributes, is_root=False), 8) == group


@pytest.mark.parametrize(
    "topology, places, share",
    [
        ("v5e:4x4", [(0, 0), (1, 0), (2, 0), (3, 0)], 1 / 2),
        ("v5e:4x4", [(0, 0), (1, 0), (0, 1), (1, 1)], 1.0),
        ("v4:2x2x4", [(0, 0, 0), (0, 0, 3)], 1 / 3),
        ("v4:2x2x4", [(0, 0, 0), (1, 0, 0), (0, 1, 0)], 2 / 3),
        ("v5p:2x2x1", [(0, 0, 0), (1, 0, 0)], 1 / 2),  # one of two axes: the third has no other chip
        ("v3:2x2", [(0, 0, 0), (0, 0, 0)], 1.0),  # both cores of a chip
    ],
)
def test_a_group_uses_the_links_along_its_axes(topology, places, share):
    devices = list(mesh(topology).devices)
    of_place = {}
    for number, device in enumerate(devices):
        of_place.setdefault(tuple(device.coords)[: len(places[0])], []).append(number)
    group = [of_place[place][places[:index].count(place)] for index, place in enumerate(places)]
    assert share_of_links(group, devices) == share


RECIPE = Path(__file__).parents[2] / "configs" / "bert_large.py"
# A width of heads as in BERT-Large and every part of its step, and nothing else that is 512 long.
SMALL = ("layers=3", "width=128", "heads=2", "feedforward=384", "vocab_size=1000")


@functools.cache
def compiled(implementation: str) -> str:
    """The recipe's second stage, rows of 512 tokens, of a small model on one v5e chip."""
    overrides = [f"model.{setting}" for setting in SMALL]
    overrides += ["stages.1.batch=4", f"runtime.attention={implementation}"]
    if implementation == "splash":
        overrides.append("model.attention_dropout=0")
    recipe = config_file.load(str(RECIPE), overrides)
    setup, task = make_setups(recipe, 1000, topologies.parse("v5e:1x1").devices())[1], recipe.task_name
    batches = shapes_of_batches(setup, task, stage=1, steps=1)
    return compile_chunk(setup, task, stage=1).lower(setup.shapes, None, batches).compile().as_text()


def kernels(text: str) -> set[str]:
    """Return the names of kernels. Splash attention has `fwd`, and `dkv` with `dq` in it."""
    calls = re.findall(r"%(\S+) = [^\n]* custom-call\([^\n]*tpu_custom_call", text)
    return {name for call in calls for name in re.findall("splash_mha_[a-z]+|fused_attention_[a-z]+", call)}


def square(text: str) -> set[str]:
    """Return every shape with a number for each pair of tokens of a row, fused or not."""
    return set(re.findall(r"\w+\[[\d,]*512,512\]", text))


KERNELS = {
    "auto": {"fused_attention_forward", "fused_attention_backward"},  # with dropout on attention, as published
    "splash": {"splash_mha_fwd", "splash_mha_dkv"},
}


@pytest.mark.slow
@pytest.mark.parametrize("implementation", KERNELS)
def test_kernels_store_no_token_pairs(implementation):
    text = compiled(implementation)
    assert square(text) == set()
    assert kernels(text) == KERNELS[implementation]


@pytest.mark.slow
def test_plain_attention_stores_token_pairs():
    text = compiled("plain")
    assert "bf16[4,2,512,512]" in square(text) and not kernels(text)
