"""Groups of devices, as XLA writes them."""

import pytest

from bertjax.forecast.collectives import first_group, share_of_links
from bertjax.forecast.hlo import Instruction
from tests.forecast.programs import mesh


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
