import dataclasses
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bertjax.data.formats.base import Block, ExampleFormat
from bertjax.data.formats.segment_pairs import SegmentPairs
from bertjax.data.plan import open_or_make
from bertjax.data.store import TokenStore
from bertjax.errors import UserError


@pytest.fixture
def own_store(store, tmp_path) -> TokenStore:
    """A copy of the store that a test may harm."""
    shutil.copytree(store.path, tmp_path / "store", ignore=shutil.ignore_patterns("plans"))
    return TokenStore.open(tmp_path / "store")


def test_made_once_and_opened_again(own_store):
    made = open_or_make(own_store, "train", SegmentPairs(), 32, 0)
    written = (made.path / "ranges.npy").stat().st_mtime_ns
    opened = open_or_make(own_store, "train", SegmentPairs(), 32, 0)
    assert (opened.path / "ranges.npy").stat().st_mtime_ns == written
    assert opened.path.parent == own_store.path / "plans" and opened.path.name == opened.fingerprint[:12]
    np.testing.assert_array_equal(opened.rows_RN, np.arange(len(opened.examples))[:, None])
    assert isinstance(opened.rows_RN, np.memmap) and opened.rows_RN.dtype == np.int32
    (block,) = SegmentPairs().blocks(own_store.split("train"), 32, 0)
    np.testing.assert_array_equal(np.load(opened.examples.ranges), block.ranges)
    assert opened.real_share(32) == pytest.approx(made.examples.lengths().mean() / 32)
    TokenStore.open(own_store.path, verify=True)


def test_everything_that_decides_the_plan_is_in_its_fingerprint(own_store):
    plans = [
        open_or_make(own_store, "train", SegmentPairs(), 32, 0),
        open_or_make(own_store, "heldout", SegmentPairs(), 32, 0),
        open_or_make(own_store, "train", SegmentPairs(trim="outer_ends"), 32, 0),
        open_or_make(own_store, "train", SegmentPairs(), 33, 0),
        open_or_make(own_store, "train", SegmentPairs(), 32, 1),
    ]
    assert len({plan.fingerprint for plan in plans}) == len({plan.path for plan in plans}) == 5


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink, lambda path: path.write_bytes(b"null")])
@pytest.mark.parametrize("name", ["ranges.npy", "rows.npy", "plan.json"])
def test_a_damaged_plan_is_made_again_with_a_word(own_store, caplog, name, harm):
    made = open_or_make(own_store, "heldout", SegmentPairs(), 32, 0)
    whole = {file.name: file.read_bytes() for file in made.path.iterdir()}
    harm(made.path / name)
    open_or_make(own_store, "heldout", SegmentPairs(), 32, 0)
    assert {file.name: file.read_bytes() for file in made.path.iterdir()} == whole
    assert caplog.messages == [f"the plan in {made.path} is damaged and is made again"]


def test_processes_that_make_it_at_the_same_time_agree(own_store):
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: open_or_make(own_store, "train", SegmentPairs(), 32, 0), range(4)))
    assert len({plan.fingerprint for plan in plans}) == 1
    assert [folder.name for folder in (own_store.path / "plans").iterdir()] == [plans[0].path.name]


def test_a_store_that_takes_no_plan(own_store):
    (own_store.path / "plans").write_text("in the way")
    with pytest.raises(
        UserError, match="cannot write the plan .*; make the store writable or choose another data.store"
    ):
        open_or_make(own_store, "train", SegmentPairs(), 32, 0)


@dataclasses.dataclass(frozen=True)
class WholeRows(ExampleFormat):
    """Takes whole rows of text alone, so a short split has none."""

    kind: str = dataclasses.field(init=False, default="tests.data.test_plan:WholeRows")

    def blocks(self, split, seq_len, seed):
        stops = np.arange(seq_len, len(split.tokens) + 1, seq_len)
        yield Block(np.stack([stops - seq_len, stops], axis=1), len(split.tokens) % seq_len, 0)

    def open(self, store, split, ranges):
        return ranges


def test_no_row_is_an_error(own_store):
    assert len(open_or_make(own_store, "heldout", WholeRows(), 16, 0).rows_RN) > 0
    with pytest.raises(UserError, match="heldout split of .* is too small to fill a row; prepare a larger corpus"):
        open_or_make(own_store, "heldout", WholeRows(), 10**7, 0)


def test_pickled_examples_are_opened_by_path(own_store):
    plan = open_or_make(own_store, "train", SegmentPairs(), 32, 0)
    copied = pickle.loads(pickle.dumps(plan.examples))
    np.testing.assert_array_equal(copied.lengths(), plan.examples.lengths())
