"""Published datasets: `hf:NAME[:SPLIT]`, of the Hugging Face hub or in a local folder, and `tfds:NAME/CONFIG[:SPLIT]`.

Parquet files are read in place, text column only: a terabyte dataset needs no disk, and preparation starts after the
first file. The `datasets` library first converts files in other formats. Those of TensorFlow Datasets are ArrayRecord
files, read without TensorFlow.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any, cast

import fsspec
from etils import epath

from bertjax.data.sources import base
from bertjax.data.sources.base import Document, OfFields, OnBad, OnRead, Part, extra, foreign, no_field
from bertjax.data.sources.records import ArrowStream, Parquet
from bertjax.runtime import storage, untrusted
from bertjax.runtime.errors import Damaged, UserError
from bertjax.runtime.storage import reason_of

# Marks a folder that `Dataset.save_to_disk` wrote.
_STATE = "state.json"
REMEDY = "name hf:OWNER/NAME[/CONFIG][:SPLIT] or hf:FOLDER[:SPLIT]"


@dataclasses.dataclass(frozen=True)
class HubFile:
    """A file at an `fsspec` URL, such as `hf://datasets/OWNER/NAME@REVISION/FILE`, fetched by byte ranges."""

    url: str

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return self.url

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open the file. Errors are whatever the URL scheme's library raises."""
        system, path = fsspec.core.url_to_fs(self.url)
        return system.open(path, mode)

    @functools.cached_property
    def information(self) -> dict:
        """Directory entry: `size`, and on the hub `blob_id`, a content hash."""
        system, path = fsspec.core.url_to_fs(self.url)
        return system.info(path)


@dataclasses.dataclass(frozen=True)
class HubPart(Part):
    """A hub file. The hub lists its content hash, so computing the fingerprint fetches nothing."""

    checksum: str = ""

    def fingerprint(self) -> str:
        if not self.checksum:
            return super().fingerprint()
        return hashlib.sha256(f"{self.name}\0{self.size}\0{self.checksum}".encode()).hexdigest()


def hub_parts(name: str, text_field: str) -> list[Part]:
    """List the files in a split.

    Args:
      name: `OWNER/NAME[/CONFIG][:SPLIT]`, or `FOLDER[:SPLIT]` for a local folder; the default split is `train`.

    Raises:
      UserError: there is no such dataset, configuration, split or field.
    """
    corpus = f"corpus 'hf:{name}'"
    name, _, named_split = name.partition(":")
    split = named_split or "train"
    path, config = _path_and_config(name)
    if os.path.exists(os.path.join(path, _STATE)):
        return _saved_parts(path, corpus, named_split, text_field)
    with extra(corpus):
        import datasets
        from datasets.packaged_modules.parquet.parquet import Parquet as ParquetBuilder
    with foreign(f"{corpus} cannot be loaded", REMEDY):
        builder = datasets.load_dataset_builder(path, config)
        # Parquet is read in place; anything else goes through the library's Arrow cache, a second copy on disk.
        if isinstance(builder, ParquetBuilder) and builder.config.data_files:
            files = {str(name): list(urls) for name, urls in builder.config.data_files.items()}
            _require_split(corpus, split, list(files))
            return _parquet_parts(files[split], text_field)
        splits = datasets.load_dataset(path, config)
    _require_split(corpus, split, list(splits))
    if text_field not in splits[split].column_names:
        raise no_field(corpus, text_field, splits[split].column_names)
    files = [epath.Path(file["filename"]) for file in splits[split].cache_files]
    names = [f"{split}-{index:05d}-of-{len(files):05d}.arrow" for index in range(len(files))]
    return [Part(file, name, file.stat().length, ArrowStream(text_field)) for file, name in zip(files, names)]


def _require_split(corpus: str, split: str, splits: list[str]) -> None:
    if split not in splits:
        raise UserError(f"{corpus} has no split {split!r}; it has {', '.join(splits)}")


def _parquet_parts(files: list[str], text_field: str) -> list[Part]:
    """Return parts for Parquet files, named relative to their deepest common folder."""
    root, parts = os.path.commonpath([PurePosixPath(file).parent for file in files]), []
    for file in files:
        name = PurePosixPath(file).relative_to(root).as_posix()
        if "://" not in file:
            path = epath.Path(file)
            parts.append(Part(path, name, path.stat().length, Parquet(text_field)))
            continue
        path = HubFile(file)
        information = storage.retry(lambda path=path: path.information, path)
        checksum = str(information.get("blob_id") or "")
        parts.append(HubPart(cast(epath.Path, path), name, information["size"], Parquet(text_field), checksum))
    return parts


