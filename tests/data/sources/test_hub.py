"""Data sets through the `datasets` library, from folders that the tests write."""

import io
import json
import os

import datasets
import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from bertjax.data import sources
from bertjax.data.sources import Document, published
from tests.data.sources.reading import error_of, read, skipping, texts


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for split, documents in (("train", 2500), ("test", 2)):
        lines = (json.dumps({"id": number, "body": f"{split} {number} é"}) for number in range(documents))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def test_a_folder_of_save_to_disk(tmp_path):
    """A single split, which `datasets.load_dataset` does not open, and several."""
    data = datasets.Dataset.from_dict({"body": [f"text {number}" for number in range(900)]})
    data.save_to_disk(tmp_path / "one", num_shards=2)
    assert texts(f"hf:{tmp_path / 'one'}", "body") == data["body"][:]
    assert "has no split 'test'; it has train" in error_of(f"hf:{tmp_path / 'one'}:test", "body")
    assert "has no field 'text'" in error_of(f"hf:{tmp_path / 'one'}")
    datasets.DatasetDict({"train": data, "test": data.select(range(3))}).save_to_disk(tmp_path / "two")
    assert texts(f"hf:{tmp_path / 'two'}", "body") == data["body"][:]
    data.shuffle(seed=0).save_to_disk(tmp_path / "shuffled")
    assert sorted(texts(f"hf:{tmp_path / 'shuffled'}", "body")) == sorted(data["body"][:])


def test_a_missing_data_set_is_named(folder, tmp_path):
    assert "cannot be loaded: Couldn't find any data file at" in error_of(f"hf:{tmp_path / 'none'}")
    assert "cannot be loaded: Couldn't reach 'nobody/nothing'" in error_of("hf:nobody/nothing")
    assert "has no split 'dev'; it has train, test" in error_of(f"hf:{folder}:dev", "body")
    assert "has no field 'text' (it has id, body)" in error_of(f"hf:{folder}")
    (folder / "train.jsonl").write_text('{"id": 0, "body": "One."}\nno JSON\n')
    assert "cannot be loaded: An error occurred while generating the dataset (" in error_of(f"hf:{folder}", "body")


def test_a_bad_row_is_named_or_left_out(folder):
    (folder / "test.jsonl").unlink()
    (folder / "train.jsonl").write_text('{"body": "One."}\n{"body": null}\n{"body": ""}\n{"body": "Two."}\n')
    left, errors = skipping(f"hf:{folder}:train", "body")
    assert left == ["One.", "Two."]
    assert "arrow:2: field 'body' is null" in errors[0] and "arrow:3" in errors[1]


def test_a_cache_file_that_is_cut_short(folder):
    (part,) = sources.parts(f"hf:{folder}", "body")
    part.path.write_bytes(part.path.read_bytes()[:50_000])
    errors, steps = [], []
    left = list(part.documents(steps.append, errors.append))
    assert 0 < len(left) < 2500 and len(errors) == 1 and "is cut short, damaged" in str(errors[0])
    assert sum(steps) == part.size and min(steps) >= 0


@pytest.fixture
def shards(tmp_path):
    """A data set of two Parquet files, whose column `image` is most of it."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for index in range(2):
        images = [os.urandom(20_000) for _ in range(50)]
        table = pyarrow.table({"image": images, "body": [f"{index} {row} é" for row in range(50)]})
        pyarrow.parquet.write_table(table, folder / f"train-{index:05d}-of-00002.parquet")
    return folder


EXPECTED = [f"{index} {row} é" for index in range(2) for row in range(50)]


def test_parquet_files_are_read_where_they_are(shards, tmp_path):
    documents = read(f"hf:{shards}", "body")
    assert documents[0] == Document("train-00000-of-00002.parquet", 1, "0 0 é")
    assert [document.text for document in documents] == EXPECTED
    assert not list((tmp_path / "cache").rglob("*.arrow")), "the data set was converted"
    assert "has no field 'text' (it has image, body)" in error_of(f"hf:{shards}")
    assert "has no split 'dev'; it has train" in error_of(f"hf:{shards}:dev", "body")


def test_only_the_column_of_the_text_is_fetched(shards, monkeypatch):
    """From another file system, as that of the hub is: fsspec has a class for each."""
    memory = fsspec.filesystem("memory")
    for path in shards.iterdir():
        memory.pipe(f"/set/{path.name}", path.read_bytes())
    files = [f"memory://set/{path.name}" for path in sorted(shards.iterdir())]
    parts = published._parquet_parts(files, "body")
    assert [part.name for part in parts] == [path.name for path in sorted(shards.iterdir())]
    hashes = iter(("1f", "1f", "2e"))
    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "info", lambda self, path: {"size": 7, "blob_id": next(hashes)})
        one, same, other = (published._parquet_parts(files[:1], "body")[0].fingerprint() for _ in range(3))
    assert one == same != other != parts[0].fingerprint(), "the hash that the hub knows"
    fetched = []
    read_some = io.BytesIO.readinto

    class Counting(type(memory.open("/set/" + parts[0].name))):
        def readinto(self, buffer):
            fetched.append(read_some(self, buffer))
            return fetched[-1]

    monkeypatch.setattr(
        type(memory), "_open", lambda self, path, *_, **__: Counting(self, path, self.store[path].getvalue())
    )
    assert [document.text for part in parts for document in part.documents()] == EXPECTED
    assert 0 < sum(fetched) < 0.2 * sum(part.size for part in parts)
