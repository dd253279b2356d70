"""TensorFlow Datasets without TensorFlow, read from a data set that the tests build."""

import sys

import pytest
import tensorflow_datasets as tfds

from bertjax.data import sources
from bertjax.data.sources import Document
from tests.data.sources.reading import error_of, read, skipping, texts


class BertjaxLetters(tfds.core.GeneratorBasedBuilder):
    """Numbered texts, and texts with a few bad ones among them."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ("good", "bad")]

    def _info(self):
        features = {"body": tfds.features.Text(), "id": tfds.features.Text()}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, download_manager):
        if self.builder_config.name == "bad":
            return {"train": self._generate_examples([b"One.", b"", b"a\xff", b"Two."])}
        return {
            "train": self._generate_examples([f"Text {number} é.".encode() for number in range(150)]),
            "test": self._generate_examples([b"Test."] * 3),
        }

    def _generate_examples(self, contents):
        yield from ((number, {"body": text, "id": str(number)}) for number, text in enumerate(contents))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    for config in ("good", "bad"):
        builder = BertjaxLetters(data_dir=folder, config=config, file_format="array_record")
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(num_shards=3 if config == "good" else 1)
        )
    return folder


@pytest.fixture(autouse=True)
def environment(folder, monkeypatch):
    """The state of a process that starts with TFDS_DATA_DIR and does not know the builder."""
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(folder))
    monkeypatch.delitem(tfds.core.registered._DATASET_REGISTRY, "bertjax_letters")


def test_each_shard_of_a_split_is_a_part(folder):
    parts = sources.parts("tfds:bertjax_letters/good", "body")
    names = [f"bertjax_letters-train.array_record-0000{shard}-of-00003" for shard in range(3)]
    assert [part.name for part in parts] == names
    documents = read("tfds:bertjax_letters/good", "body")
    assert sorted(document.text for document in documents) == sorted(f"Text {number} é." for number in range(150))
    assert documents[0].id == f"{names[0]}:1" and documents[-1].id.startswith(f"{names[2]}:")
    assert read("tfds:bertjax_letters/good:test", "body") == [
        Document(f"bertjax_letters-test.array_record-0000{shard}-of-00003", 1, "Test.") for shard in range(3)
    ]


def test_slices_and_bytes_of_a_split():
    whole, slice = texts("tfds:bertjax_letters/good", "body"), texts("tfds:bertjax_letters/good:train[10:70]", "body")
    assert slice == whole[10:70]
    names = [part.name for part in sources.parts("tfds:bertjax_letters/good:train[10:70]", "body")]
    assert names[0].endswith("-00000-of-00003[10:50]") and names[1].endswith("-00001-of-00003[0:20]")
    for part in sources.parts("tfds:bertjax_letters/good", "body"):
        steps = []
        list(part.documents(steps.append))
        assert sum(steps) == part.size == part.path.stat().length
    assert "tensorflow" not in sys.modules
    assert "Dataset bertjax_nothing not found" in error_of("tfds:bertjax_nothing/good")
    assert "cannot be opened" in error_of("tfds:bertjax_letters/other")
    assert "Unknown split 'dev'. Should be one of" in error_of("tfds:bertjax_letters/good:dev", "body")
    assert "has no field 'text' (it has body, id)" in error_of("tfds:bertjax_letters/good")
    left, errors = skipping("tfds:bertjax_letters/bad", "body")
    assert sorted(left) == ["One.", "Two."]
    assert sorted("blank" in error for error in errors) == [False, True]
    assert sum("is not UTF-8: its byte 1 is 0xff" in error for error in errors) == 1


@pytest.mark.parametrize("kept", [1 / 2, 0.999])  # 1/2 keeps whole blocks, so the reader raises no error
def test_a_file_that_is_cut_short(kept):
    part, *_ = sources.parts("tfds:bertjax_letters/good", "body")
    whole = part.path.read_bytes()
    part.path.write_bytes(whole[: int(len(whole) * kept)])
    try:
        errors = []
        list(part.documents(on_bad=errors.append))
        assert len(errors) == 1 and f"{part.path} is cut short or damaged" in str(errors[0])
    finally:
        part.path.write_bytes(whole)
