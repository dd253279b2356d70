"""From corpus to token store: two streamed passes, one to train the tokenizer and one to encode."""

import contextlib
import dataclasses
import fcntl
import hashlib
import heapq
import itertools
import json
import os
import random
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tqdm import tqdm

from bertjax.data import sources, store, tokenizer
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.report import report
from bertjax.data.sentences import split
from bertjax.data.sources import Document
from bertjax.data.store import SPLITS, TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# A store is shared by runs of all seeds, so the sample that its tokenizer sees has a seed of its own.
SAMPLE_SEED = 0
BATCH_CHARACTERS = 1 << 20


def prepare(config: DataConfig) -> TokenStore:
    """Makes the token store of a corpus, or opens the one that is there, and prints what it holds.

    Memory does not grow with the corpus. A killed run leaves nothing that opens as a store; a second process that
    prepares the same store waits for the first.

    Raises:
      UserError: bad corpus, too few documents or too little text for the vocabulary, or a folder that takes no files.
    """
    path = store_path(config)
    try:
        with _only_one(path):
            if not path.exists():
                _build(config, path)
    except OSError as error:
        raise UserError(f"cannot write the token store {path} ({error}); set data.store to another folder") from None
    prepared = TokenStore.open(path)
    print(report(prepared), flush=True)
    return prepared


def open_or_prepare(config: DataConfig, may_prepare: bool) -> TokenStore:
    """Opens the store of a corpus; where it is missing, makes it or names the command that does.

    Raises:
      UserError: see `prepare` and `TokenStore.open`; also where the store is missing and `may_prepare` is False.
    """
    path = store_path(config)
    if path.exists():
        return TokenStore.open(path)
    if not may_prepare:
        remedy = f"make it first, in one process, with the FILE of this run: {_command(config)}"
        raise UserError(f"there is no token store {path}; {remedy}")
    return prepare(config)


def store_path(config: DataConfig) -> Path:
    """Where the store of a corpus lies: named by the content of the corpus and by all that decides what is in it."""
    digest = hashlib.sha256(json.dumps(_spec(config), sort_keys=True).encode()).hexdigest()
    name = config.corpus if config.corpus.startswith("embedded:") else Path(config.corpus).name.split(".")[0]
    name = re.sub(r"[^\w]+", "-", name).strip("-") or "corpus"
    return Path(config.store).expanduser().absolute() / f"{name}-{digest[:12]}"


def _spec(config: DataConfig) -> dict:
    """All that decides the content of a store; no path is part of it."""
    asked = config.tokenizer
    return {
        "format_version": store.FORMAT_VERSION,
        "corpus": _fingerprint(config.corpus, config),
        "text_field": config.text_field,
        "heldout": _fingerprint(config.heldout, config) if config.heldout else config.heldout_share,
        "splitter": config.splitter,
        "tokenizer": tokenizer.from_model(asked.model, asked.lowercase).fingerprint
        if asked.model
        else dataclasses.asdict(asked),
    }


