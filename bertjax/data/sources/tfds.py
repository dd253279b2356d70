"""`tfds:NAME/CONFIG[:SPLIT]`: a data set of TensorFlow Datasets in ArrayRecord files, read without TensorFlow."""

import dataclasses
from collections.abc import Iterator

from etils import epath

from bertjax.data.sources.access import extra, foreign
from bertjax.data.sources.base import Document, OnBad, OnRead, Part, no_field, sized, text_of, unit_of
from bertjax.errors import Damaged, UserError
from bertjax.storage import reason_of

RECORDS = 64  # read at once


@dataclasses.dataclass(frozen=True)
class ArrayRecords:
    """Consecutive records of a split: those in one file. A record is a document.

    Attributes:
      dataset: `NAME/CONFIG`.
      split: name of the split.
      first: number of the first record within the split, from 0.
      count: number of records.
      text_field: the feature that holds the document.
      group_field: the feature that holds its unit; empty if there is none.
    """

    dataset: str
    split: str
    first: int
    count: int
    text_field: str
    group_field: str = ""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        source = _open(self.dataset, self.split)
        features = source.dataset_info.features
        for start in range(0, self.count, RECORDS):
            stop = min(start + RECORDS, self.count)
            try:
                records = source.data_source.__getitems__(list(range(self.first + start, self.first + stop)))
            except Exception as error:  # the C++ reader has no exception type of its own
                raise _damaged(part, reason_of(error)) from None
            if b"" in records:  # what that reader returns for a file that was cut between two blocks
                raise _damaged(part, "a record is missing")
            for number, record in enumerate(records, start=start + 1):
                example, where = features.deserialize_example_np(record), f"{part.path}:{number}"
                value = example[self.text_field]
                try:
                    text, unit = text_of(value, where, self.text_field), unit_of(example, self.group_field, where)
                except UserError as error:
                    on_bad(sized(error, len(value) if isinstance(value, bytes) else 0))
                else:
                    yield Document(part.name, number, text, unit)
            progress(part.size * stop // self.count)


def parts(name: str, text_field: str) -> list[Part]:
    """Return the files of a split under `TFDS_DATA_DIR`, after preparing them if needed (which may take TensorFlow).

    Args:
      name: `NAME/CONFIG[:SPLIT]`; the default split is `train`, and any slice of TFDS is allowed.

    Raises:
      UserError: there is no such data set, configuration, split or field.
    """
    dataset, _, split = name.partition(":")
    split = split or "train"
    source = _open(dataset, split)
    if text_field not in source.dataset_info.features:
        raise no_field(f"corpus 'tfds:{name}'", text_field, sorted(source.dataset_info.features))
    parts, first = [], 0
    for piece in source.dataset_info.splits[split].file_instructions:
        path = epath.Path(piece.filename)
        whole = piece.take == piece.examples_in_shard
        label = path.name if whole else f"{path.name}[{piece.skip}:{piece.skip + piece.take}]"
        records = ArrayRecords(dataset, split, first, piece.take, text_field)
        parts.append(Part(path, label, path.stat().length, records))
        first += records.count
    return parts


def _open(dataset: str, split: str):
    """Return the random-access source of a split."""
    with extra(f"corpus 'tfds:{dataset}'"):
        import tensorflow_datasets
    remedy = "name tfds:NAME/CONFIG[:SPLIT] and set TFDS_DATA_DIR to the folder that holds it in ArrayRecord files"
    with foreign(f"corpus 'tfds:{dataset}:{split}' cannot be opened", remedy):
        return tensorflow_datasets.data_source(dataset, split=split)


def _damaged(part: Part, reason: str) -> Damaged:
    return Damaged(f"{part.path} is cut short or damaged ({reason}); prepare it again with TFDS")
