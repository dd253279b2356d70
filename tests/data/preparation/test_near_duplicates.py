"""Clusters of near-duplicates: those of a plain union, the same in any order, and a stated rule for who stays."""

import tracemalloc

import numpy as np
import pytest

from bertjax.data.preparation import duplicates, near_duplicates
from bertjax.data.preparation.duplicates import Duplicates
from bertjax.data.preparation.steps import Key

BUCKETS = 3
TRAIN, HELDOUT = 0, 1


def documents(count, values, seed=0):
    """Documents whose buckets have few values, so that some share one: (key, digest, group, text, buckets)."""
    rng = np.random.default_rng(seed)
    return [
        (
            Key(0, int(rng.integers(3)), i + 1),
            rng.bytes(15) + b"\0",
            int(rng.random() < 0.1),
            b"text %d " % i * int(rng.integers(1, 4)),
            rng.integers(0, values, BUCKETS).astype(np.uint64),
        )
        for i in range(count)
    ]


def found(tmp_path, entries, exact=()):
    (tmp_path / "near").write_bytes(b"".join(near_duplicates.record(*entry) for entry in entries))
    (tmp_path / "exact").write_bytes(b"".join(sorted(key.packed() for key in exact)))
    return near_duplicates.find(tmp_path / "near", Duplicates(tmp_path / "exact"), BUCKETS, [False, True])


def plain(entries):
    """{key that is dropped: key that stays}, and the sizes of the clusters."""
    clusters = [{i} for i in range(len(entries))]
    for i, first in enumerate(entries):
        for j, second in enumerate(entries[:i]):
            if (first[4] == second[4]).any() and clusters[i] is not clusters[j]:
                clusters[i] |= clusters[j]
                for k in clusters[j]:
                    clusters[k] = clusters[i]
    unique = {id(cluster): cluster for cluster in clusters if len(cluster) > 1}.values()
    dropped = {}
    for cluster in unique:
        members = [entries[i] for i in cluster]
        best = min(members, key=lambda m: (m[2] != HELDOUT, -len(m[3]), m[1]))
        dropped |= {m[0]: best[0] for m in members if m is not best and m[2] != HELDOUT}
    return dropped, sorted(map(len, unique), reverse=True)


def as_dict(clusters):
    pairs = zip(clusters.dropped.tolist(), clusters.kept.tolist(), strict=True)
    return {Key.unpacked(dropped): Key.unpacked(kept) for dropped, kept in pairs}


@pytest.mark.parametrize("values, read", [(1000, 1 << 16), (300, 7), (40, 64)])
def test_clusters_are_those_of_a_plain_union(tmp_path, monkeypatch, values, read):
    monkeypatch.setattr(duplicates, "DOCUMENTS_PER_READ", read)
    entries = documents(200, values)
    clusters = found(tmp_path, entries)
    dropped, sizes = plain(entries)
    assert as_dict(clusters) == dropped and len(dropped) > 5
    assert clusters.number == len(sizes) and [size for size, _, _ in clusters.largest] == sizes[:10]
    assert clusters.groups.tolist() == [TRAIN] * len(dropped)


def test_the_order_of_documents_has_no_effect(tmp_path):
    entries = documents(300, 400)
    first = found(tmp_path, entries)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(300)
        again = found(tmp_path, [entries[i] for i in order])
        assert as_dict(again) == as_dict(first) and again.largest == first.largest


def test_the_names_of_files_do_not_choose_who_stays(tmp_path):
    """The rule reads content: with other keys the same contents stay."""
    entries = documents(200, 300)
    renamed = [(Key(0, 5 - entry[0].part, entry[0].number), *entry[1:]) for entry in entries]
    numbers = [{key.number for key in as_dict(found(tmp_path, e))} for e in (entries, renamed)]
    assert numbers[0] == numbers[1] and numbers[0]


def test_no_training_document_stays_in_a_cluster_with_a_held_out_one(tmp_path):
    entries = documents(300, 60)
    dropped = as_dict(found(tmp_path, entries))
    stays = [entry for entry in entries if entry[0] not in dropped]
    for held in (entry for entry in entries if entry[2] == HELDOUT):
        assert held in stays
        assert not any((held[4] == other[4]).any() for other in stays if other[2] == TRAIN)


def test_exact_duplicates_are_left_to_their_own_step(tmp_path):
    (_, digest, group, text, row), *_ = documents(1, 10)
    entries = [(Key(0, 0, number), digest, group, text, row) for number in (1, 2, 3)]
    clusters = found(tmp_path, entries, exact=[Key(0, 0, 2), Key(0, 0, 3)])
    assert clusters.number == 0 and not len(clusters.dropped)


def test_no_documents(tmp_path):
    clusters = found(tmp_path, [])
    assert clusters.number == 0 and clusters.largest == [] and not len(clusters.dropped)


@pytest.mark.parametrize("share, most", [(0.02, 50), (1.0, 390)])
def test_memory_is_what_the_docstring_says(tmp_path, monkeypatch, share, most):
    """All records would take 250 bytes a document, and they stay on disk."""
    monkeypatch.setattr(duplicates, "DOCUMENTS_PER_READ", 1 << 12)
    count, dtype = 100_000, near_duplicates.document_dtype(14)
    rng = np.random.default_rng(0)
    block = np.zeros(count, dtype)
    block["buckets"] = rng.integers(0, 1 << 62, (count, 14))
    block["buckets"][: int(share * count), 3] %= count // 20
    block["key"] = [Key(0, 0, i + 1).packed() for i in range(count)]
    block["digest"] = block["key"]
    block.tofile(tmp_path / "near")
    del block
    (tmp_path / "exact").touch()
    tracemalloc.start()
    clusters = near_duplicates.find(tmp_path / "near", Duplicates(tmp_path / "exact"), 14, [False])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert clusters.number > 100
    assert peak < most * count + 3_000_000, peak / count


def test_a_file_of_duplicates_can_be_extended(tmp_path):
    keys = [Key(0, 0, number) for number in (1, 256, 512)]
    (tmp_path / "d").write_bytes(keys[1].packed())
    duplicates.add(tmp_path / "d", np.array([keys[2].packed(), keys[0].packed()], duplicates.PACKED_KEY))
    assert Duplicates(tmp_path / "d").contain([*keys, Key(0, 0, 2)]).tolist() == [True, True, True, False]
    assert [Key.unpacked(packed) for packed in Duplicates(tmp_path / "d").packed()] == keys
