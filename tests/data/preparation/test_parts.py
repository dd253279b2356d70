"""Steps on machines that share a folder: the bytes of the local runner, whatever fails, is repeated or is late."""

import dataclasses
import errno
import gzip
import json
import random

import fsspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertjax.data import remote
from bertjax.data.config import DataConfig, NearDuplicates, SourceConfig, TokenizerConfig
from bertjax.data.filters.rules import Length, Personal
from bertjax.data.preparation import beam, pieces, sample, shards
from bertjax.data.preparation.beam import Beam
from bertjax.data.preparation.duplicates import PACKED_KEY
from bertjax.data.preparation.prepare import prepare
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import Key, digest, sample_priority
from bertjax.data.sources import documents
from bertjax.data.text.sentences import split
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from tests.data.preparation.corpora import content, write_corpus
from tests.data.test_remote import Bucket

CHARACTERS = TokenizerConfig(kind="char", vocab_size=30, byte_fallback=False)


@dataclasses.dataclass(frozen=True)
class Unreliable(Beam):
    """In place of Apache Beam: steps in any order, some twice, and each may fail before or after it writes."""

    runner: str = "unreliable"
    temp: str = ""
    seed: int = 0

    def __post_init__(self):
        pass

    def _temp_location(self):
        return self.temp

    def _run(self, name, step, steps):
        draw = random.Random(f"{self.seed}/{name}")
        numbers = [number for number in range(steps) for _ in range(draw.randint(1, 2))]
        draw.shuffle(numbers)
        with pytest.MonkeyPatch.context() as patch:
            for module, name in ((storage, "write_bytes"), (storage, "publish"), (remote, "upload")):
                patch.setattr(module, name, _failing(getattr(module, name), draw))
            while numbers:
                number = numbers.pop()
                try:
                    step(number)
                except storage.StorageError:
                    numbers.insert(draw.randint(0, len(numbers)), number)


def _failing(action, draw):
    def act(*arguments):
        if draw.random() < 0.2:
            raise storage.StorageError(errno.EIO, "it failed", str(arguments[0]))
        action(*arguments)
        if draw.random() < 0.2:
            raise storage.StorageError(errno.EIO, "it failed after it was done", str(arguments[0]))

    return act


def mixed(tmp_path, **settings):
    """Two sources of several files, with copies in others, documents that filters drop or change, and bad ones."""
    write_corpus(tmp_path / "corpus.txt", documents=240)
    texts = [document.text for document in documents(str(tmp_path / "corpus.txt"), "text")]
    texts += [texts[5].replace(".", ". Edited", 1), "Too short.", "Write to someone@mail.org, not to nobody. " * 3]
    for name in ("books", "web"):
        (tmp_path / name).mkdir()
    for i in range(3):
        (tmp_path / "books" / f"{i}.txt").write_text("\n\n".join(texts[40 * i : 40 * i + 40]))
        lines = [json.dumps({"text": text}) for text in (*texts[120 + 40 * i : 160 + 45 * i], texts[i], texts[-1])]
        (tmp_path / "web" / f"{i}.jsonl.gz").write_bytes(gzip.compress("\n".join([*lines, "bad"]).encode()))
    sources = {name: SourceConfig(str(tmp_path / name)) for name in ("web", "books")}
    settings = {"heldout_share": 0.2, "on_bad_document": "skip", "workers": 0} | settings
    return dataclasses.replace(DataConfig(), sources=sources, store=str(tmp_path / "stores"), **settings)


CLEANING = {
    "filters": {"personal": Personal(), "length": Length(fewest_words=5)},
    "near_duplicates": NearDuplicates(drop=True, ngram=2),
}


