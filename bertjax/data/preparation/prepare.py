"""Entry point: prepare the token store for a corpus, or open an existing one."""

import contextlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertjax.data import remote, store
from bertjax.data.config import DataConfig
from bertjax.data.inspect.report import draw_lengths, report
from bertjax.data.preparation import building
from bertjax.data.preparation.building import Runner, TooFew
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.spec import path_of, spec_of
from bertjax.data.store import TokenStore
from bertjax.runtime import locks, storage
from bertjax.runtime.errors import Busy, RunFailed, Unavailable, UserError

LOCAL = Local()


def prepare(config: DataConfig, runner: Runner = LOCAL) -> TokenStore:
    """Prepare the token store for a corpus, or open an existing one, and print its report.

    Memory does not grow with the corpus. A killed preparation leaves nothing that opens as a store; the same call
    resumes it. A second process that prepares the same store waits for the first. A store under a URL is built in
    `data.cache_dir` and uploaded.

    Args:
      runner: runs the steps. Every runner writes the same bytes.

    Raises:
      UserError: a corpus that cannot be read, too few documents, too little text for the vocabulary, or a folder that
        cannot be written.
    """
    return _prepare(config, spec_of(config), runner)


def open_or_prepare(config: DataConfig, may_prepare: bool, spec: dict[str, Any] | None = None) -> TokenStore:
    """Open the store for a corpus. If it does not exist, prepare it, or fail.

    Args:
      may_prepare: whether this process may prepare a missing store.
      spec: the store's spec; computed from the corpus files by default.

    Raises:
      UserError: see `prepare` and `TokenStore.open`; also if there is no store and `may_prepare` is False.
    """
    spec = spec_of(config) if spec is None else spec
    path = path_of(config, spec)
    if remote.exists(path):
        return TokenStore.open(path, cache_dir=config.cache_dir)
    if not may_prepare:
        remedy = "make it first, in one process, with the settings of this run: python -m bertjax prepare --config=FILE"
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
        # Checked before it is uploaded, because other hosts take a sealed store as it is.
        TokenStore.open(copy)
        remote.upload(copy, path)
        # This copy is the original, so opening it below need not hash all of it again.
        remote.mark_verified(copy)
    prepared = TokenStore.open(path, cache_dir=config.cache_dir)
    print(report(prepared), flush=True)
    return prepared


def _build(config: DataConfig, spec: dict[str, Any], path: Path, runner: Runner) -> None:
    """Build a missing store in a folder beside `path`, and rename it once it is completely on disk."""
    if path.exists() and not _partial(path).exists():  # without a lock, as the folder may be read-only
        _name_stale(path.parent)
        return
    notice = f"another process prepares {path}; waiting for it"
    try:
        with storage.storage_errors(path), locks.lock_or_wait(path.with_name(path.name + ".lock"), notice):
            # Another process may have built the store while this one waited for the lock.
            if not path.exists():
                _take_over(spec, path, runner)
                storage.publish(_built(config, spec, _partial(path), runner), path)
                runner.clean(_partial(path))
            shutil.rmtree(_partial(path), ignore_errors=True)
            _name_stale(path.parent)
    except OSError as error:
        remedy = "set data.store to another folder"
        raise storage.user_error(error, f"cannot write the token store {path}", remedy) from error


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _take_over(spec: dict[str, Any], path: Path, runner: Runner) -> None:
    """If this preparation has not started, continue another unfinished one that has read the same corpus.

    The other one may have another tokenizer, or `on_bad_document=stop` where this one skips. Whatever it has read and
    encoded under `stop` had no bad document, so it is the same in both.
    """
    if _partial(path).exists():
        return
    for other in sorted(path.parent.glob("*.partial")):
        with _held(other) as is_free, contextlib.suppress(OSError):
            for before in (spec, spec | {"on_bad_document": "stop"}):
                if is_free and building.take_over(_partial(path), other, spec, before, runner):
                    print(f"continuing {other}, which has read the same", file=sys.stderr, flush=True)
                    return


@contextlib.contextmanager
def _held(partial: Path) -> Iterator[bool]:
    """Lock an unfinished preparation, and yield whether nobody else holds it.

    In a folder that several people share, a process may not even be allowed to open another person's lock.
    """
    lock = partial.with_name(partial.name.removesuffix(".partial") + ".lock")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locks.lock_or_fail(lock, ""))
        except (Busy, OSError):
            yield False
            return
        yield True


def _name_stale(folder: Path) -> None:
    """Print unfinished preparations that no process works on, with their size and the command to remove them."""
    for other in sorted(folder.glob("*.partial")):
        with _held(other) as is_free, contextlib.suppress(OSError):
            if is_free:
                size = sum(file.stat().st_size for file in other.rglob("*") if file.is_file()) / 1e6
                remedy = f"its command continues it, and rm -r {shlex.quote(str(other))} removes it"
                print(f"{other} is an unfinished preparation of {size:,.1f} MB; {remedy}", file=sys.stderr, flush=True)


def _built(config: DataConfig, spec: dict[str, Any], partial: Path, runner: Runner) -> Path:
    """Build the store within `partial` and return its folder.

    After an error, text and tokens are kept: the next command may skip bad documents, have another tokenizer
    or a new hub token. If there are too few documents, or nothing was read, `partial` is removed.
    """
    try:
        try:
            folder = building.build(config, spec, partial, runner)
        except DamagedShard as error:
            print(f"{error}; starting from scratch", file=sys.stderr, flush=True)
            shutil.rmtree(partial)
            folder = building.build(config, spec, partial, runner)
        built = TokenStore.open(folder)
        draw_lengths({name: built.split(name) for name in store.SPLITS}, folder)
        return folder
    except (RunFailed, Unavailable):
        raise
    except UserError as error:
        if isinstance(error, TooFew) or not building.has_read(partial):
            shutil.rmtree(partial, ignore_errors=True)
        elif not (partial / building.READING_SEAL).exists():
            print(f"{partial} keeps what was read; data.on_bad_document=skip continues with it", file=sys.stderr)
        raise
