"""Make the token store of a corpus, or open the one that is there."""

import dataclasses
import hashlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

from etils import epath

from bertjax import storage
from bertjax.data import remote, sources, store, tokenizer
from bertjax.data.config import DataConfig, SourceConfig, TokenizerConfig
from bertjax.data.inspect import lengths
from bertjax.data.inspect.report import report
from bertjax.data.preparation import local
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.store import TokenStore
from bertjax.errors import RunFailed, UserError

LONGEST_NAME = 80


def prepare(config: DataConfig) -> TokenStore:
    """Make the token store of a corpus, or open the one that is there, and print its contents.

    Memory does not grow with the corpus. A killed preparation leaves nothing that opens as a store, and the same call
    resumes after the shards that it had finished. A second process that prepares the same store waits for the first. A
    store under a URL is built in `data.cache_dir` and copied to the URL.

    Raises:
      UserError: a corpus that cannot be read, too few documents, too little text for the vocabulary, or a folder that
        cannot be written.
    """
    return _prepare(config, _spec(config))


def open_or_prepare(config: DataConfig, may_prepare: bool) -> TokenStore:
    """Open the store of a corpus; if there is none, make it, or name the command that does.

    Raises:
      UserError: see `prepare` and `TokenStore.open`; also if there is no store and `may_prepare` is False.
    """
    spec = _spec(config)  # reads the corpus, so it is computed once
    path = _path(config, spec)
    if remote.exists(path):
        return TokenStore.open(path, cache_dir=config.cache_dir)
    if not may_prepare:
        remedy = f"make it first, in one process, with the FILE of this run: {_command(config)}"
        raise UserError(f"there is no token store {path}; {remedy}")
    return _prepare(config, spec)


def store_path(config: DataConfig) -> epath.Path:
    """Return the path of the store of a corpus. Its name follows from the corpus and from all settings that matter."""
    return _path(config, _spec(config))


def _prepare(config: DataConfig, spec: dict) -> TokenStore:
    path = _path(config, spec)
    if not storage.is_remote(path):
        _build(config, spec, Path(path))
    elif not remote.exists(path):
        copy = remote.cached(path, config.cache_dir)
        _build(config, spec, copy)
        TokenStore.open(copy)
        remote.upload(copy, path)
    prepared = TokenStore.open(path, cache_dir=config.cache_dir)
    print(report(prepared), flush=True)
    return prepared


def _build(config: DataConfig, spec: dict, path: Path) -> None:
    """Build a store that is not there yet beside its place, and rename it once all of it is on disk."""
    partial = path.with_name(path.name + ".partial")
    notice = f"another process prepares {path}; waiting for it"
    try:
        with storage.lock_or_wait(path.with_name(path.name + ".lock"), notice):
            if not path.exists():
                try:
                    folder = local.build(config, spec, partial)
                except DamagedShard as error:
                    print(f"{error}; starting from scratch", file=sys.stderr, flush=True)
                    shutil.rmtree(partial)
                    folder = local.build(config, spec, partial)
                built = TokenStore.open(folder)
                lengths.draw({name: built.split(name) for name in store.SPLITS}, folder)
                storage.publish(folder, path)
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        what, remedy = f"cannot write the token store {path}", "set data.store to another folder"
        raise storage.user_error(error, what, remedy) from None
    except RunFailed:  # the same command resumes with the files that are there
        raise
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _spec(config: DataConfig) -> dict:
    """Return all that decides the content of a store; paths have no effect on it."""
    settings = config.tokenizer
    return {
        "format_version": store.FORMAT_VERSION,
        "sources": {
            name: [_fingerprint(source.corpus, source.text_field), source.text_field]
            for name, source in config.named_sources.items()
        },
        "heldout": _fingerprint(config.heldout, config.text_field) if config.heldout else config.heldout_share,
        # A store of the whole corpus keeps the name that it had before there were shares.
        **({"share": config.share} if config.share < 1 else {}),
        "on_bad_document": config.on_bad_document,
        "splitter": config.splitter,
        "tokenizer": tokenizer.from_model(settings.model, settings.lowercase).fingerprint
        if settings.model
        else dataclasses.asdict(settings),
    }


def _fingerprint(corpus: str, text_field: str) -> str:
    parts = [part.fingerprint() for part in sources.parts(corpus, text_field)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _path(config: DataConfig, spec: dict) -> epath.Path:
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    name = "-".join(sorted(config.sources))
    if not name:
        name = config.corpus if config.corpus.startswith("embedded:") else Path(config.corpus).name.split(".")[0]
    name = re.sub(r"[^\w]+", "-", name).strip("-")[:LONGEST_NAME] or "corpus"
    folder = epath.Path(config.store)
    return (folder if storage.is_remote(folder) else folder.expanduser().absolute()) / f"{name}-{digest[:12]}"


def _command(config: DataConfig) -> str:
    """Return the command line that prepares the store of `config`, with the settings that differ from the defaults."""
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
