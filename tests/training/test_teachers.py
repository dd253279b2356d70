"""Teachers that would have no effect are refused before their folder is read."""

import pytest

from tests import runs


@pytest.mark.slow
def test_devices_compare_the_whole_batch():
    results = runs.on_devices(8, "tests.training.contrast_on_eight_devices")
    plain = results.pop("plain")
    assert plain["loss"] > 2.0 and plain["evaluated"] > 2.0, "of ten pairs; one device has two at most"
    assert len(results) == 4
    for layout, difference in results.items():
        assert difference["loss"] < 1e-5 and difference["evaluated"] < 1e-5, layout
        assert difference["right"] == 0 and difference["gradient"] < 1e-5, layout
