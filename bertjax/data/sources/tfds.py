"""`tfds:NAME/CONFIG[:SPLIT]`: a TensorFlow Datasets dataset in ArrayRecord files, read without TensorFlow."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from etils import epath

from bertjax.data.sources import base
from bertjax.data.sources.base import Document, OfFields, OnBad, OnRead, Part
from bertjax.runtime.errors import Damaged
from bertjax.runtime.storage import reason_of

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


def parts(name: str, text_field: str) -> list[Part]:
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
