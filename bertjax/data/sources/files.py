"""Corpora from files, folders and globs, local or remote, and the embedded ones."""

import collections
import functools
import glob
import importlib.resources
import os
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

from etils import epath

from bertjax.data.sources.base import Format, Part, foreign
from bertjax.data.sources.records import COMPRESSIONS, JsonLines, Parquet, Text
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, shorten

EMBEDDED = ("en", "ko")
KINDS = ".txt, .jsonl (each plain, .gz, .zst or .xz) or .parquet"
# Published corpora: BabyLM's splits are text, and C4's and Dolma's compressed .json files hold JSON lines. A plain
# .json is mostly a settings file.
_TEXT_SUFFIXES = (".txt", ".train", ".dev", ".test", ".valid")
_REMEDY = "name one that does, rename text to .txt and JSON lines to .jsonl, or write hf:FOLDER for .arrow files"


def parts(corpus: str, text_field: str) -> list[Part]:
    """List the readable files under a file, folder or glob; names are relative to their deepest common folder.

    Links to folders are followed. Other kinds of files are left out, and one line on stderr counts them. Names that
    start with a dot (`.git`, `.ipynb_checkpoints`) are left out, as globs do.

    Raises:
      UserError: there is no file, or no readable kind, or a folder cannot be read.
    """
    paths = _paths(corpus)
    readable = [(path, format) for path in paths if (format := _format(path.name, text_field))]
    if not readable:
        raise UserError(f"corpus {corpus!r} holds no {KINDS} file; {_REMEDY}")
    if others := [path.name for path in paths if not _format(path.name, text_field)]:
        _report(f"corpus {corpus!r}: {_count(others)} left out; {KINDS} files are read")
    # Relative names, so that a corpus that was moved is the same corpus.
    root = os.path.commonpath([PurePosixPath(path).parent for path, _ in readable])
    return [Part(path, _name(path, root), _size(path), format) for path, format in readable]


def _name(path: epath.Path, root: str) -> str:
    name = PurePosixPath(path).relative_to(root).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError(f"the file name {os.fspath(path)!r} is not UTF-8; rename the file") from None
    return name


def _size(path: epath.Path) -> int:
    with foreign(f"{path} cannot be read", "check the path and your rights"):
        size = storage.retry(lambda: path.stat().length, path)
    if not storage.is_remote(path) and not os.path.isfile(path):  # opening a pipe may wait forever
        raise UserError(f"{path} is a pipe, a socket or a device; copy its content to a file")
    return size


def _count(names: list[str]) -> str:
    """Return the file count, in total and by suffix: `3 files of other kinds (2 .json.gz, 1 .md)`."""
    suffixes = collections.Counter(_suffix(name) for name in names)
    kinds = [f"{count:,} {suffix}" for suffix, count in suffixes.most_common()]
    return f"{len(names):,} file{'s' * (len(names) > 1)} of other kinds ({shorten(kinds)})"


def _suffix(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return (os.path.splitext(stem)[1] if suffix in COMPRESSIONS else "") + suffix or name


@functools.cache
def _report(line: str) -> None:
    """Print a line only once: a corpus is listed for its fingerprint and again for reading."""
    print(line, file=sys.stderr, flush=True)


def embedded(name: str, text_field: str) -> list[Part]:
    """Return the single part of an embedded corpus.

    Raises:
      UserError: there is no such corpus.
    """
    if name not in EMBEDDED:
        raise UserError(f"corpus 'embedded:{name}' is unknown; choose one of {', '.join(EMBEDDED)}")
    return parts(str(importlib.resources.files("bertjax.data") / "embedded" / f"{name}.jsonl.gz"), text_field)


def _format(name: str, text_field: str) -> Format | None:
    """Return the reader for a file name, or None for other kinds."""
    stem, suffix = os.path.splitext(name.lower())
    if suffix == ".parquet":
        return Parquet(text_field)
    kind = os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix
    if kind in _TEXT_SUFFIXES:
        return Text()
    if kind == ".jsonl" or (kind == ".json" and suffix in COMPRESSIONS):
        return JsonLines(text_field)
    return None


def _paths(corpus: str) -> list[epath.Path]:
    """List everything that is not a folder, including broken links and special files, which are refused later."""
    with foreign(f"corpus {corpus!r} cannot be read", "name a file, a folder, a glob, or embedded:en"):
        if "://" in corpus:
            paths = storage.retry(lambda: list(_remote(corpus)), storage.place_of(corpus))
        else:
            paths = list(_local(corpus))
    if not paths:
        raise UserError(f"corpus {corpus!r} does not exist; name a file, a folder, a glob, or embedded:en")
    return paths


def _local(corpus: str) -> Iterator[epath.Path]:
    path = os.path.abspath(os.path.expanduser(corpus))
    if os.path.isdir(path):
        yield from _below(path, ())
    elif os.path.lexists(path):  # literal names first: `corpus[1].txt` is a file before it is a pattern
        yield epath.Path(path)
    else:
        matches = glob.glob(path, recursive=True)
        folders = list(filter(os.path.isdir, matches))
        if folders and "**" not in path:  # which matches folders on its way to their files
            read_them = "end it with /** to read the files in them"
            if len(folders) == len(matches):
                raise UserError(f"corpus {corpus!r} matches folders only; {read_them}")
            _report(f"corpus {corpus!r}: {len(folders):,} folders left out; {read_them}")
        yield from (epath.Path(match) for match in matches if not os.path.isdir(match))


def _below(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[epath.Path]:
    """Yield all files below a folder, skipping links back to a folder in `above` (device and inode)."""
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:  # links may form a cycle
        return
    for name in sorted(name for name in os.listdir(folder) if not name.startswith(".")):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from _below(path, (*above, here))
        else:
            yield epath.Path(path)


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
    """Yield all files below an object-store folder, which may list itself."""
    for path in folder.iterdir():
        if path != folder and path.name.startswith("."):
            continue
        if path.is_dir():
            if path != folder:
                yield from _members(path)
        else:
            yield path
