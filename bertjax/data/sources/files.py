"""Files, folders and globs, local or remote, and the corpora that come with bertjax."""

import glob
import importlib.resources
import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from etils import epath

from bertjax import storage
from bertjax.data.sources.access import foreign
from bertjax.data.sources.base import Format, Part
from bertjax.data.sources.lines import COMPRESSIONS, JsonLines, Text
from bertjax.data.sources.tables import Parquet
from bertjax.errors import UserError

EMBEDDED = ("en", "ko")
KINDS = ".txt, .jsonl (each plain, .gz, .zst or .xz) or .parquet"


def parts(corpus: str, text_field: str) -> list[Part]:
    """Return the readable files of a file, folder or glob; names are relative to their deepest common folder.

    Raises:
      UserError: there is no file, or none of a known kind, or a folder cannot be read.
    """
    readable = [(path, format) for path in _paths(corpus) if (format := _format(path.name, text_field))]
    if not readable:
        raise UserError(f"corpus {corpus!r} holds no {KINDS} file; name one that does")
    root = os.path.commonpath([PurePosixPath(path).parent for path, _ in readable])
    parts = []
    for path, format in readable:
        with foreign(f"{path} cannot be read"):
            size = storage.retry(path.stat, path).length
        parts.append(Part(path, PurePosixPath(path).relative_to(root).as_posix(), size, format))
    return parts


def embedded(name: str, text_field: str) -> list[Part]:
    """Return the part of a corpus that comes with bertjax.

    Raises:
      UserError: there is no such corpus.
    """
    if name not in EMBEDDED:
        raise UserError(f"corpus 'embedded:{name}' is unknown; choose one of {', '.join(EMBEDDED)}")
    return parts(str(importlib.resources.files("bertjax.data") / "embedded" / f"{name}.jsonl.gz"), text_field)


def _format(name: str, text_field: str) -> Format | None:
    """Return the format of a file with this name, or None if it is of another kind."""
    stem, suffix = os.path.splitext(name)
    if suffix == ".parquet":
        return Parquet(text_field)
    kind = os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix
    return {".txt": Text(), ".jsonl": JsonLines(text_field)}.get(kind)


def _paths(corpus: str) -> list[epath.Path]:
    with foreign(f"corpus {corpus!r} cannot be read"):
        if "://" in corpus:
            paths = storage.retry(lambda: list(_remote(corpus)), corpus)
        else:
            paths = list(_local(corpus))
    if not paths:
        raise UserError(f"corpus {corpus!r} does not exist; name a file, a folder, a glob, or embedded:en")
    return paths


def _local(corpus: str) -> Iterator[epath.Path]:
    def fail(error: OSError):
        raise error

    path = os.path.abspath(os.path.expanduser(corpus))
    if os.path.isdir(path):
        for folder, _, names in os.walk(path, onerror=fail):
            yield from (epath.Path(folder) / name for name in names if os.path.isfile(os.path.join(folder, name)))
    elif os.path.isfile(path):
        yield epath.Path(path)
    else:
        yield from (epath.Path(match) for match in glob.glob(path, recursive=True) if os.path.isfile(match))


def _remote(corpus: str) -> Iterator[epath.Path]:
    scheme, _, place = corpus.partition("://")
    bucket, _, inside = place.partition("/")
    path = epath.Path(corpus)
    if path.is_dir():
        yield from _members(path)
    elif path.exists():
        yield path
    elif glob.has_magic(inside):
        yield from epath.Path(f"{scheme}://{bucket}").glob(inside)


def _members(folder: epath.Path) -> Iterator[epath.Path]:
    """Yield all files below a folder of an object store. Such a folder may list itself."""
    for path in folder.iterdir():
        if path.is_dir():
            if path != folder:
                yield from _members(path)
        else:
            yield path
