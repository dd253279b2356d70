"""Corpora: files become documents, in an order fixed by file name and with constant memory."""

import dataclasses
import glob
import gzip
import hashlib
import importlib.resources
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from bertjax.errors import UserError

EMBEDDED = ("en", "ko")
MIB = 1 << 20
WHOLE_BYTES = 64 * MIB
SAMPLED_BLOCKS = 64


@dataclasses.dataclass(frozen=True)
class Document:
    """One document; `id` is `file:line` of its first line."""

    id: str
    text: str


@dataclasses.dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus; `name` is its path relative to the deepest folder that holds the whole corpus."""

    path: Path
    name: str

    def lines(self, on_read: Callable[[int], object]) -> Iterator[tuple[int, str]]:
        """Line numbers from 1 and lines without their ends; `on_read` hears how many bytes of the file were used up."""
        offset = used = 0
        try:
            with open(self.path, "rb") as raw:
                stream = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if self.path.suffix == ".gz" else raw
                for number, line in enumerate(stream, start=1):
                    yield number, self._decode(line, offset)
                    offset += len(line)
                    on_read(raw.tell() - used)
                    used = raw.tell()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{self.path} is cut short or no gzip file ({error}); fetch it again") from None
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from None

    def _decode(self, line: bytes, offset: int) -> str:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"byte {offset + error.start} is {line[error.start]:#04x}"
            raise UserError(f"{self.path} is not UTF-8: {where}; convert it, e.g. with iconv -t UTF-8") from None
        return (text.removeprefix("\ufeff") if offset == 0 else text).rstrip("\r\n")


@dataclasses.dataclass(frozen=True)
class TextFile:
    """Plain text: a blank line ends a document, a line is a sentence or a paragraph."""

    file: CorpusFile

    def documents(self, on_read: Callable[[int], object]) -> Iterator[Document]:
        first, paragraphs = 0, []
        for number, line in self.file.lines(on_read):
            if line.strip():
                first = first or number
                paragraphs.append(line)
            elif paragraphs:
                yield Document(f"{self.file.name}:{first}", "\n".join(paragraphs))
                first, paragraphs = 0, []
        if paragraphs:
            yield Document(f"{self.file.name}:{first}", "\n".join(paragraphs))


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """One JSON object a line; the field `text_field` holds the document, newlines separate its paragraphs."""

    file: CorpusFile
    text_field: str

    def documents(self, on_read: Callable[[int], object]) -> Iterator[Document]:
        for number, line in self.file.lines(on_read):
            if line.strip():
                yield Document(f"{self.file.name}:{number}", self._text(line, f"{self.file.path}:{number}"))

    def _text(self, line: str, where: str) -> str:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is no JSON ({error}); a .jsonl file holds one JSON object a line") from None
        if not isinstance(record, dict):
            raise UserError(f"{where} is no JSON object but {line[:40]!r}; write {{{self.text_field!r}: ...}}")
        if self.text_field not in record:
            fields = ", ".join(record) or "none"
            raise UserError(f"{where} has no field {self.text_field!r} (it has {fields}); set data.text_field")
        text = record[self.text_field]
        if not isinstance(text, str):
            raise UserError(f"{where}: field {self.text_field!r} is {str(text)[:40]!r}, no string; set data.text_field")
        if not text.strip():
            raise UserError(f"{where}: field {self.text_field!r} is blank; remove the line")
        if any("\ud800" <= character <= "\udfff" for character in set(text)):
            raise UserError(f"{where}: field {self.text_field!r} holds a lone surrogate, which is no text; remove it")
        return text


def documents(corpus: str, text_field: str, on_read: Callable[[int], object] = lambda size: None) -> Iterator[Document]:
    """Streams a corpus: `embedded:en`, `embedded:ko`, or a file, folder or glob of .txt, .jsonl, each plain or .gz.

    Args:
      on_read: called with the number of bytes on disk that were used up since the last call; the sum is `size(corpus)`.

    Raises:
      UserError: the corpus is missing or empty, or a file is not what its suffix says; file and line or byte are named.
    """
    for file in _files(corpus):
        reader = TextFile(file) if _format(file.path) == ".txt" else JsonLines(file, text_field)
        empty = True
        for document in reader.documents(on_read):
            empty = False
            yield document
        if empty:
            raise UserError(f"{file.path} is empty; remove it from the corpus or fill it")


def size(corpus: str) -> int:
    """Bytes of the corpus on disk."""
    return sum(file.path.stat().st_size for file in _files(corpus))


def fingerprint(corpus: str) -> str:
    """SHA-256 over names, sizes and content: whole for a file up to 64 MiB, else 64 evenly spaced blocks of 1 MiB."""
    digest = hashlib.sha256()
    for file in _files(corpus):
        length = file.path.stat().st_size
        digest.update(f"{file.name}\0{length}\0".encode())
        whole = length <= WHOLE_BYTES
        offsets = (0,) if whole else [i * (length - MIB) // (SAMPLED_BLOCKS - 1) for i in range(SAMPLED_BLOCKS)]
        try:
            with open(file.path, "rb") as raw:
                for offset in offsets:
                    raw.seek(offset)
                    digest.update(raw.read(WHOLE_BYTES if whole else MIB))
        except OSError as error:
            raise UserError(f"{file.path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _format(path: Path) -> str:
    """`.txt`, `.jsonl`, or '' for a file of another kind."""
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    return suffix if suffix in (".txt", ".jsonl") else ""


def _files(corpus: str) -> list[CorpusFile]:
    paths = [path for path in _paths(corpus) if _format(path)]
    if not paths:
        raise UserError(f"corpus {corpus!r} holds no .txt, .txt.gz, .jsonl or .jsonl.gz file; name one that does")
    root = os.path.commonpath([path.parent for path in paths])
    files = (CorpusFile(path, path.relative_to(root).as_posix()) for path in paths)
    return sorted(files, key=lambda file: file.name)


def _paths(corpus: str) -> list[Path]:
    kind, _, name = corpus.partition(":")
    if kind == "embedded":
        if name not in EMBEDDED:
            raise UserError(f"corpus {corpus!r} is unknown; embedded are {', '.join(EMBEDDED)}")
        return [Path(str(importlib.resources.files("bertjax.data") / "embedded" / f"{name}.jsonl.gz"))]
    path = Path(corpus).expanduser()
    if path.is_file():
        return [path.absolute()]
    if path.is_dir():
        return [member.absolute() for member in path.rglob("*") if member.is_file()]
    matches = [Path(match).absolute() for match in glob.glob(str(path), recursive=True) if os.path.isfile(match)]
    if not matches:
        raise UserError(f"corpus {corpus!r} does not exist; name a file, a folder, a glob, or embedded:en")
    return matches
