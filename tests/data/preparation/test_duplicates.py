"""Duplicates: the same answer as a dictionary gives, however few digests are sorted at a time."""

import numpy as np
import pytest

from bertjax.data.preparation import duplicates
from bertjax.data.preparation.duplicates import digest_of, drop, record


@pytest.mark.parametrize("bucket, read", [(1 << 22, 1 << 18), (100, 64), (7, 1000)])
def test_all_but_the_first_in_order_are_dropped(tmp_path, monkeypatch, bucket, read):
    monkeypatch.setattr(duplicates, "BUCKET_DOCUMENTS", bucket)
    monkeypatch.setattr(duplicates, "READ_AT_ONCE", read)
    rng = np.random.default_rng(0)
    texts, groups = [f"document {i}" for i in rng.integers(0, 700, 1000)], rng.integers(0, 3, 1000)
    (tmp_path / "documents").write_bytes(b"".join(map(record, map(digest_of, texts), groups.tolist())))
    marks, kept, dropped = drop(tmp_path / "documents", tmp_path / "dropped.npy", 3)
    expected = [text in texts[:i] for i, text in enumerate(texts)]
    assert marks.tolist() == expected == np.load(tmp_path / "dropped.npy").tolist()
    assert kept == tuple(np.bincount(groups[~np.array(expected)])) and sum(kept) + sum(dropped) == 1000


def test_digests_that_share_a_half_are_different(tmp_path):
    digests = [b"a" * 16, b"a" * 8 + b"b" * 8, b"b" * 8 + b"a" * 8, b"a" * 16]
    (tmp_path / "documents").write_bytes(b"".join(record(digest, 0) for digest in digests))
    assert drop(tmp_path / "documents", tmp_path / "dropped.npy", 1)[0].tolist() == [False, False, False, True]


def test_no_documents(tmp_path):
    (tmp_path / "documents").touch()
    assert drop(tmp_path / "documents", tmp_path / "dropped.npy", 2)[1:] == ((0, 0), (0, 0))
