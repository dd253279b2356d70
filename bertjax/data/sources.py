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


def stop(error: UserError):
    """Lets no bad document pass."""
    raise error


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

    def documents(self, on_read: Callable[[int], object], on_bad: Callable[[UserError], object]) -> Iterator[Document]:
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

    def documents(self, on_read: Callable[[int], object], on_bad: Callable[[UserError], object]) -> Iterator[Document]:
        for number, line in self.file.lines(on_read):
            if line.strip():
                try:
                    text = self._text(line, f"{self.file.path}:{number}")
                except UserError as error:
                    on_bad(error)
                else:
                    yield Document(f"{self.file.name}:{number}", text)

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


@dataclasses.dataclass(frozen=True)
class Part:
    """One file of a corpus."""

    file: CorpusFile
    text_field: str

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int:
        return self.file.path.stat().st_size

    def documents(
        self, on_read: Callable[[int], object] = lambda size: None, on_bad: Callable[[UserError], object] = stop
    ) -> Iterator[Document]:
        """Streams the documents."""
        reader = TextFile(self.file) if _format(self.file.path) == ".txt" else JsonLines(self.file, self.text_field)
        empty = True
        for document in reader.documents(on_read, on_bad):
            empty = False
            yield document
        if empty:
            raise UserError(f"{self.file.path} is empty; remove it from the corpus or fill it")

    def fingerprint(self) -> str:
        """SHA-256 over name, size and content: whole up to 64 MiB, else 64 evenly spaced blocks of 1 MiB."""
        digest = hashlib.sha256(f"{self.name}\0{self.size}\0".encode())
        whole = self.size <= WHOLE_BYTES
        offsets = (0,) if whole else [i * (self.size - MIB) // (SAMPLED_BLOCKS - 1) for i in range(SAMPLED_BLOCKS)]
        try:
            with open(self.file.path, "rb") as raw:
                for offset in offsets:
                    raw.seek(offset)
                    digest.update(raw.read(WHOLE_BYTES if whole else MIB))
        except OSError as error:
            raise UserError(f"{self.file.path} cannot be read: {error.strerror}") from None
        return digest.hexdigest()


def parts(corpus: str, text_field: str) -> list[Part]:
    """The files of a corpus: `embedded:en`, `embedded:ko`, or a file, folder or glob of .txt, .jsonl, plain or .gz."""
    return [Part(file, text_field) for file in _files(corpus)]


def documents(corpus: str, text_field: str, on_read: Callable[[int], object] = lambda size: None) -> Iterator[Document]:
    """Streams a corpus."""
    for part in parts(corpus, text_field):
        yield from part.documents(on_read)


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