def _fingerprint(corpus: str, config: DataConfig) -> list[str]:
    return [part.fingerprint() for part in sources.parts(corpus, config.text_field)]


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Lets one process at a time build `path`; the system drops the lock of a killed one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process prepares {path}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(config: DataConfig, path: Path) -> None:
    """Builds the store beside its place and renames it there once all of it is on disk."""
    spec = _spec(config)
    trained = _tokenizer(config)
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "tokenizer").mkdir(parents=True)
    try:
        trained.save(partial / "tokenizer")
        counts = _encode(config, trained, partial)
        store.write_manifest(partial, spec, trained, counts)
        _flush_to_disk(partial)
        os.rename(partial, path)
        _flush(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _tokenizer(config: DataConfig) -> Tokenizer:
    """First pass: counts the documents of each side and trains on a sample of the training side, or takes a model."""
    documents = dict.fromkeys(SPLITS, 0)

    def training_sentences() -> Iterator[str]:
        for side, document in _sided_documents(config, "reading"):
            documents[side] += 1
            if side == "train":
                yield from split(document.text, config.splitter)

    sample = sample_sentences(training_sentences(), config.tokenizer.sample_characters)
    _require_two(documents, config)
    asked = config.tokenizer
    return tokenizer.from_model(asked.model, asked.lowercase) if asked.model else tokenizer.train(sample, asked)


def sample_sentences(sentences: Iterable[str], characters: int) -> list[str]:
    """A uniform sample of at most so many characters (but one sentence at least), in the order of the source.

    Each sentence draws a priority, and the lowest that fit stay, so one pass and the memory of the sample suffice.
    """
    draw = random.Random(SAMPLE_SEED).random
    kept: list[tuple[float, int, str]] = []
    total = 0
    for index, sentence in enumerate(sentences):
        heapq.heappush(kept, (-draw(), index, sentence))
        total += len(sentence)
        while total > characters and len(kept) > 1:
            total -= len(heapq.heappop(kept)[2])
    return [sentence for _, _, sentence in sorted(kept, key=lambda entry: entry[1])]


def _encode(config: DataConfig, trained: Tokenizer, folder: Path) -> dict[str, dict[str, int]]:
    """Second pass: writes the tokens of both sides and returns their counts."""
    writers = {side: store.SplitWriter(folder, side, trained.vocab_size, trained.unk_id) for side in SPLITS}
    with contextlib.ExitStack() as stack:
        for writer in writers.values():
            stack.callback(writer.close)
        for batch in _batches(_sided_documents(config, "encoding")):
            texts = [split(document.text, config.splitter) for _, document in batch]
            encoded = iter(trained.encode(list(itertools.chain.from_iterable(texts))))
            for (side, document), sentences in zip(batch, texts, strict=True):
                # A sentence of U+2581 alone, SentencePiece's own sign for a space, holds no token.
                tokens = [ids for ids in itertools.islice(encoded, len(sentences)) if ids]
                if not tokens:
                    raise UserError(f"document {document.id} holds no token: {document.text[:40]!r}; remove it")
                writers[side].append(tokens, sum(len(sentence.split()) for sentence in sentences))
    return {side: writer.counts for side, writer in writers.items()}


def _batches(documents: Iterator[tuple[str, Document]]) -> Iterator[list[tuple[str, Document]]]:
    """Lists of documents, long enough for the tokenizer to work in parallel, short enough to hold."""
    batch, characters = [], 0
    for side, document in documents:
        batch.append((side, document))
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _sided_documents(config: DataConfig, doing: str) -> Iterator[tuple[str, Document]]:
    """All documents, each with its side, under a progress bar over the bytes on disk."""
    corpora = [config.corpus] + ([config.heldout] if config.heldout else [])
    total = sum(part.size for corpus in corpora for part in sources.parts(corpus, config.text_field))
    with tqdm(total=total, desc=doing, unit="B", unit_scale=True, disable=None) as bar:
        for document in sources.documents(config.corpus, config.text_field, bar.update):
            heldout = not config.heldout and is_heldout(document.text, config.heldout_share)
            yield ("heldout" if heldout else "train"), document
        if config.heldout:
            for document in sources.documents(config.heldout, config.text_field, bar.update):
                yield "heldout", document


def is_heldout(text: str, share: float) -> bool:
    """Whether a document is held out: decided by its content alone, so equal documents stay on one side."""
    digest = hashlib.sha256(unicodedata.normalize("NFC", text).encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _require_two(documents: dict[str, int], config: DataConfig) -> None:
    train, heldout = documents["train"], documents["heldout"]
    if train >= 2 and heldout >= 2:
        return
    remedy = "add documents (in .txt a blank line ends one)"
    if not config.heldout:
        remedy += f", raise data.heldout_share={config.heldout_share} or name a file as data.heldout"
    raise UserError(
        f"corpus {config.corpus!r} gives {train} training and {heldout} held-out documents, "
        f"but sentence pairs need two of each: {remedy}"
    )


def _flush_to_disk(folder: Path) -> None:
    for path in folder.rglob("*"):
        _flush(path)
    _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _command(config: DataConfig) -> str:
    """The command line that prepares the store of `config`: what differs from the defaults."""
    flags = [
        shlex.quote(f"--config.{prefix}.{field.name}={getattr(part, field.name)}")
        for prefix, part, default in (
            ("data", config, DataConfig()),
            ("data.tokenizer", config.tokenizer, TokenizerConfig()),
        )
        for field in dataclasses.fields(part)
        if field.name != "tokenizer" and getattr(part, field.name) != getattr(default, field.name)
    ]
    return " ".join(["python -m bertjax.prepare --config=FILE", *flags])
