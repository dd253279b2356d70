"""From corpus to token store: one pass reads, one encodes, and what is finished survives a kill.

    sources --reading--> shards of text --encoding--> shards of tokens --assembly--> token store

`reading` also finds duplicates and draws the sample that the tokenizer trains on. Shards are the same for any number of
processes, so the store is, too.
"""

import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from etils import epath
from tqdm import tqdm

from bertjax import storage
from bertjax.data import remote, sources, store, tokenizer
from bertjax.data.config import DataConfig, SourceConfig, TokenizerConfig
from bertjax.data.inspect import lengths
from bertjax.data.inspect.report import report
from bertjax.data.preparation import reading, shards, workers
from bertjax.data.preparation.assembly import assemble
from bertjax.data.preparation.encoding import Encoder
from bertjax.data.preparation.reading import Bad, Reading
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.shards import Damaged
from bertjax.data.store import SPLITS, Split, TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import RunFailed, UserError

LONGEST_NAME = 80


def prepare(config: DataConfig) -> TokenStore:
    """Makes the token store of a corpus, or opens the one that is there, and prints what it holds.

    Memory does not grow with the corpus. A killed run leaves nothing that opens as a store, and the same call goes on
    with the shards that it had finished; a second process that prepares the same store waits for the first. A store
    under a URL is built in `data.cache_dir` and copied from there.

    Raises:
      UserError: bad corpus, too few documents or too little text for the vocabulary, or a folder that takes no files.
    """
    return _prepare(config, _spec(config))


def _prepare(config: DataConfig, spec: dict) -> TokenStore:
    path = _path(config, spec)
    if not storage.is_remote(path):
        _build_alone(config, spec, Path(path))
    elif not remote.exists(path):
        local = remote.cached(path, config.cache_dir)
        _build_alone(config, spec, local)
        TokenStore.open(local)
        remote.upload(local, path)
    prepared = TokenStore.open(path, cache_dir=config.cache_dir)
    print(report(prepared), flush=True)
    return prepared


def open_or_prepare(config: DataConfig, may_prepare: bool) -> TokenStore:
    """Opens the store of a corpus; where it is missing, makes it or names the command that does.

    Raises:
      UserError: see `prepare` and `TokenStore.open`; also where the store is missing and `may_prepare` is False.
    """
    spec = _spec(config)  # which reads the corpus: once
    path = _path(config, spec)
    if remote.exists(path):
        return TokenStore.open(path, cache_dir=config.cache_dir)
    if not may_prepare:
        remedy = f"make it first, in one process, with the FILE of this run: {_command(config)}"
        raise UserError(f"there is no token store {path}; {remedy}")
    return _prepare(config, spec)


def store_path(config: DataConfig) -> epath.Path:
    """Where the store of a corpus lies: named by the content of the corpus and by all that decides what is in it."""
    return _path(config, _spec(config))


def _path(config: DataConfig, spec: dict) -> epath.Path:
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    name = "-".join(sorted(config.sources))
    if not name:
        name = config.corpus if config.corpus.startswith("embedded:") else Path(config.corpus).name.split(".")[0]
    name = re.sub(r"[^\w]+", "-", name).strip("-")[:LONGEST_NAME] or "corpus"
    folder = epath.Path(config.store)
    return (folder if storage.is_remote(folder) else folder.expanduser().absolute()) / f"{name}-{digest[:12]}"


def _spec(config: DataConfig) -> dict:
    """All that decides the content of a store; no path is part of it."""
    asked = config.tokenizer
    return {
        "format_version": store.FORMAT_VERSION,
        "sources": {
            name: [_fingerprints(source.corpus, source.text_field), source.text_field]
            for name, source in config.named_sources.items()
        },
        "heldout": _fingerprints(config.heldout, config.text_field) if config.heldout else config.heldout_share,
        "on_bad_document": config.on_bad_document,
        "splitter": config.splitter,
        "tokenizer": tokenizer.from_model(asked.model, asked.lowercase).fingerprint
        if asked.model
        else dataclasses.asdict(asked),
    }


