"""The steps of a preparation: a runner that handles documents in any order writes the files of the local runner."""

import contextlib
import dataclasses
import random

import numpy as np
import pytest

from bertjax.data import sources
from bertjax.data.config import DataConfig, SourceConfig
from bertjax.data.preparation import steps
from bertjax.data.preparation.prepare import prepare
from bertjax.data.preparation.steps import Key, ShardDocument
from bertjax.data.store import COUNTS, PARTS, SPLITS, SplitWriter
from tests.data.preparation.corpora import write_corpus


@pytest.fixture
def two_sources(config, tmp_path):
    """Two sources, one of them with two parts, and documents that occur in all of them."""
    for seed, name in enumerate(("a/1", "a/2", "b")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_corpus(tmp_path / f"{name}.txt", documents=60, seed=seed)
    copies = (tmp_path / "b.txt").read_text()[:3000]
    (tmp_path / "a" / "2.txt").write_text(copies + (tmp_path / "a" / "2.txt").read_text())
    named = {"a": SourceConfig(str(tmp_path / "a")), "b": SourceConfig(str(tmp_path / "b.txt"))}
    return dataclasses.replace(config, corpus=DataConfig.corpus, sources=named, heldout_share=0.3)


def test_documents_in_any_order_become_the_same_store(two_sources, tmp_path):
    expected, draw = prepare(two_sources), random.Random(0)
    documents = [
        (Key(index, part_index, document.number), document)
        for index, source in enumerate(two_sources.sources.values())
        for part_index, part in enumerate(sources.parts(source.corpus, "text"))
        for document in part.documents()
    ]
    draw.shuffle(documents)
    first = {}
    for key, document in documents:
        digest = steps.digest(document.text)
        first[digest] = min(first.get(digest, key), key)
    kept = []
    for key, document in documents:
        digest = steps.digest(document.text)
        if first[digest] == key:
            group = key.source * len(SPLITS) + SPLITS.index(steps.split_of(digest, two_sources.heldout_share))
            kept.append(ShardDocument(key, document.id, group, document.text.encode()))
    assert len(kept) < len(documents)
    edges = [0, *sorted(draw.sample(range(len(kept)), 9)), len(kept)]
    runs = [sorted(kept)[start:stop] for start, stop in zip(edges[:-1], edges[1:], strict=True)]
    encoded = {}
    for index in draw.sample(range(len(runs)), len(runs)):
        encoded[index] = steps.encode_shard(runs[index], 2 * SPLITS, expected.tokenizer, two_sources.splitter)
    for split in SPLITS:
        with contextlib.closing(SplitWriter(tmp_path, split)) as writer:
            for index in range(len(runs)):
                writer.append(*encoded[index].arrays[split])
        for part in PARTS:
            name = f"{split}.{part}.bin"
            assert (tmp_path / name).read_bytes() == (expected.path / name).read_bytes()
    for group in range(4):
        counts = sum(np.array(shard.counts.get(group, [0] * len(COUNTS))) for shard in encoded.values())
        in_manifest = expected.manifest["counts"][SPLITS[group % 2]]["ab"[group // 2]]
        assert dict(zip(COUNTS, counts.tolist(), strict=True)) == in_manifest
