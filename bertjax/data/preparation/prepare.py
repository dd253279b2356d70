"""Make the token store of a corpus, or open the one that is there."""

import contextlib
import dataclasses
import shlex
import shutil
import sys
import types
from pathlib import Path
from typing import Any

from bertjax import locks, storage
from bertjax.data import remote, store
from bertjax.data.config import DataConfig, NearDuplicates, SourceConfig
from bertjax.data.inspect import lengths
from bertjax.data.inspect.report import report
from bertjax.data.preparation import building
from bertjax.data.preparation.building import Runner, Untrained
from bertjax.data.preparation.local import BadDocument, Local
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.spec import path_of, spec_of
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.errors import Busy, RunFailed, Unavailable, UserError

# What a filter is compared with: its kind is always printed, other fields if they are not the default of their class.
_ANY_FILTER = types.SimpleNamespace(kind="")
# Fields of `DataConfig` with settings of their own.
_NESTED = ("tokenizer", "near_duplicates", "sources", "filters")
LOCAL = Local()


def prepare(config: DataConfig, runner: Runner = LOCAL) -> TokenStore:
    """Make the token store of a corpus, or open the one that is there, and print its contents.

    Memory does not grow with the corpus. A killed preparation leaves nothing that opens as a store, and the same call
    resumes after the shards that it had finished. A second process that prepares the same store waits for the first. A
    store under a URL is built in `data.cache_dir` and copied to the URL.

    Args:
      runner: applies the steps; the store has the same bytes with any runner.

    Raises:
      UserError: a corpus that cannot be read, too few documents, too little text for the vocabulary, or a folder that
        cannot be written.
    """
    return _prepare(config, spec_of(config), runner)


def open_or_prepare(config: DataConfig, may_prepare: bool, spec: dict[str, Any] | None = None) -> TokenStore:
    """Open the store of a corpus; if there is none, make it, or name the command that does.

    Args:
      spec: the spec of the store; by default that of the corpus, which is then read.

    Raises:
      UserError: see `prepare` and `TokenStore.open`; also if there is no store and `may_prepare` is False.
    """
    spec = spec_of(config) if spec is None else spec
    path = path_of(config, spec)
    if remote.exists(path):
        return TokenStore.open(path, cache_dir=config.cache_dir)
    if not may_prepare:
        remedy = f"make it first, in one process, with the FILE of this run: {_command(config)}"
        raise UserError(f"there is no token store {path}; {remedy}")
    return _prepare(config, spec, LOCAL)


def _prepare(config: DataConfig, spec: dict[str, Any], runner: Runner) -> TokenStore:
    path = path_of(config, spec)
    if runner != LOCAL and remote.exists(path):
        print(f"{path} is there already, so no text is encoded or kept", flush=True)
    if not storage.is_remote(path):
        _build(config, spec, Path(path), runner)
    elif not remote.exists(path):
        copy = remote.cached(path, config.cache_dir)
        _build(config, spec, copy, runner)
        TokenStore.open(copy)
        remote.upload(copy, path)
        remote.mark_verified(copy)
    prepared = TokenStore.open(path, cache_dir=config.cache_dir)
    print(report(prepared), flush=True)
    return prepared


def _build(config: DataConfig, spec: dict[str, Any], path: Path, runner: Runner) -> None:
    """Build a store that is not there yet beside its place, and rename it once all of it is on disk."""
    notice = f"another process prepares {path}; waiting for it"
    try:
        with storage.storage_errors(path), locks.lock_or_wait(path.with_name(path.name + ".lock"), notice):
            if not path.exists():
                _take_over(config, spec, path)
                storage.publish(_built(config, spec, _partial(path), runner), path)
                runner.clean(_partial(path))
            shutil.rmtree(_partial(path), ignore_errors=True)
            _name_stale(path.parent)
    except OSError as error:
        remedy = "set data.store to another folder"
        raise storage.user_error(error, f"cannot write the token store {path}", remedy) from error


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _take_over(config: DataConfig, spec: dict[str, Any], path: Path) -> None:
    """Continue another unfinished preparation that has read the same corpus, if this one has not started.

    That is one with another tokenizer, or one that stopped at a bad document if bad documents are now skipped: its
    first pass had no bad document, so what it has read and encoded is the same in both.
    """
    if _partial(path).exists():
        return
    for other in _unfinished(path.parent):
        with contextlib.suppress(Busy), locks.lock_or_fail(_lock(other), ""):
            for before in (spec, spec | {"on_bad_document": "stop"}):
                if building.take_over(_partial(path), other, spec, before):
                    print(f"continuing {other}, which has read the same", file=sys.stderr, flush=True)
                    return


def _unfinished(folder: Path) -> list[Path]:
    """Return the folders of the unfinished preparations in a folder of stores."""
    return sorted(path for path in folder.glob("*.partial") if path.is_dir())


def _lock(partial: Path) -> Path:
    """Return the lock file of the store that an unfinished preparation becomes."""
    return partial.with_name(partial.name.removesuffix(".partial") + ".lock")


def _name_stale(folder: Path) -> None:
    """Name unfinished preparations that no process works on, with their size and the command that removes them."""
    for other in _unfinished(folder):
        with contextlib.suppress(Busy), locks.lock_or_fail(_lock(other), ""):
            size = sum(file.stat().st_size for file in other.rglob("*") if file.is_file())
            print(
                f"{other} is an unfinished preparation of {size / 1e6:,.1f} MB; its command continues it, and "
                f"rm -r {shlex.quote(str(other))} removes it",
                file=sys.stderr,
                flush=True,
            )


def _built(config: DataConfig, spec: dict[str, Any], partial: Path, runner: Runner) -> Path:
    """Return the folder of a complete store within `partial`.

    What was read and encoded is kept unless the same command would fail again with any tokenizer.
    """
    try:
        try:
            folder = building.build(config, spec, partial, runner)
        except DamagedShard as error:
            print(f"{error}; starting from scratch", file=sys.stderr, flush=True)
            shutil.rmtree(partial)
            folder = building.build(config, spec, partial, runner)
        built = TokenStore.open(folder)
        lengths.draw({name: built.split(name) for name in store.SPLITS}, folder)
        return folder
    except (RunFailed, Unavailable, BadDocument, Untrained):
        raise
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _command(config: DataConfig) -> str:
    """Return the command line that prepares the store of `config`, with the settings that differ from the defaults."""
    flags = [
        shlex.quote(f"--config.{prefix}.{field.name}={getattr(part, field.name)}")
        for prefix, part, default in (
            ("data", config, DataConfig()),
            ("data.tokenizer", config.tokenizer, TokenizerConfig()),
            ("data.near_duplicates", config.near_duplicates, NearDuplicates()),
            *((f"data.filters.{name}", rule, _ANY_FILTER) for name, rule in config.filters.items()),
            *((f"data.sources.{name}", source, SourceConfig()) for name, source in config.sources.items()),
        )
        for field in dataclasses.fields(part)
        if field.name not in _NESTED and getattr(part, field.name) != getattr(default, field.name, field.default)
    ]
    return " ".join(["python -m bertjax.prepare --config=FILE", *flags])
