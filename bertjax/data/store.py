"""The token store: a corpus as flat memory-mapped token ids with sentence and document offsets.

A folder with `{train,heldout}.{tokens,sentences,documents}.bin`, `tokenizer/` and, written last, `manifest.json`.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

import numpy as np

from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

FORMAT_VERSION = 1
SPLITS = ("train", "heldout")
OFFSET_DTYPE = np.dtype("<i8")
MIB = 1 << 20
COUNTED_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Split:
    """The training or the held-out side of a store; pickled as its path, so the maps open again where it lands."""

    folder: Path
    name: str
    token_dtype: str

    def __reduce__(self):
        return Split, (self.folder, self.name, self.token_dtype)

    @functools.cached_property
    def tokens(self) -> np.memmap:
        """Token ids of all documents, without special symbols: uint16 or uint32 [tokens]."""
        return self._map("tokens", self.token_dtype)

    @functools.cached_property
    def sentences(self) -> np.memmap:
        """Where each sentence starts in `tokens`, then their number: int64 [S+1]."""
        return self._map("sentences", OFFSET_DTYPE)

    @functools.cached_property
    def documents(self) -> np.memmap:
        """Where each document starts in `sentences`, then their number: int64 [D+1]."""
        return self._map("documents", OFFSET_DTYPE)

    def _map(self, part: str, dtype: str | np.dtype) -> np.memmap:
        return np.memmap(self.folder / f"{self.name}.{part}.bin", dtype=dtype, mode="r")


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """A prepared corpus, checked when it was opened; cheap to pickle."""

    path: Path
    manifest: dict

    def __reduce__(self):
        return TokenStore, (self.path, self.manifest)

    @classmethod
    def open(cls, path: str | Path, verify: bool = False) -> "TokenStore":
        """Opens a store after checking version, sizes, the first and last MiB of each file, and the tokenizer.

        Args:
          verify: also hash every file as a whole.

        Raises:
          UserError: there is no store, a newer bertjax wrote it, or it was cut short or altered.
        """
        path = Path(path)
        store = cls(path, _read_manifest(path))
        for name, recorded in store.manifest["files"].items():
            _check_file(path / name, recorded, verify)
        if store.tokenizer.fingerprint != store.manifest["tokenizer"]:
            raise _damaged(path, "its tokenizer is not the one that it was made with")
        return store

    @property
    def fingerprint(self) -> str:
        """Names what is in the store: content, tokenizer and the choices that made it."""
        return self.manifest["fingerprint"]

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer.load(self.path / "tokenizer")

    def split(self, name: str, source: str = "") -> Split:
        """The `train` or the `heldout` side."""
        return Split(self.path, name, self.manifest["token_dtype"])

    def unigram_counts(self, name: str) -> np.ndarray:
        """How often each id occurs in a split: int64 [V]."""
        vocab_size, dtype = self.manifest["vocab_size"], self.manifest["token_dtype"]
        counts_V = np.zeros(vocab_size, np.int64)
        # Read rather than mapped: pages of a map that was walked through count as this process's memory.
        with open(self.path / f"{name}.tokens.bin", "rb") as file:
            while len(tokens := np.fromfile(file, dtype, COUNTED_AT_ONCE)):
                counts_V += np.bincount(tokens, minlength=vocab_size)
        return counts_V


class SplitWriter:
    """Writes one split of a store, document by document, in constant memory."""

    def __init__(self, folder: Path, name: str, vocab_size: int, unk_id: int):
        self._dtype = token_dtype(vocab_size)
        self._unk_id = unk_id
        self._files = {part: open(folder / f"{name}.{part}.bin", "wb") for part in ("tokens", "sentences", "documents")}
        self._files["sentences"].write(OFFSET_DTYPE.type(0).tobytes())
        self._files["documents"].write(OFFSET_DTYPE.type(0).tobytes())
        self.counts = {"documents": 0, "sentences": 0, "words": 0, "tokens": 0, "unk": 0}

    def append(self, sentences: list[list[int]], words: int) -> None:
        """Appends a document: its sentences as token ids, none empty, and how many words they had."""
        tokens = np.array([token for sentence in sentences for token in sentence], self._dtype)
        ends = self.counts["tokens"] + np.cumsum([len(sentence) for sentence in sentences], dtype=OFFSET_DTYPE)
        self.counts["documents"] += 1
        self.counts["sentences"] += len(sentences)
        self.counts["words"] += words
        self.counts["tokens"] += len(tokens)
        self.counts["unk"] += int(np.count_nonzero(tokens == self._unk_id))
        self._files["tokens"].write(tokens.tobytes())
        self._files["sentences"].write(ends.tobytes())
        self._files["documents"].write(OFFSET_DTYPE.type(self.counts["sentences"]).tobytes())

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 where every id fits, else uint32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_manifest(folder: Path, spec: dict, tokenizer: Tokenizer, counts: dict[str, dict[str, int]]) -> None:
    """Seals a folder whose splits and tokenizer are written: what it is, what made it, and how to tell damage."""
    names = [f"{split}.{part}.bin" for split in SPLITS for part in ("tokens", "sentences", "documents")]
    manifest = {
        "format_version": FORMAT_VERSION,
        "spec": spec,
        "tokenizer": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "token_dtype": token_dtype(tokenizer.vocab_size).str,
        "splits": counts,
        "files": {name: _record(folder / name) for name in names},
    }
    manifest["fingerprint"] = _fingerprint(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _record(path: Path) -> dict:
    return {"bytes": path.stat().st_size, "edges": edges(path), "sha256": _sha256(path)}


def edges(path: Path) -> str:
    """SHA-256 of the first and the last MiB, which overlap in a short file: tells most damage at once."""
    with open(path, "rb") as file:
        head = file.read(MIB)
        file.seek(max(0, path.stat().st_size - MIB))
        return hashlib.sha256(head + file.read(MIB)).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fingerprint(manifest: dict) -> str:
    content = {key: value for key, value in manifest.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(path: Path) -> dict:
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except FileNotFoundError:
        raise UserError(f"{path} holds no token store; make one with python -m bertjax.prepare") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its manifest.json cannot be read ({error!r})") from None
    if version != FORMAT_VERSION:
        remedy = "upgrade bertjax, or delete the folder and prepare again"
        raise UserError(f"{path} has token store format {version}, not {FORMAT_VERSION}; {remedy}")
    if manifest.get("fingerprint") != _fingerprint(manifest):
        raise _damaged(path, "its manifest.json was altered")
    return manifest


def _check_file(path: Path, recorded: dict, verify: bool) -> None:
    try:
        length = path.stat().st_size
        if length != recorded["bytes"]:
            raise _damaged(path.parent, f"{path.name} has {length} bytes, not {recorded['bytes']}")
        if edges(path) != recorded["edges"] or (verify and _sha256(path) != recorded["sha256"]):
            raise _damaged(path.parent, f"{path.name} was altered")
    except OSError as error:
        raise _damaged(path.parent, f"{path.name} cannot be read: {error.strerror}") from None


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"token store {path} is damaged: {what}; delete the folder and prepare again")
