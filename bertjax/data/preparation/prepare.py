"""Entry point: prepare the token store for a corpus, or open an existing one.

Each stage has its own identity, so text that was read also serves another tokenizer or splitter. An unfinished
preparation is a folder `<store>.partial`:

- `identity.json`: stage identities.
- `documents.bin`, `near.bin` (if near-duplicates are dropped), `duplicates.bin`: deduplication.
- `sample.json`: training texts for the tokenizer.
- `reading.json`: written when the first pass is complete.
- `tokenizer.json`: written when the tokenizer is complete.
- `store/`: becomes the store.
- the runner's files.
"""

import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertjax.data import remote, store, tokenizer
from bertjax.data.config import DataConfig
from bertjax.data.inspect.characters import characters_of
from bertjax.data.inspect.report import draw_lengths, report
from bertjax.data.preparation import cleaning, pieces, reading
from bertjax.data.preparation.cleaning import Ledger
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.shards import DamagedShard
from bertjax.data.preparation.spec import corpora, path_of, spec_of
from bertjax.data.preparation.steps import LONGEST, EncodedShard
from bertjax.data.store import COUNTS, SPLITS, SplitWriter, TokenStore
from bertjax.data.text.sentences import split
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import locks, storage
from bertjax.runtime.errors import Busy, RunFailed, Unavailable, UserError

IDENTITY, READING_SEAL, TOKENIZER_SEAL = "identity.json", "reading.json", "tokenizer.json"
# Keys of `identity.json`.
READING, TOKENIZER = "reading", "tokenizer"


class Runner(Protocol):
    """Runs the steps on documents and shards. All runners give the same documents in the same order."""

    def identity(self, partial: Path) -> dict[str, Any]:
        """Return the runner's part of the reading identity as JSON values; it must match for a resume."""
        ...

    def read(self, config: DataConfig, partial: Path) -> Reading:
        """Read every document, find duplicates, and write the tokenizer's sample.

        Raises:
          UserError: a source cannot be read, or a document is bad and bad documents stop the preparation.
        """
        ...

    def encode(self, config: DataConfig, partial: Path, read: Reading, trained: Tokenizer) -> Iterable[EncodedShard]:
        """Encode the remaining shards, and return all shards in corpus order.

        Raises:
          DamagedShard: a shard has changed since it was written.
          UserError: a document holds no token, and bad documents stop the preparation.
        """
        ...

    def clean(self, partial: Path) -> None:
        """Remove the runner's files outside `partial`."""
        ...


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


def open_or_prepare(config: DataConfig, spec: dict[str, Any]) -> TokenStore:
    """Open the store for a corpus, or prepare it if it does not exist.

    Args:
      spec: the store's spec, see `spec_of`.

    Raises:
      UserError: see `prepare` and `TokenStore.open`.
    """
    if remote.exists(path := path_of(config, spec)):
        return TokenStore.open(path, cache_dir=config.cache_dir)
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
                if is_free and take_over(_partial(path), other, spec, before, runner):
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
            folder = build(config, spec, partial, runner)
        except DamagedShard as error:
            print(f"{error}; starting from scratch", file=sys.stderr, flush=True)
            shutil.rmtree(partial)
            folder = build(config, spec, partial, runner)
        built = TokenStore.open(folder)
        draw_lengths({name: built.split(name) for name in store.SPLITS}, folder)
        return folder
    except (RunFailed, Unavailable):
        raise
    except UserError as error:
        if isinstance(error, TooFew) or not has_read(partial):
            shutil.rmtree(partial, ignore_errors=True)
        elif not (partial / READING_SEAL).exists():
            print(f"{partial} keeps what was read; data.on_bad_document=skip continues with it", file=sys.stderr)
        raise


class TooFew(UserError):
    """A split has fewer than two documents, so the same command fails again."""


def has_read(partial: Path) -> bool:
    """Return whether an unfinished preparation has read at least one piece."""
    # Pieces are in `<runner folder>/<piece>/`; a local work folder of Beam has the same depth.
    return (partial / READING_SEAL).exists() or any(partial.glob(f"*/*/{pieces.SEAL}"))


