"""Corpus readers: local and remote files, TensorFlow and Hugging Face datasets, and bertjax's two embedded corpora.

A corpus is a list of `Part`s sorted by name, each a file plus a `Format` that reads it in constant memory. To add a
format, write a class with `documents` and register its suffix in `files.py`. To add a place, write a function that
lists parts and register its prefix in `PLACES`.
"""

import dataclasses
from collections.abc import Iterator

from bertjax.data.sources import files, published
from bertjax.data.sources.base import GROUP_FIELD, Document, OfFields, OnBad, OnRead, Part, stop
from bertjax.runtime.errors import UserError

__all__ = ["Document", "Part", "documents", "parts", "stop"]

PLACES = {"embedded": files.embedded, "tfds": published.tfds_parts, "hf": published.hub_parts}


def parts(corpus: str, text_field: str, group_field: str = "") -> list[Part]:
    """List a corpus's parts, sorted by name.

    Args:
      corpus: `embedded:en`, `embedded:ko`; a file, folder or glob, local or remote (`gs://...`), with .txt, .jsonl
        (each plain, .gz, .zst or .xz) and .parquet; `tfds:NAME/CONFIG[:SPLIT]`; `hf:OWNER/NAME[/CONFIG][:SPLIT]` or
        `hf:FOLDER[:SPLIT]`.
      text_field: field, column or feature that holds a document; .txt files have none.
      group_field: field that names a document's unit (`Document.unit`); empty if there is none.

    Raises:
      UserError: the corpus does not exist, has no file in a known format, or needs a library that is not installed.
    """
    place, _, name = corpus.partition(":")
    # `gs://bucket` also has a colon: two slashes after it mean a file system, not a place.
    if place in PLACES and not name.startswith("//"):
        unsorted = PLACES[place](name, text_field)
    else:
        unsorted = files.parts(corpus, text_field)
    if group_field:
        unsorted = [_with_group_field(part, group_field) for part in unsorted]
    return sorted(unsorted, key=lambda part: part.name)


def _with_group_field(part: Part, group_field: str) -> Part:
    if not isinstance(part.format, OfFields):
        raise UserError(f"{part.path} is text without fields; remove {GROUP_FIELD}={group_field}, or write .jsonl")
    return dataclasses.replace(part, format=dataclasses.replace(part.format, group_field=group_field))


def documents(
    corpus: str, text_field: str, on_read: OnRead = lambda size: None, on_bad: OnBad = stop
) -> Iterator[Document]:
    """Yield all documents, one part after the other; see `parts` and `Part.documents`."""
    for part in parts(corpus, text_field):
        yield from part.documents(on_read, on_bad)
