"""Processes of a preparation: as many as the cores that this process may use."""

import os

import pytest

from bertjax.data.preparation import workers


@pytest.fixture
def one_core():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this platform has no affinity")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_the_affinity_of_the_process_decides(one_core):
    assert workers.number(None) == 1 and workers.number(3) == 3 and workers.number(0) == 0


@pytest.mark.parametrize("limit, most", [("max 100000", None), ("150000 100000", 2), ("20000 100000", 1), ("", None)])
def test_a_container_with_a_share_of_time_has_as_many_cores(tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(workers, "CPU_MAX", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    every = len(os.sched_getaffinity(0))
    assert workers.cores() == (every if most is None else min(most, every))
