"""Goodput, MFU, and traces of steps."""

import dataclasses

import jax

from bertjax.runtime.devices import peak_flops
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.sharding import make_mesh
from bertjax.training.run.metrics import Totals, goodput_of, mfu


def test_goodput_is_the_share_of_steps_that_were_kept():
    totals = Totals(
        seconds=100.0, data_wait_seconds=5.0, compile_seconds=20.0, checkpoint_seconds=10.0, evaluation_seconds=15.0
    )
    assert goodput_of(totals, wall_seconds=200.0) == {
        "step": 50.0,
        "data_wait": 5.0,
        "compile": 20.0,
        "checkpoint": 10.0,
        "evaluation": 15.0,
        "wall": 200.0,
        "goodput": 0.25,
    }
    assert dataclasses.asdict(totals)["seconds"] == 100.0


def test_mfu_where_the_peak_is_known(monkeypatch, caplog):
    assert peak_flops("TPU v5 lite") == 197e12 and peak_flops("TPU v3") == 61.5e12  # two devices a chip
    assert peak_flops("NVIDIA H200") == 989e12 and peak_flops("cpu") is None
    mesh = make_mesh(MeshConfig(data=1, fsdp=1), jax.devices()[:1])
    assert mfu(1e12, 2e12, 10.0, mesh) == {}
    monkeypatch.setattr("bertjax.training.run.metrics.peak_flops", lambda kind: 1e12)
    assert mfu(1e12, 2e12, 10.0, mesh) == {"mfu": 0.1, "executed_mfu": 0.2}
    assert not caplog.records
    for _ in range(2):  # an impossible share is neither hidden nor reported at every line
        assert mfu(1e12, 2e13, 10.0, mesh)["executed_mfu"] == 2.0
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "mfu is above 1" in caplog.text
