"""Duplicates: the same answer as a dictionary gives, in any order of documents and for any size of buckets."""

import numpy as np
import pytest

from bertjax.data.preparation import duplicates
from bertjax.data.preparation.duplicates import Duplicates, find, record
from bertjax.data.preparation.steps import Key, digest


@pytest.mark.parametrize("bucket, read", [(1 << 22, 1 << 18), (100, 64), (7, 1000)])
def test_all_but_the_first_in_the_corpus_are_duplicates(tmp_path, monkeypatch, bucket, read):
    monkeypatch.setattr(duplicates, "BUCKET_DOCUMENTS", bucket)
    monkeypatch.setattr(duplicates, "DOCUMENTS_PER_READ", read)
    rng = np.random.default_rng(0)
    texts, groups = [f"document {i}" for i in rng.integers(0, 700, 1000)], rng.integers(0, 3, 1000)
    keys = sorted({Key(*map(int, key)) for key in rng.integers(0, (3, 300, 1 << 40), (1000, 3))})
    keys = [key._replace(number=key.number << 8) for key in keys]  # packed numbers that end with a zero byte
    records = [record(digest(text), key, group) for text, key, group in zip(texts, keys, groups.tolist(), strict=True)]
    (tmp_path / "documents").write_bytes(b"".join(records[i] for i in rng.permutation(1000)))
    kept, dropped = find(tmp_path / "documents", tmp_path / "duplicates", 3)
    expected = [text in texts[:i] for i, text in enumerate(texts)]
    read_again = Duplicates(tmp_path / "duplicates")
    assert read_again.contain(keys).tolist() == expected == [key in read_again for key in keys]
    assert kept == tuple(np.bincount(groups[~np.array(expected)])) and sum(kept) + sum(dropped) == 1000


def test_packed_keys_sort_as_keys_do():
    keys = [Key(0, 0, 2), Key(0, 0, 256), Key(0, 1, 1), Key(1, 0, 0), Key(256, 0, 0)]
    assert sorted(key.packed() for key in keys) == [key.packed() for key in keys]


def test_digests_that_share_a_half_are_different(tmp_path):
    digests = [b"a" * 16, b"a" * 8 + b"b" * 8, b"b" * 8 + b"a" * 8, b"a" * 16]
    keys = [Key(0, 0, number) for number in range(4)]
    (tmp_path / "documents").write_bytes(b"".join(record(d, key, 0) for d, key in zip(digests, keys, strict=True)))
    assert find(tmp_path / "documents", tmp_path / "duplicates", 1) == ((3,), (1,))
    assert Duplicates(tmp_path / "duplicates").contain(keys).tolist() == [False, False, False, True]


def test_no_documents(tmp_path):
    (tmp_path / "documents").touch()
    assert find(tmp_path / "documents", tmp_path / "duplicates", 2) == ((0, 0), (0, 0))
    assert Key(0, 0, 1) not in Duplicates(tmp_path / "duplicates")
    assert Duplicates(tmp_path / "duplicates").contain([]).tolist() == []
