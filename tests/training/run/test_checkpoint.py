"""Checkpoints: exact restores, retention, and errors."""

import json
import logging
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertjax.runtime.errors import RunFailed, UserError
from bertjax.training.run.checkpoint import Checkpoints, Retention
from bertjax.training.run.fingerprints import fingerprints


def state(step: int) -> dict:
    """A state whose arrays tell the step; 40 KB, so that its bytes fill several files."""
    draw = np.random.default_rng(step)
    kernel = draw.normal(size=(100, 50)).astype(np.float32)
    return {
        "step": jnp.int32(step),
        "params": {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(3)},
        "opt_state": ({"count": jnp.int32(step), "mu": {"kernel": jnp.asarray(-kernel)}}, ()),
        "skipped": jnp.int32(0),
    }


# Compressed, each of the two kernels still takes more than this; no other file does.
ARRAY_BYTES = 10_000
META = {"totals": {"tokens": 12.0}, "plan": "f00d"}


def write(folder: Path, *steps: int, keep: int = 3) -> None:
    checkpoints = Checkpoints(epath.Path(folder), Retention(keep))
    for step in steps:
        checkpoints.save(step, state(step), META)
    checkpoints.settle()


def newest(folder: Path):
    return Checkpoints(epath.Path(folder), Retention(3)).restore_newest(lambda step: state(0))