def _saved_parts(folder: str, corpus: str, split: str, text_field: str) -> list[Part]:
    """Return one split written by `Dataset.save_to_disk`, which `datasets.load_dataset` does not open."""
    with foreign(f"{corpus} cannot be loaded", f"save the data set again, or delete {_STATE}"):
        state = untrusted.read_json(os.path.join(folder, _STATE))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):  # select() and shuffle() only store row numbers beside the full table
            raise ValueError("its rows are a selection; save it after flatten_indices()")
        # The file may be foreign: it must not point outside its own folder.
        if odd := [name for name in names if os.path.basename(name) != name]:
            raise ValueError(f"{odd[0]!r} is not a file in it")
        files = [epath.Path(os.path.join(folder, name)) for name in names]
        sizes = [file.stat().length for file in files]
    # A saved dataset has a single split, so a name is only a check.
    if split and split != (own := state.get("_split") or "train"):
        raise UserError(f"{corpus} has no split {split!r}; it has {own}")
    return [Part(file, file.name, size, ArrowStream(text_field)) for file, size in zip(files, sizes, strict=True)]


def _path_and_config(name: str) -> tuple[str, str | None]:
    """Return the arguments that `datasets.load_dataset` calls path and name."""
    if name.startswith(("/", "~", ".")) or os.path.isdir(name):
        return os.path.expanduser(name), None
    # OWNER/NAME/CONFIG: everything after the second slash is the configuration.
    owner_and_name, config = name.split("/")[:2], name.split("/")[2:]
    return "/".join(owner_and_name), "/".join(config) or None


RECORDS = 64  # records per read


@dataclasses.dataclass(frozen=True)
class ArrayRecords(OfFields):
    """Reader for one file in a split: consecutive records, each a document.

    Attributes:
      dataset: `NAME/CONFIG`.
      split: split name.
      first: index of the first record within the split, from 0.
      count: number of records.
    """

    dataset: str
    split: str
    first: int
    count: int

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        source = _open(self.dataset, self.split)
        features = source.dataset_info.features
        for start in range(0, self.count, RECORDS):
            stop = min(start + RECORDS, self.count)
            try:
                records = source.data_source.__getitems__(list(range(self.first + start, self.first + stop)))
            except Exception as error:  # the C++ reader has no exception type of its own
                raise _damaged(part, reason_of(error)) from None
            if b"" in records:  # the reader returns this, without an error, if a file was cut between two blocks
                raise _damaged(part, "a record is missing")
            examples = (features.deserialize_example_np(record) for record in records)
            items = ((number, example, self._size(example)) for number, example in enumerate(examples, start + 1))
            yield from base.documents_of(part, items, self._read, on_bad)
            progress(part.size * stop // self.count)

    def _size(self, example: dict[str, Any]) -> int:
        value = example[self.text_field]
        return len(value) if isinstance(value, bytes) else 0

    def _read(self, example: dict[str, Any], where: str) -> tuple[str, str]:
        text = base.text_of(example[self.text_field], where, self.text_field)
        return text, base.unit_of(example, self.group_field, where)


def tfds_parts(name: str, text_field: str) -> list[Part]:
    """List a split's files under `TFDS_DATA_DIR`, preparing them first if needed (which may take TensorFlow).

    Args:
      name: `NAME/CONFIG[:SPLIT]`; the default split is `train`, and any TFDS slice is allowed.

    Raises:
      UserError: there is no such dataset, configuration, split or field.
    """
    dataset, _, split = name.partition(":")
    split = split or "train"
    source = _open(dataset, split)
    if text_field not in source.dataset_info.features:
        raise base.no_field(f"corpus 'tfds:{name}'", text_field, sorted(source.dataset_info.features))
    parts, first = [], 0
    for piece in source.dataset_info.splits[split].file_instructions:
        path = epath.Path(piece.filename)
        # Several slices may share a file, so the name of an incomplete one states its records.
        whole = piece.take == piece.examples_in_shard
        label = path.name if whole else f"{path.name}[{piece.skip}:{piece.skip + piece.take}]"
        records = ArrayRecords(text_field, dataset, split, first, piece.take)
        parts.append(Part(path, label, path.stat().length, records))
        first += records.count
    return parts


def _open(dataset: str, split: str):
    """Open a split for random access."""
    with base.extra(f"corpus 'tfds:{dataset}'"):
        import tensorflow_datasets
    remedy = "name tfds:NAME/CONFIG[:SPLIT] and set TFDS_DATA_DIR to the folder that holds it in ArrayRecord files"
    with base.foreign(f"corpus 'tfds:{dataset}:{split}' cannot be opened", remedy):
        return tensorflow_datasets.data_source(dataset, split=split)


def _damaged(part: Part, reason: str) -> Damaged:
    return Damaged(f"{part.path} is cut short or damaged ({reason}); prepare it again with TFDS")