def build(config: DataConfig, spec: dict[str, Any], partial: Path, runner: Runner) -> Path:
    """Build a store, resuming an earlier process's work in `partial`; return its folder within `partial`.

    Raises:
      DamagedShard: a file from the earlier process has changed since it was written.
      TooFew: a split has fewer than two documents.
      UserError: see `prepare`.
    """
    folder, place = partial / "store", runner.identity(partial)
    stages = stages_of(spec, place)
    if partial.exists() and _recorded(partial / IDENTITY) != stages:
        print(f"{partial} holds no part of this preparation; starting from scratch", file=sys.stderr)
        shutil.rmtree(partial)
    if not partial.exists():
        folder.mkdir(parents=True)
        storage.write_text(partial / IDENTITY, json.dumps(stages))
    read = reading.load(partial / READING_SEAL, stages[READING])
    if read is None:
        read = runner.read(config, partial)
        # Fail before tokenizer and encoding, which may take hours. Below it is checked again, because only encoding
        # finds the documents without a token.
        _require_two({name: read.documents(name) for name in SPLITS}, config)
        _check_sources(read)
        reading.save(read, stages[READING], partial / READING_SEAL)
    trained = _tokenizer(config, stages[TOKENIZER], partial)
    contents = assemble(runner.encode(config, partial, read, trained), read, folder)
    _require_two({name: sum(c["documents"] for c in contents["counts"][name].values()) for name in SPLITS}, config)
    store.write_manifest(folder, spec, trained, contents)
    return folder


