"""The token store: a corpus as flat, memory-mapped token ids with sentence and document offsets.

A store is a folder with `{train,heldout}.{tokens,sentences,documents,unigrams}.bin`, `tokenizer/` and, written last,
`manifest.json`.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import mmap
import os
from pathlib import Path

import numpy as np
from etils import epath

from bertjax.data import remote, tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError, check_format
from bertjax.runtime.storage import exists, is_remote

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
SPLITS = ("train", "heldout")
PARTS = ("tokens", "sentences", "documents")
# Occurrences of each token id in a split, int64, up to the highest id that occurs.
UNIGRAMS = "unigrams"
# Counts in the manifest per split and source; bytes are bytes of UTF-8 text.
COUNTS = ("documents", "sentences", "words", "tokens", "unk", "bytes", "characters")
# The byte order is fixed, because stores are copied between machines.
OFFSET_DTYPE = np.dtype("<i8")
MIB = 1 << 20
COUNTED_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Split:
    """A store's training or held-out split, or one source's documents in it.

    Pickled without its memory maps; another process opens them again.

    Attributes:
      folder: store folder.
      name: `train` or `heldout`.
      token_dtype: numpy dtype string for token ids.
      range: first document and the one after the last; None for the whole split.
    """

    folder: Path
    name: str
    token_dtype: str
    range: tuple[int, int] | None = None

    def __reduce__(self):
        # The default would pickle the cached memory maps with all of their content.
        return Split, (self.folder, self.name, self.token_dtype, self.range)

    @functools.cached_property
    def tokens(self) -> np.memmap:
        """Token ids from all sources, without special symbols: uint16 or uint32 [tokens]."""
        return self._map("tokens", self.token_dtype)

    @functools.cached_property
    def sentences(self) -> np.memmap:
        """Offset in `tokens` per sentence, for all sources, then the number of tokens: int64 [S+1]."""
        return self._map("sentences", OFFSET_DTYPE)

    @functools.cached_property
    def documents(self) -> np.ndarray:
        """Offset in `sentences` per document, then the end of the last one: int64 [D+1].

        With a `range`, only its documents; then the first offset may not be 0.
        """
        documents = self._map("documents", OFFSET_DTYPE)
        return documents if self.range is None else documents[self.range[0] : self.range[1] + 1]

    def _map(self, part: str, dtype: str | np.dtype) -> np.memmap:
        return np.memmap(self.folder / f"{self.name}.{part}.bin", dtype=dtype, mode="r")


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """A prepared corpus. `open` checks it; it is cheap to pickle.

    Attributes:
      path: local folder.
      manifest: parsed `manifest.json`.
      origin: URL that the folder was copied from; empty for a local store.
    """

    path: Path
    manifest: dict
    origin: str = ""

    def __reduce__(self):
        # Constructed directly: a worker neither checks the store again nor receives the cached tokenizer.
        return TokenStore, (self.path, self.manifest, self.origin)

    @classmethod
    def open(cls, path: epath.PathLike, verify: bool = False, cache_dir: str = "") -> "TokenStore":
        """Open a store after checking its version, tokenizer, file sizes, and the first and last MiB in each file.

        Args:
          path: folder or URL. A remote store is copied once per host, and the copy is verified completely.
          verify: also hash every whole file.
          cache_dir: local folder for remote stores.

        Raises:
          UserError: there is no store, its format version differs, or it was cut short or altered.
        """
        origin = ""
        if is_remote(path):
            origin = os.fspath(path)
            path = remote.fetch(epath.Path(path), cache_dir, lambda copy: cls.open(copy, verify=True))
        path = Path(path)
        store = cls(path, _read_manifest(path), origin)
        for name, recorded in store.manifest["files"].items():
            _check_file(path / name, recorded, verify)
        if store.tokenizer.fingerprint != store.manifest["tokenizer"]:
            raise _damaged(path, "its tokenizer was replaced")
        return store

    @property
    def fingerprint(self) -> str:
        """Hash over the store's content, tokenizer and settings."""
        return self.manifest["fingerprint"]

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer.load(self.path / "tokenizer")

    def split(self, name: str, source: str = "") -> Split:
        """Return the `train` or `heldout` split, or one source's documents in it.

        Raises:
          UserError: there is no such source.
        """
        if not source:
            return Split(self.path, name, self.manifest["token_dtype"])
        ranges = self.manifest["sources"][name]
        if source not in ranges:
            raise UserError(f"the {name} split of {self.path} has no source {source!r}; it has {', '.join(ranges)}")
        return Split(self.path, name, self.manifest["token_dtype"], tuple(ranges[source]))

    def by_source(self, name: str) -> list[Split]:
        """Return a split source by source.

        A source with a single document is joined to a neighbor, because a random partner needs another document.
        """
        whole, edges = self.split(name), [0]
        for _, stop in self.manifest["sources"][name].values():
            # A source with one document sets no edge, so it joins the next source.
            if stop - edges[-1] > 1:
                edges.append(stop)
        # The last edge moves to the end, so a last source with one document joins the one before.
        edges = [*(edges[:-1] or [0]), len(whole.documents) - 1]
        return [dataclasses.replace(whole, range=ends) for ends in itertools.pairwise(edges)]

    def unigram_counts(self, name: str) -> np.ndarray:
        """Count the occurrences of each token id in a split: int64 [V].

        Raises:
          UserError: a token id is outside the vocabulary, so the file was altered.
        """
        vocab_size, dtype = self.manifest["vocab_size"], self.manifest["token_dtype"]
        counts_V = np.zeros(vocab_size, np.int64)
        file, files = f"{name}.{UNIGRAMS}.bin", self.manifest["files"]
        # Recorded counts, because counting a terabyte of text takes 20 minutes, in every process and at every start.
        if file in files and edges(self.path / f"{name}.tokens.bin") == files[f"{name}.tokens.bin"]["edges"]:
            recorded = np.fromfile(self.path / file, OFFSET_DTYPE)
            counts_V[: len(recorded)] = recorded
            return counts_V
        # Read instead of mapped: pages of a memory map count as this process's memory once they are read.
        with open(self.path / f"{name}.tokens.bin", "rb") as file:
            while len(tokens := np.fromfile(file, dtype, COUNTED_AT_ONCE)):
                counts = np.bincount(tokens, minlength=vocab_size)
                if len(counts) > vocab_size:
                    what = f"{name}.tokens.bin holds the id {len(counts) - 1}, and the vocabulary has {vocab_size}"
                    raise _damaged(self.path, what)
                counts_V += counts
        return counts_V