@pytest.mark.parametrize("seed, bucket, settings", [(0, "", {}), (1, "s3://bucket", CLEANING), (2, "", {"share": 0.5})])
def test_failed_and_repeated_steps_change_nothing(config, tmp_path, monkeypatch, seed, bucket, settings):
    monkeypatch.setattr(shards, "SHARD_BYTES", 4000)
    tokenizer = dataclasses.replace(config.tokenizer, sample_characters=20_000)
    config = mixed(tmp_path, tokenizer=tokenizer, **settings)
    expected = prepare(config).path
    fsspec.register_implementation("s3", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    temp = f"{bucket or tmp_path}/temp"
    made = prepare(dataclasses.replace(config, store=f"{config.store}-beam"), Unreliable(temp=temp, seed=seed)).path
    assert content(made) == content(expected) and made.name == expected.name
    assert not storage.names_in(temp), "the work folder is left"


def test_a_stopped_preparation_resumes_and_a_damaged_shard_starts_from_scratch(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shards, "SHARD_BYTES", 4000)
    expected = content(prepare(config).path)
    config, temp = dataclasses.replace(config, store=f"{config.store}-beam"), tmp_path / "temp"
    runner = Unreliable(temp=str(temp))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(beam.PartEncoder, "__call__", _interrupt)
        prepare(config, runner)
    [seal] = temp.rglob(pieces.SEAL)
    before = seal.stat().st_mtime_ns
    [text, *_] = temp.rglob("text/000000")
    text.write_bytes(text.read_bytes()[:-1] + b"\xff")
    with monkeypatch.context() as patch:
        patch.setattr(pieces.PartReader, "__call__", _interrupt)
        with pytest.raises(KeyboardInterrupt):  # not at the first pass, which is complete, but after the damage
            prepare(config, runner)
    assert "differs from what was written" in capsys.readouterr().err and not seal.exists()
    assert before and content(prepare(config, runner).path) == expected


def _interrupt(*_):
    raise KeyboardInterrupt


def test_bad_input_in_a_part_is_one_line(config, tmp_path):
    runner = Unreliable(temp=str(tmp_path / "temp"))
    for last, complaint in (
        (b"\xff\n", r"corpus.txt:3 is not UTF-8"),
        (b"\xe2\x96\x81\n", "holds no token.*; remove it, or set data.on_bad_document=skip$"),
    ):
        (tmp_path / "corpus.txt").write_bytes(b"One.\n\n" + last + b"\nTwo.\n\nThree.\n")
        with pytest.raises(UserError, match=complaint):
            prepare(dataclasses.replace(config, heldout=config.corpus, tokenizer=CHARACTERS), runner)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot write .*file/temp/.*; name a folder that all workers can write"):
        prepare(config, Unreliable(temp=str(tmp_path / "file" / "temp")))


TEXTS = st.lists(st.text(st.sampled_from("a가각é \n"), min_size=1, max_size=60), max_size=12)


# What does not fit into a part, or into the smaller sample of the corpus, keeps all behind it out.
@example(texts=["a", "a a a\naaa\né"], cuts={0, 1}, size=2, more=0)
@example(texts=["a a a\naaa\né", "a"], cuts={0, 1}, size=2, more=9)
@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, cuts=st.sets(st.integers(0, 11)), size=st.integers(1, 200), more=st.integers(0, 50))
def test_a_sample_drawn_by_parts_is_that_of_the_corpus(tmp_path_factory, texts, cuts, size, more):
    """Also with copies, and if parts have larger samples, as those of several sources with shares do."""
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "STRETCH", 8)
        patch.setattr(sample, "LONGEST_STRETCH", 16)
        whole, drawn, priorities = Sample(size), [Sample(size + more)], {}
        for index, text in enumerate(texts):
            if index in cuts:
                drawn.append(Sample(size + more))
            key = Key(0, len(drawn), index + 1, index + 1)
            for each in (whole, drawn[-1]):
                each.add(key, digest(text), text)
            for number, (start, stop) in enumerate(sample._stretches(text)):
                priorities.setdefault(sample_priority(digest(text), number), (key, number, text[start:stop]))
        # The definition: the lowest priorities whose texts fit, at least one.
        expected = sorted((priority, *rest) for priority, rest in priorities.items())
        fitting = np.cumsum([len(text) for *_, text in expected]) <= size
        assert whole.stretches() == expected[: max(1, int(fitting.sum()))]
        paths = [folder / f"sample-{number}" for number in range(len(drawn))]
        for part, path in zip(drawn, paths, strict=True):
            sample.save(part, path)
        merged = sample.merged(size, paths, np.zeros(0, PACKED_KEY))
        assert [line for text in merged for line in split(text, "line")] == whole.sentences("line")
        assert sum(map(len, merged)) == sum(len(stretch.text) for stretch in whole.stretches())


def drawn(texts, characters):
    result = Sample(characters)
    for index, text in enumerate(texts):
        result.add(index, digest(text), text)
    return result.sentences("line")
