"""The check for devices that give wrong results."""

import numpy as np
import pytest

from bertjax.cli import check
from bertjax.runtime.errors import UserError


def test_sound_devices_pass(capsys):
    assert check.main(["--platform=cpu", "--rounds=2"]) == 0
    assert capsys.readouterr().out.endswith("2 of 2 rounds are equal\n")


def test_each_part_computes_something():
    results = check.run(1)
    assert results.shape == (1, 1, len(check.PARTS)) and len(np.unique(results)) == len(check.PARTS)


def test_a_device_with_other_results_is_named(capsys, monkeypatch):
    """One of four devices is wrong in one part and half of the rounds."""
    results = np.tile(np.array([7, 8, 9], np.uint32), (6, 4, 1))
    results[::2, 2, 1] += 1
    monkeypatch.setattr(check, "run", lambda rounds: results)
    monkeypatch.setattr(check.jax, "local_devices", lambda: [Device(index) for index in range(4)])
    assert check.main(["--platform=cpu", "--rounds=6"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "tpu:2  TPU v5e  matrix products in bfloat16 differ in 3 of 6 rounds"
    assert [line.endswith("6 of 6 rounds are equal") for line in lines[:4]] == [True, True, False, True]
    assert lines[4].startswith("a device of this machine gives wrong results")


class Device:
    device_kind = "TPU v5e"

    def __init__(self, index: int):
        self._index = index

    def __str__(self) -> str:
        return f"tpu:{self._index}"


def test_one_round_compares_nothing():
    with pytest.raises(UserError, match="--rounds=1 must be 2 or more"):
        check.main(["--rounds=1"])