class SplitWriter:
    """Writes one split, some documents at a time, in constant memory."""

    def __init__(self, folder: Path, name: str):
        self._files = [open(folder / f"{name}.{part}.bin", "wb") for part in PARTS]
        self._counts, self._counts_path = np.zeros(0, OFFSET_DTYPE), folder / f"{name}.{UNIGRAMS}.bin"
        self._ends = [0, 0]  # offsets of the next sentence in the tokens, and of the next document in the sentences
        # Offset files start with a 0, so n lengths become n + 1 offsets, and a length is always a difference.
        for file in self._files[1:]:
            file.write(OFFSET_DTYPE.type(0).tobytes())

    def append(self, tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray) -> None:
        """Append documents.

        Args:
          tokens: token ids, concatenated.
          sentence_lengths: tokens per sentence, never 0.
          document_lengths: sentences per document, never 0.
        """
        self._files[0].write(np.ascontiguousarray(tokens).data)
        step = max(COUNTED_AT_ONCE // 16, len(self._counts))  # bincount copies its input with 8 bytes per token
        for start in range(0, len(tokens), step):
            counts = np.bincount(tokens[start : start + step], minlength=len(self._counts)).astype(OFFSET_DTYPE)
            counts[: len(self._counts)] += self._counts
            self._counts = counts
        # Offsets continue from a running total, so earlier ones need not stay in memory.
        for i, lengths in enumerate((sentence_lengths, document_lengths)):
            if len(lengths):
                ends = self._ends[i] + np.cumsum(lengths, dtype=OFFSET_DTYPE)
                self._files[i + 1].write(ends.data)
                self._ends[i] = int(ends[-1])

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._counts_path.write_bytes(self._counts.tobytes())


def at_random(array: np.ndarray) -> np.ndarray:
    """Return a memory map as a plain array, after advising the kernel that it is read at random.

    Otherwise Linux reads ahead around every missing page, 128 KB to 8 MB for a 250-byte row, as soon as a file does not
    fit into the page cache. Sequential reads need their own map.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_RANDOM"):  # not on every platform
        mapped.madvise(mmap.MADV_RANDOM)
    return np.asarray(array)


def is_token_store(path: epath.PathLike) -> bool:
    """Return whether a folder or URL has a store's manifest."""
    return exists(epath.Path(path) / MANIFEST)


def token_dtype(vocab_size: int) -> np.dtype:
    """Return uint16 if all token ids fit, else uint32."""
    # The highest id is vocab_size - 1, so exactly 2**16 ids still fit.
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_manifest(folder: Path, spec: dict, tokenizer: Tokenizer, contents: dict) -> None:
    """Write the manifest, which turns a folder with splits and tokenizer into a store.

    Args:
      spec: settings that determine the content.
      contents: `counts` {split: {source: {COUNTS}}} in source order, `duplicates` and `skipped` {source: documents},
        `longest` [[tokens, source, document id]] and, if documents were filtered or near-duplicates dropped, `cleaning`
        (`bertjax.data.preparation.reading.Reading`).
    """
    counts = contents["counts"]
    names = [f"{split}.{part}.bin" for split in SPLITS for part in (*PARTS, UNIGRAMS)]
    manifest = {
        "format_version": FORMAT_VERSION,
        "spec": spec,
        "tokenizer": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "token_dtype": token_dtype(tokenizer.vocab_size).str,
        "splits": {name: _sum(by_source) for name, by_source in counts.items()},
        "sources": {name: _ranges(by_source) for name, by_source in counts.items()},
        **contents,
        "files": {name: _record(folder / name) for name in names},
    }
    manifest["fingerprint"] = _fingerprint(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _sum(by_source: dict[str, dict[str, int]]) -> dict[str, int]:
    return {count: sum(counts.get(count, 0) for counts in by_source.values()) for count in COUNTS}


def _ranges(by_source: dict[str, dict[str, int]]) -> dict[str, list[int]]:
    stops = itertools.accumulate(counts["documents"] for counts in by_source.values())
    return {
        source: [stop - counts["documents"], stop]
        for (source, counts), stop in zip(by_source.items(), stops, strict=True)
    }


def _record(path: Path) -> dict:
    return {"bytes": path.stat().st_size, "edges": edges(path), "sha256": _sha256(path)}


def edges(path: Path) -> str:
    """Hash a file's first and last MiB, which overlap in a short file: a fast check for most damage."""
    with open(path, "rb") as file:
        head = file.read(MIB)
        file.seek(max(0, path.stat().st_size - MIB))
        return hashlib.sha256(head + file.read(MIB)).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fingerprint(manifest: dict) -> str:
    # Keys are sorted, so only content counts and not the order in which the entries were made.
    content = {key: value for key, value in manifest.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(path: Path) -> dict:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except FileNotFoundError:
        raise UserError(f"{path} holds no token store; make one with python -m bertjax prepare") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its manifest.json cannot be read ({error!r})") from None
    check_format(f"the token store {path}", version, FORMAT_VERSION, "delete the folder and prepare again")
    if manifest.get("fingerprint") != _fingerprint(manifest):
        raise _damaged(path, "its manifest.json was altered")
    return manifest


def _check_file(path: Path, recorded: dict, verify: bool) -> None:
    try:
        length = path.stat().st_size
        if length != recorded["bytes"]:
            raise _damaged(path.parent, f"{path.name} has {length} bytes, not {recorded['bytes']}")
        # From cheap to expensive: size, two reads, and the whole file only on request.
        if edges(path) != recorded["edges"] or (verify and _sha256(path) != recorded["sha256"]):
            raise _damaged(path.parent, f"{path.name} was altered")
    except OSError as error:
        raise _damaged(path.parent, f"{path.name} cannot be read: {error.strerror}") from None


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"token store {path} is damaged: {what}; delete the folder and prepare again")
