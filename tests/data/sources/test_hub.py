"""Data sets through the `datasets` library, from folders that the tests write."""

import json

import datasets
import pytest

from bertjax.data import sources
from bertjax.data.sources import Document
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


def test_a_local_folder(folder):
    documents = read(f"hf:{folder}", "body")
    assert documents[0] == Document("train-00000-of-00001.arrow", 1, "train 0 é")
    assert [document.text for document in documents] == [f"train {number} é" for number in range(2500)]
    assert texts(f"hf:{folder}:test", "body") == ["test 0 é", "test 1 é"]


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


def test_bytes_read_add_up_to_the_size(folder):
    steps = []
    (part,) = sources.parts(f"hf:{folder}", "body")
    assert sum(1 for _ in part.documents(steps.append)) == 2500
    assert sum(steps) == part.size and len(steps) > 2 and min(steps) >= 0


def test_the_fingerprint_does_not_depend_on_the_cache(folder, tmp_path, monkeypatch):
    def fingerprint(cache):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / cache)
        (part,) = sources.parts(f"hf:{folder}", "body")
        return part.fingerprint()

    first = fingerprint("one")
    assert fingerprint("two") == first
    (folder / "train.jsonl").write_text('{"id": 0, "body": "other"}\n')
    assert fingerprint("three") != first


def test_a_missing_data_set_is_named(folder, tmp_path):
    assert "cannot be loaded: Couldn't find any data file at" in error_of(f"hf:{tmp_path / 'none'}")
    assert "cannot be loaded: Couldn't reach 'nobody/nothing'" in error_of("hf:nobody/nothing")
    assert "has no split 'dev'; it has train, test" in error_of(f"hf:{folder}:dev", "body")
    assert "has no field 'text' (it has id, body)" in error_of(f"hf:{folder}")
    assert "column 'id' is of type int64" in error_of(f"hf:{folder}", "id")


def test_files_that_the_library_cannot_read(folder):
    (folder / "train.jsonl").write_text('{"id": 0, "body": "One."}\nno JSON\n')
    assert "cannot be loaded: An error occurred while generating the dataset (" in error_of(f"hf:{folder}", "body")


def test_a_bad_row_is_named_or_left_out(folder):
    (folder / "test.jsonl").unlink()
    (folder / "train.jsonl").write_text('{"body": "One."}\n{"body": null}\n{"body": ""}\n{"body": "Two."}\n')
    left, errors = skipping(f"hf:{folder}:train", "body")
    assert left == ["One.", "Two."]
    assert [fragment in error for fragment, error in zip(("arrow:2: field 'body' is null", "arrow:3"), errors)] == [
        True
    ] * 2


def test_a_cache_file_that_is_cut_short(folder):
    (part,) = sources.parts(f"hf:{folder}", "body")
    part.path.write_bytes(part.path.read_bytes()[:50_000])
    errors = []
    left = list(part.documents(on_bad=errors.append))
    assert 0 < len(left) < 2500 and len(errors) == 1 and "is cut short, damaged" in str(errors[0])
