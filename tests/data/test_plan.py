"""Plans: fingerprints, damaged files, concurrent processes, and counts."""

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bertjax.data import plan as plan_module
from bertjax.data.formats import Block, TextFormat
from bertjax.data.formats.runs import FullSentences
from bertjax.data.formats.segments import SegmentPairs
from bertjax.data.plan import Spec, open_or_make
from bertjax.data.store import TokenStore
from bertjax.runtime.errors import UserError

TRAIN, HELDOUT = (Spec(split, SegmentPairs(), seq_len=32, seed=0) for split in ("train", "heldout"))


@pytest.fixture
def own_store(store, tmp_path) -> TokenStore:
    """A copy of the store that a test may harm."""
    shutil.copytree(store.path, tmp_path / "store", ignore=shutil.ignore_patterns("plans"))
    return TokenStore.open(tmp_path / "store")


def test_made_once_and_opened_again(own_store):
    made = open_or_make(own_store, TRAIN)
    written = (made.path / "ranges.npy").stat().st_mtime_ns
    opened = open_or_make(own_store, TRAIN)
    assert (opened.path / "ranges.npy").stat().st_mtime_ns == written
    assert opened.path.parent == own_store.path / "plans" and opened.path.name == opened.fingerprint[:12]
    assert opened.rows_RN.dtype == np.int32
    np.testing.assert_array_equal(np.sort(opened.rows_RN[opened.rows_RN >= 0]), np.arange(len(opened.examples)))
    (block,) = SegmentPairs().blocks(own_store.split("train"), 32, 0)
    np.testing.assert_array_equal(np.load(opened.examples.ranges), block.ranges)
    lengths = opened.examples.lengths()
    assert opened.counts == made.counts and opened.counts.tokens == lengths.sum()
    assert opened.counts.real_share(32) == lengths.sum() / (32 * len(opened.rows_RN)) > 0.98
    assert (opened.counts.rows, opened.counts.slots) == opened.rows_RN.shape
    TokenStore.open(own_store.path, verify=True)


def test_everything_that_decides_the_plan_is_in_its_fingerprint(own_store):
    changes = [
        {},
        {"split": "heldout"},
        {"examples": SegmentPairs(trim="outer_ends")},
        {"seq_len": 33},
        {"seed": 1},
        {"row_examples": 1},
        {"number": 1},
    ]
    plans = [open_or_make(own_store, dataclasses.replace(TRAIN, **change)) for change in changes]
    assert len({plan.fingerprint for plan in plans}) == len({plan.path for plan in plans}) == len(changes)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    "name, harm",
    [("ranges.npy", flip), ("rows.npy", cut), ("rows.npy", flip), ("ranges.npy", Path.unlink), ("plan.json", cut)]
    + [("plan.json", lambda path: path.write_bytes(b"null"))],
)
def test_a_damaged_plan_is_made_again_with_a_warning(own_store, caplog, name, harm):
    made = open_or_make(own_store, HELDOUT)
    whole = {file.name: file.read_bytes() for file in made.path.iterdir()}
    harm(made.path / name)
    open_or_make(own_store, HELDOUT)
    assert {file.name: file.read_bytes() for file in made.path.iterdir()} == whole
    assert caplog.messages == [f"the plan in {made.path} is damaged; making it again"]


def test_processes_that_make_it_at_the_same_time_agree(own_store, caplog):
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: open_or_make(own_store, TRAIN), range(4)))
    assert len({plan.fingerprint for plan in plans}) == 1
    name = plans[0].path.name
    assert sorted(path.name for path in (own_store.path / "plans").iterdir()) == [f".{name}.lock", name]
    # Those that find it damaged make it again once.
    flip(plans[0].path / "rows.npy")
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda _: open_or_make(own_store, TRAIN), range(4)))
    assert len(caplog.messages) == 1 and all(len(plan.rows_RN) == len(plans[0].rows_RN) for plan in again)


def test_too_many_examples_are_refused_before_they_are_packed(own_store, monkeypatch):
    monkeypatch.setattr(plan_module, "MOST_EXAMPLES", 3)
    monkeypatch.setattr(plan_module, "_write_rows", None)
    with pytest.raises(UserError, match="makes more than 3 examples, the most that a plan holds; raise stages"):
        open_or_make(own_store, TRAIN)
    assert not list((own_store.path / "plans").glob(".*.draft"))


def test_drafts_of_killed_processes_are_removed(own_store):
    path = open_or_make(own_store, TRAIN).path
    draft = path.with_name(f".{path.name}.0123456789ab.draft")
    draft.mkdir()
    (path / "plan.json").unlink()
    open_or_make(own_store, TRAIN)
    assert not draft.exists()


def test_a_store_that_cannot_be_written(own_store):
    (own_store.path / "plans").write_text("in the way")
    with pytest.raises(
        UserError,
        match="cannot write the plan .*; make the store writable or choose another data.store",
    ):
        open_or_make(own_store, TRAIN)