def _fingerprints(corpus: str, text_field: str) -> str:
    parts = [part.fingerprint() for part in sources.parts(corpus, text_field)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _build_alone(config: DataConfig, spec: dict, path: Path) -> None:
    """Builds a store that is not there yet beside its place, and renames it there once all of it is on disk."""
    partial = path.with_name(path.name + ".partial")
    try:
        notice = f"another process prepares {path}; waiting for it"
        with storage.lock_or_wait(path.with_name(path.name + ".lock"), notice):
            if not path.exists():
                try:
                    _build(config, spec, partial)
                except Damaged as error:
                    print(f"{error}; starting anew", file=sys.stderr, flush=True)
                    shutil.rmtree(partial)
                    _build(config, spec, partial)
                storage.publish(partial / "store", path)
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write the token store {path} ({error}); set data.store to another folder") from None
    except RunFailed:  # the same command goes on with what is there
        raise
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _build(config: DataConfig, spec: dict, partial: Path) -> None:
    """Builds a store as `partial/store`, going on with what an earlier process left in `partial`."""
    folder = partial / "store"
    read = reading.load(partial / "reading.json", spec)
    if read is None:
        if partial.exists():
            print(f"{partial} holds no finished first pass of this preparation; starting anew", file=sys.stderr)
            shutil.rmtree(partial)
        for name in ("text", "tokens", "store/tokenizer"):
            (partial / name).mkdir(parents=True)
        read = _first_pass(config, partial)
        reading.save(read, spec, partial / "reading.json")
    trained = tokenizer.load(folder / "tokenizer")
    _second_pass(config, partial, read, trained)
    contents = assemble(partial, read, store.token_dtype(trained.vocab_size), folder)
    _require_two({name: sum(c["documents"] for c in contents["counts"][name].values()) for name in SPLITS}, config)
    store.write_manifest(folder, spec, trained, contents)
    lengths.draw({name: Split(folder, name, store.token_dtype(trained.vocab_size).str) for name in SPLITS}, folder)


def _first_pass(config: DataConfig, partial: Path) -> Reading:
    """Reads the corpus, and trains the tokenizer on a sample of the training side or takes a model."""
    asked = config.tokenizer
    sample = None if asked.model else Sample(asked.sample_characters)
    read, sentences = reading.read(config, partial, sample)
    _require_two({name: read.documents(name) for name in SPLITS}, config)
    given = bool(asked.model)
    trained = tokenizer.from_model(asked.model, asked.lowercase) if given else tokenizer.train(sentences, asked)
    trained.save(partial / "store" / "tokenizer")
    return read


def _second_pass(config: DataConfig, partial: Path, read: Reading, trained: Tokenizer) -> None:
    """Encodes the shards that are not encoded yet."""
    every = range(len(read.shard_bytes))
    done = [index for index in every if shards.tokens_path(partial, index).exists()]
    for index in done:
        shards.read(shards.tokens_path(partial, index))
        shards.text_path(partial, index).unlink(missing_ok=True)
    if done:
        print(f"going on with {partial}: {len(done)} of {len(every)} shards are encoded", file=sys.stderr, flush=True)
    bad = Bad(config.on_bad_document)
    encoder = Encoder(partial, trained, config.splitter, config.on_bad_document, read.groups)
    todo = [index for index in every if index not in set(done)]
    finished = sum(read.shard_bytes[index] for index in done)
    with tqdm(
        total=sum(read.shard_bytes), initial=finished, desc="encoding", unit="B", unit_scale=True, disable=None
    ) as bar:
        processes = os.cpu_count() if config.workers is None else config.workers
        for index, header in workers.unordered(encoder, todo, processes):
            for group, message in header["skipped"]:
                bad(read.groups[group][1], message)
            shards.text_path(partial, index).unlink()
            bar.update(read.shard_bytes[index])


def _require_two(documents: dict[str, int], config: DataConfig) -> None:
    train, heldout = documents["train"], documents["heldout"]
    if train >= 2 and heldout >= 2:
        return
    remedy = "add documents (in .txt a blank line ends one)"
    if not config.heldout:
        remedy += f", raise data.heldout_share={config.heldout_share} or name a file as data.heldout"
    corpus = ", ".join(repr(source.corpus) for source in config.named_sources.values())
    raise UserError(
        f"corpus {corpus} gives {train} training and {heldout} held-out documents, but it takes two of each: {remedy}"
    )


def _command(config: DataConfig) -> str:
    """The command line that prepares the store of `config`: what differs from the defaults."""
    flags = [
        shlex.quote(f"--config.{prefix}.{field.name}={getattr(part, field.name)}")
        for prefix, part, default in (
            ("data", config, DataConfig()),
            ("data.tokenizer", config.tokenizer, TokenizerConfig()),
            *((f"data.sources.{name}", source, SourceConfig()) for name, source in config.sources.items()),
        )
        for field in dataclasses.fields(part)
        if field.name not in ("tokenizer", "sources") and getattr(part, field.name) != getattr(default, field.name)
    ]
    return " ".join(["python -m bertjax.prepare --config=FILE", *flags])