def assert_is(restored, step: int) -> None:
    assert restored.step == step
    assert fingerprints(restored.tree) == fingerprints(state(step))
    np.testing.assert_array_equal(restored.tree["params"]["kernel"], state(step)["params"]["kernel"])
    assert {name: restored.meta[name] for name in META} == META


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A folder with checkpoints 10 and 20, which tests copy."""
    folder = tmp_path_factory.mktemp("checkpoints") / "written"
    write(folder, 10, 20)
    return folder


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in (folder / "20").rglob("*") if path.is_file())


def test_a_checkpoint_is_restored_bit_for_bit(two):
    checkpoints = Checkpoints(epath.Path(two))
    assert checkpoints.steps() == [10, 20]
    assert_is(checkpoints.restore_newest(lambda step: state(0)), 20)
    assert_is(checkpoints.restore(10, state(0)), 10)
    assert fingerprints(checkpoints.restore(20).tree) == fingerprints(state(20))


@pytest.mark.parametrize(("keep", "kept"), [(1, [4, 5]), (2, [4, 5]), (3, [3, 4, 5])])
def test_the_newest_are_kept(tmp_path, keep, kept):
    """Two at least: a power failure may take the newest one."""
    write(tmp_path / "c", 1, 2, 3, 4, 5, keep=keep)
    assert Checkpoints(epath.Path(tmp_path / "c")).steps() == kept


def test_chosen_steps_are_kept_over_restarts(tmp_path):
    for steps in ((0, 1, 2, 3), (4, 5, 6, 7, 8)):
        checkpoints = Checkpoints(epath.Path(tmp_path / "c"), Retention(1, at=(0, 2, 5, 99)))
        for step in steps:
            checkpoints.save(step, state(step), META)
        checkpoints.settle()
    assert Checkpoints(epath.Path(tmp_path / "c")).steps() == [0, 2, 5, 7, 8]


def test_processes_that_see_other_checkpoints_stop(two, monkeypatch):
    monkeypatch.setattr("bertjax.training.parallel.processes.gather", lambda seen, purpose: [seen, seen[:1]])
    with pytest.raises(
        RunFailed, match=r"process 1 sees the checkpoints \[10\] in .* and this one \[10, 20\]; run the same"
    ):
        newest(two)


def test_a_saved_state_may_be_overwritten_at_once(tmp_path):
    """The next step donates its buffers while they are still being written."""
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"), Retention(1))
    saved = state(5)
    checkpoints.save(5, saved, META)
    next_step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)(saved)
    assert saved["params"]["kernel"].is_deleted()
    checkpoints.settle()
    assert int(next_step["step"]) == 6
    assert_is(newest(tmp_path / "c"), 5)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x04
    path.write_bytes(content)


def test_one_flipped_bit_in_any_file_is_detected(two, tmp_path, caplog):
    """The restored state is right. If it is not the newest, there is a warning. This covers every file of arrays."""
    reported = set()
    for number, name in enumerate(files_of(two)):
        folder = tmp_path / str(number) / "c"
        shutil.copytree(two, folder)
        size = (folder / name).stat().st_size
        if not size:
            continue
        flip(folder / name, size // 2)
        caplog.clear()
        restored = newest(folder)
        assert_is(restored, restored.step)
        if restored.step == 10:
            assert_reported(folder, caplog)
            reported.add(name)
    arrays = {name for name in files_of(two) if (two / name).stat().st_size > ARRAY_BYTES}
    assert arrays and arrays <= reported


def test_metadata_is_verified_too(two, tmp_path, caplog):
    name = "20/meta/metadata"
    for place in range(0, (two / name).stat().st_size, 23):
        folder = tmp_path / str(place) / "c"
        shutil.copytree(two, folder)
        flip(folder / name, place)
        caplog.clear()
        assert_is(newest(folder), 10)
        assert_reported(folder, caplog)


def assert_reported(folder: Path, caplog) -> None:
    ours = [record for record in caplog.records if record.name.startswith("bertjax")]
    [record] = [record for record in ours if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("checkpoint 20 is damaged (")
    assert record.getMessage().endswith("); continuing from checkpoint 10")
    assert len(record.getMessage().splitlines()) == 1
    assert Checkpoints(epath.Path(folder)).steps() == [10]
    [aside] = folder.parent.glob("c.damaged-20-*")
    assert any(aside.rglob("*"))


def test_if_all_are_damaged_the_run_is_refused(two, tmp_path):
    folder = tmp_path / "c"
    shutil.copytree(two, folder)
    for data in folder.glob("*/state/d/*"):
        data.write_bytes(data.read_bytes()[:-20])
    for _ in range(2):  # the second try must not find an empty folder, and start at step 0
        with pytest.raises(UserError, match="^every checkpoint is damaged .*; all are kept; restore one ") as caught:
            newest(folder)
        assert f"({folder}/20: OUT_OF_RANGE: " in str(caught.value) and f"; {folder}/10: OUT" in str(caught.value)


def test_metadata_of_a_checkpoint(two):
    [path] = (two / "20" / "meta").glob("metadata")
    meta = json.loads(path.read_text())
    assert meta["format_version"] == 2 and meta["fingerprints"]["params/kernel"] > 0


DTYPES = ("bool", "int4", "int8", "uint8", "int16", "float8_e4m3fn", "bfloat16", "float16", "complex64")


@pytest.fixture(scope="module")
def slots() -> dict:
    """Slots of an objective, of dtypes that are not 32 bits wide, and random keys."""
    values = np.random.default_rng(0).integers(0, 2, 24)
    return {dtype: jnp.asarray(values).astype(dtype) for dtype in DTYPES} | {"key<fry>": jax.random.key(0)}


def test_slots_of_any_dtype_are_restored(slots, tmp_path):
    saved = state(10) | {"slots": {"task": slots}}
    checkpoints = Checkpoints(epath.Path(tmp_path))
    checkpoints.save(10, saved, META)
    checkpoints.settle()
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), saved)
    restored = checkpoints.restore(10, abstract).tree["slots"]["task"]
    for dtype, values in slots.items():
        assert str(restored[dtype].dtype) == dtype and (restored[dtype] == values).all()


VALUES = np.random.default_rng(0).normal(size=64).astype(np.float32)


def fingerprint(values: np.ndarray) -> int:
    return fingerprints({"leaf": jnp.asarray(values)})["leaf"]


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 63), bit=st.integers(0, 31))
@example(place=0, bit=0)
@example(place=63, bit=0)
def test_every_flipped_bit_changes_the_fingerprint(place, bit):
    words = VALUES.view(np.uint32).copy()
    words[place] ^= np.uint32(1) << np.uint32(bit)
    assert fingerprint(words.view(np.int32)) != fingerprint(VALUES.view(np.int32))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 63), min_size=2, max_size=2, unique=True), st.sampled_from([1.0, 2.0, -1.0, 0.0]))
def test_swapped_elements_change_the_fingerprint(places, factor):
    """Also those that differ in a single bit only, such as a number and its opposite."""
    values = VALUES.copy()
    values[places[1]] = factor * values[places[0]] if factor != 1.0 else values[places[1]]
    swapped = values.copy()
    swapped[places] = values[places[::-1]]
    assert fingerprint(swapped) != fingerprint(values)
