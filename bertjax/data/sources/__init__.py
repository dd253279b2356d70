"""Corpora: whatever holds text becomes documents, in an order fixed by name and with constant memory.

A corpus is a list of `Part`s, each a file with a `Format` that reads it. A new format is one class with `documents` and
the line in `files.py` that names its suffix; a new place is one function that finds parts, and its prefix in `PLACES`.
"""

from collections.abc import Iterator

from bertjax.data.sources import files, hub, tfds
from bertjax.data.sources.base import Document, OnBad, OnRead, Part, stop

__all__ = ["Document", "Part", "documents", "parts", "stop"]

PLACES = {"embedded": files.embedded, "tfds": tfds.parts, "hf": hub.parts}


def parts(corpus: str, text_field: str) -> list[Part]:
    """The parts of a corpus, sorted by name.

    Args:
      corpus: `embedded:en`, `embedded:ko`; a file, folder or glob of .txt, .jsonl (each plain, .gz, .zst or .xz) and
        .parquet, local or remote (`gs://...`); `tfds:NAME/CONFIG[:SPLIT]`; `hf:OWNER/NAME[/CONFIG][:SPLIT]` or
        `hf:FOLDER[:SPLIT]`.
      text_field: the field, column or feature that holds a document; .txt has none.

    Raises:
      UserError: the corpus does not exist, holds nothing that can be read, or needs a library that is not installed.
    """
    place, _, name = corpus.partition(":")
    if place in PLACES and not name.startswith("//"):
        found = PLACES[place](name, text_field)
    else:
        found = files.parts(corpus, text_field)
    return sorted(found, key=lambda part: part.name)


def documents(
    corpus: str, text_field: str, on_read: OnRead = lambda size: None, on_bad: OnBad = stop
) -> Iterator[Document]:
    """Streams the documents of all parts, one part after the other; see `parts` and `Part.documents`."""
    for part in parts(corpus, text_field):
        yield from part.documents(on_read, on_bad)