def stages_of(spec: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    """Return every stage's identity as JSON values.

    Args:
      spec: see `spec.spec_of`.
      place: see `Runner.identity`.
    """
    settings = spec["tokenizer"]
    read = {name: spec[name] for name in spec if name not in ("tokenizer", "splitter")} | place
    if isinstance(settings, dict):  # a tokenizer to be trained, on a sample from the first pass
        read["sample_characters"] = settings["sample_characters"]
    return json.loads(json.dumps({READING: read, TOKENIZER: {name: spec[name] for name in ("tokenizer", "splitter")}}))


def take_over(partial: Path, other: Path, spec: dict[str, Any], before: dict[str, Any], runner: Runner) -> bool:
    """Turn the unfinished preparation `other` into `partial` if it has read the same text.

    Its tokenizer and tokens are removed unless they are the same. Once everything is encoded, the text has been
    deleted, so `other` can only serve the same tokenizer.

    Args:
      spec: the spec for `partial`.
      before: spec with which `other` may have read.
      runner: the runner for `partial`. Another one keeps other files.

    Returns:
      Whether `other` was taken over.
    """
    place = runner.identity(partial)
    stages, ours = _recorded(other / IDENTITY), stages_of(spec, place)
    if stages is None or stages[READING] != stages_of(before, place)[READING]:
        return False
    try:
        read = reading.load(other / READING_SEAL, stages[READING])
    except DamagedShard:
        return False
    if stages[TOKENIZER] != ours[TOKENIZER]:
        # Another tokenizer needs all of the text, which is deleted once it is encoded.
        if read is not None and len(list((other / "text").glob("*"))) < len(read.shard_bytes):
            return False
        (other / TOKENIZER_SEAL).unlink(missing_ok=True)
        for tokens in (other / "tokens").glob("*"):
            tokens.unlink()
    if read is not None:
        # The identity of the text changes if `before` had another `on_bad_document`, so it is sealed again.
        reading.save(read, ours[READING], other / READING_SEAL)
    storage.write_text(other / IDENTITY, json.dumps(ours))
    other.rename(partial)
    return True


def _tokenizer(config: DataConfig, identity: dict[str, Any], partial: Path) -> Tokenizer:
    """Return the store's tokenizer: train it on the sample, or load an existing one.

    Raises:
      UserError: it cannot be trained or loaded.
    """
    folder, settings = partial / "store", config.tokenizer
    if _recorded(partial / TOKENIZER_SEAL) == identity:
        with contextlib.suppress(UserError):  # a damaged one is made again
            return tokenizer.load(folder / "tokenizer")
    shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    (folder / "tokenizer").mkdir()
    # Loaded for an existing tokenizer too: its lost characters are counted on the same sample.
    sentences = [sentence for text in reading.load_sample(partial) for sentence in split(text, config.splitter)]
    if settings.model:
        trained = tokenizer.from_model(settings.model, settings.lowercase)
    else:
        trained = tokenizer.train(sentences, settings)
    trained.save(folder / "tokenizer")
    storage.flush_folder(folder / "tokenizer")  # the seal must not survive a crash of the machine without it
    characters_of(sentences, trained).save(folder)
    storage.write_text(partial / TOKENIZER_SEAL, json.dumps(identity))
    return trained


def _recorded(path: Path) -> Any:
    """Read a JSON file; None if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _check_sources(read: reading.Reading) -> None:
    """Raise UserError if all documents of a source are in the others too: none of it would be trained or scored."""
    kept, copies = (
        {name: sum(n for (_, other), n in zip(read.groups, counts) if other == name) for _, name in read.groups}
        for counts in (read.kept, read.duplicates)
    )
    for name, count in copies.items():
        if count and not kept[name]:
            others = " or ".join("data.heldout" if o == reading.HELDOUT_FILE else o for o in kept if o != name)
            raise UserError(
                f"data.sources.{name} has {count:,} documents, and each is in {others} too, so none is left; remove it"
            )


def _require_two(documents: dict[str, int], config: DataConfig) -> None:
    """Raise TooFew unless each split has two documents."""
    train, heldout = documents["train"], documents["heldout"]
    if train >= 2 and heldout >= 2:
        return
    given = {"filters": config.filters, "near_duplicates": config.near_duplicates.drop, "share": config.share < 1}
    changed = " or ".join(f"data.{name}" for name in ("heldout", *(name for name, is_set in given.items() if is_set)))
    few = f"{train} training and {heldout} held-out documents, but two of each are needed"
    raise TooFew(f"{corpora(config)} gives {few}; add documents (in .txt a blank line ends one), or change {changed}")


def assemble(shards: Iterable[EncodedShard], read: Reading, folder: Path) -> dict:
    """Write the splits into a folder and return their description for the manifest.

    Args:
      shards: all shards in corpus order. Their boundaries have no effect.

    Raises:
      RunFailed: documents were read, but are neither in the store nor counted as left out; see `ledger`.
    """
    accounts = Ledger()
    accounts.add_all(read.ledger)
    counts_GC = np.zeros((len(read.groups), len(COUNTS)), np.int64)
    # Every source is listed, also those with 0, so that manifests of one corpus always have the same keys.
    longest, skipped = [], dict.fromkeys((source for _, source in read.groups), 0) | read.skipped
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(contextlib.closing(SplitWriter(folder, name))) for name in SPLITS}
        for shard in shards:
            for group, counts in shard.counts.items():
                counts_GC[group] += counts
            for group, _, characters in shard.skipped:
                skipped[read.groups[group][1]] += 1
                accounts.add(read.groups[group][1], "no_token", 1, characters)
            # Stable, so equally long documents stay in corpus order, wherever shards end.
            longest = sorted(longest + shard.longest, key=lambda entry: -entry[0])[:LONGEST]
            for name in SPLITS:
                writers[name].append(*shard.arrays[name])
    counts, duplicates = {name: {} for name in SPLITS}, dict.fromkeys(skipped, 0)
    for (name, source), counts_C, number in zip(read.groups, counts_GC, read.duplicates, strict=True):
        counts[name][source] = dict(zip(COUNTS, counts_C.tolist(), strict=True))
        accounts.add(source, name, counts[name][source]["documents"], counts[name][source]["characters"])
        duplicates[source] += number
    # Before the manifest is written: without one, the folder is not a store.
    cleaning.check_ledger(accounts.numbers)
    longest = [[tokens, read.groups[group][1], name] for tokens, group, name in longest]
    contents = {"counts": counts, "duplicates": duplicates, "skipped": skipped, "longest": longest}
    contents["ledger"] = accounts.numbers
    return contents | ({"cleaning": read.cleaning} if read.cleaning else {})