@dataclasses.dataclass(frozen=True)
class WholeRows(TextFormat):
    """Only whole rows of text, in blocks of a few, so a short split has none."""

    kind: str = dataclasses.field(default="tests:WholeRows", init=False)
    rows_a_block: int = 3

    def blocks(self, split, seq_len, seed):
        stops = np.arange(seq_len, len(split.tokens) + 1, seq_len)
        ranges = np.stack([stops - seq_len, stops], axis=1)
        for start in range(0, len(ranges), self.rows_a_block):
            yield Block(ranges[start : start + self.rows_a_block], lost_tokens=2, repeated_tokens=1)

    def open(self, store, split, ranges):
        return Stretches(ranges)


@dataclasses.dataclass(frozen=True)
class Stretches:
    path: Path

    def __len__(self):
        return len(np.load(self.path))

    def lengths(self, start=0, stop=None):
        return np.diff(np.load(self.path)[start:stop])[:, 0]


def test_no_row_is_an_error(own_store):
    with pytest.raises(UserError, match="heldout split of .* is too small to fill a row; use a larger corpus"):
        open_or_make(own_store, Spec("heldout", WholeRows(), 10**7, 0))
    assert [path.suffix for path in (own_store.path / "plans").iterdir()] == [".lock"]


def test_blocks_are_joined_and_their_counts_added(own_store):
    plan = open_or_make(own_store, Spec("heldout", WholeRows(), 16, 0))
    tokens = len(own_store.split("heldout").tokens)
    rows = tokens // 16
    assert plan.counts.examples == plan.counts.rows == rows > 6
    np.testing.assert_array_equal(np.load(plan.examples.path)[:, 0], 16 * np.arange(rows))
    blocks = -(-rows // 3)
    assert (plan.counts.lost_tokens, plan.counts.repeated_tokens) == (2 * blocks, blocks)


def test_a_block_without_examples_leaves_no_trace(own_store):
    """Such as a million documents of one sentence each, for a format of sentence pairs."""

    @dataclasses.dataclass(frozen=True)
    class Late(WholeRows):
        def blocks(self, split, seq_len, seed):
            for block in super().blocks(split, seq_len, seed):
                yield dataclasses.replace(block, ranges=block.ranges[:0])
                yield block

    late = open_or_make(own_store, Spec("heldout", Late(), 16, seed=1))
    plain = open_or_make(own_store, Spec("heldout", WholeRows(), 16, seed=0))
    assert late.path != plain.path and late.counts.examples == plain.counts.examples
    np.testing.assert_array_equal(np.load(late.examples.path), np.load(plain.examples.path))


def test_packing_in_blocks_keeps_every_example(own_store, monkeypatch):
    whole = open_or_make(own_store, TRAIN)
    monkeypatch.setattr(plan_module, "PACKED_AT_ONCE", 50)
    blocks = open_or_make(own_store, dataclasses.replace(TRAIN, row_examples=5))
    assert whole.counts.examples > 200
    rows_RN = blocks.rows_RN
    np.testing.assert_array_equal(np.sort(rows_RN[rows_RN >= 0]), np.arange(whole.counts.examples))
    used = rows_RN.max(axis=1) // 50
    assert (np.diff(used) >= 0).all() and used[-1] == (whole.counts.examples - 1) // 50
    lengths = np.where(rows_RN >= 0, blocks.examples.lengths()[rows_RN], 0)
    assert lengths.sum(axis=1).max() <= 32


def test_plans_of_one_run_differ_unless_they_are_not_random(own_store):
    first, second = (open_or_make(own_store, dataclasses.replace(TRAIN, number=number)) for number in (0, 1))
    assert first.path == open_or_make(own_store, TRAIN).path, "the first one has the seed of the run"
    assert not np.array_equal(np.load(first.examples.ranges)[:50], np.load(second.examples.ranges)[:50])
    specs = [Spec("train", FullSentences(), seq_len=32, seed=seed, number=number) for seed, number in ((0, 0), (1, 2))]
    assert len({open_or_make(own_store, spec).path for spec in specs}) == 1


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads the advice on memory maps from /proc")
@pytest.mark.parametrize("examples", [SegmentPairs(), FullSentences()], ids=["pairs", "runs"])
def test_maps_that_training_reads_at_random_are_advised_so(own_store, examples):
    plan = open_or_make(own_store, dataclasses.replace(TRAIN, examples=examples))
    rows = plan.rows(np.arange(4), np.zeros(4, np.int64))
    plan.examples.take(rows[rows >= 0])
    advised = _maps_read_at_random()
    for path in (plan.path / "ranges.npy", plan.path / "rows.npy", own_store.path / "train.tokens.bin"):
        assert str(path) in advised


def _maps_read_at_random() -> set[str]:
    """The files whose maps have the flag `rr` ("random read advise provided", Linux, proc_pid_smaps(5))."""
    advised, path = set(), ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "/" in line and "-" in line.split()[0]:
            path = line[line.index("/") :]
        elif line.startswith("VmFlags:") and "rr" in line.split():
            advised.add(path)
    return advised
