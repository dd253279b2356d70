"""Corpora as documents: files, data sets of TensorFlow and Hugging Face, and the two corpora that come with bertjax.

A corpus is a list of `Part`s in the order of their names, each a file with a `Format` that reads it in constant memory.
A new format is a class with `documents`, and a line in `files.py` with its suffix. A new place is a function that lists
parts, and its prefix in `PLACES`.
"""

import dataclasses
from collections.abc import Iterator

from bertjax.data.sources import files, hub, tfds
from bertjax.data.sources.base import GROUP_FIELD, Document, OnBad, OnRead, Part, stop
from bertjax.errors import UserError

__all__ = ["Document", "Part", "documents", "parts", "stop"]

PLACES = {"embedded": files.embedded, "tfds": tfds.parts, "hf": hub.parts}


def parts(corpus: str, text_field: str, group_field: str = "") -> list[Part]:
    """Return the parts of a corpus, sorted by name.

    Args:
      corpus: `embedded:en`, `embedded:ko`; a file, folder or glob of .txt, .jsonl (each plain, .gz, .zst or .xz) and
        .parquet, local or remote (`gs://...`); `tfds:NAME/CONFIG[:SPLIT]`; `hf:OWNER/NAME[/CONFIG][:SPLIT]` or
        `hf:FOLDER[:SPLIT]`.
      text_field: the field, column or feature that holds a document; .txt files have none.
      group_field: the one that holds the unit of a document (`Document.unit`); empty if there is none.

    Raises:
      UserError: the corpus does not exist, holds no file of a known format, or needs a library that is not installed.
    """
    place, _, name = corpus.partition(":")
    if place in PLACES and not name.startswith("//"):
        unsorted = PLACES[place](name, text_field)
    else:
        unsorted = files.parts(corpus, text_field)
    if group_field:
        unsorted = [_with_group_field(part, group_field) for part in unsorted]
    return sorted(unsorted, key=lambda part: part.name)


def _with_group_field(part: Part, group_field: str) -> Part:
    if not hasattr(part.format, "group_field"):
        raise UserError(f"{part.path} is text without fields; remove {GROUP_FIELD}={group_field}, or write .jsonl")
    return dataclasses.replace(part, format=dataclasses.replace(part.format, group_field=group_field))


def documents(
    corpus: str, text_field: str, on_read: OnRead = lambda size: None, on_bad: OnBad = stop
) -> Iterator[Document]:
    """Yield the documents of all parts, one part after the other; see `parts` and `Part.documents`."""
    for part in parts(corpus, text_field):
        yield from part.documents(on_read, on_bad)
