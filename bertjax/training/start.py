"""One start of a run: its lock, heartbeat, watchdog, log writer and clock; its data, checks and record."""

import contextlib
import dataclasses
import functools
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

import jax
from etils import epath

from bertjax.config import config as configuration
from bertjax.config.config import Config
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.store import TokenStore
from bertjax.runtime import command_line, storage
from bertjax.runtime.errors import UserError, reason
from bertjax.training import branch, init_from
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.resolve import open_feeds, with_measured_steps
from bertjax.training.results import report, source_epochs
from bertjax.training.run import record, versions
from bertjax.training.run.fingerprints import fingerprints
from bertjax.training.run.lease import Lease
from bertjax.training.run.metrics import Elapsed
from bertjax.training.run.notify import Notifier, end_of, is_refusal, parsed
from bertjax.training.run.record import start_record
from bertjax.training.run.trackers import check_trackers
from bertjax.training.run.watchdog import Watchdog
from bertjax.training.run.workdir import Workdir, append_jsonl, write_json
from bertjax.training.run.writer import LogWriter
from bertjax.training.setup import Frozen, Setup, init_frozen, make_timetable, open_teachers
from bertjax.training.trace_checks import check_encoder, checked_setups


@contextlib.contextmanager
def restoring_heartbeat(files: Workdir, accepted: threading.Event) -> Iterator[None]:
    """Restore `heartbeat.json` if a start ends with bad input before it is accepted.

    If there was none, it is removed; without a run, `elapsed.json` is too.

    A start writes its heartbeat as soon as it holds the lock, because opening the data may take an hour.

    Args:
      files: the workdir, locked by the caller.
      accepted: set once the start is accepted.
    """
    before = storage.read_bytes(files.heartbeat) if storage.exists(files.heartbeat) else None
    try:
        yield
    except UserError as error:
        # An outage or a failed run is not a refusal: `bertjax status` must show it.
        if not accepted.is_set() and is_refusal(error):
            with contextlib.suppress(storage.StorageError, UserError), storage.storage_errors(files.root):
                if before is not None:
                    storage.write_bytes(files.heartbeat, before)
                else:
                    files.heartbeat.unlink(missing_ok=True)
                if not storage.exists(files.config):
                    files.elapsed.unlink(missing_ok=True)
        raise


@dataclasses.dataclass(frozen=True)
class Session:
    """An open start of a run, in each of its processes.

    Attributes:
      files: the workdir, locked.
      before: record of the start before this one; None at the first.
      lock: lock of the workdir, if this process holds one that can be lost.
      writer: writes the logs.
      watchdog: limits and reports each activity.
      elapsed: wall time over all starts.
      accepted: set once the start is accepted, see `restoring_heartbeat`.
      closing: closes what is opened later, such as trackers.
    """

    files: Workdir
    before: record.RunRecord | None
    lock: Lease | None
    writer: LogWriter
    watchdog: Watchdog
    elapsed: Elapsed
    accepted: threading.Event
    closing: contextlib.ExitStack

    def accept(self) -> None:
        """Accept the start: from now on, errors belong to the run."""
        self.accepted.set()
        if self.before is not None:
            self.writer.add(self.elapsed)

    def verify_lock(self) -> None:
        """Raise Unavailable in all processes if the writer has lost its lock, by reading the lock file."""
        processes.on_writer(self.lock.verify if self.lock else lambda: None)

    def end(self, state: str, exit_code: int, step: int) -> None:
        """Report the end of the run in the heartbeat and as an event."""
        self.watchdog.end(state, exit_code)
        self.watchdog.notify(state, step)


@contextlib.contextmanager
def opened(
    config: Config, workdir: str | Path | epath.Path, longer: bool, other_versions: bool, on_event: str
) -> Iterator[Session]:
    """Lock the workdir and start the heartbeat. If the session ends with an error, the heartbeat records it.

    Args:
      config: the configuration as the user wrote it.
      workdir: the run's folder.
      longer: whether the run must exist already, to be continued with more steps.
      other_versions: allow other versions of computing libraries than at the last start.
      on_event: command to run at each event, see `Notifier`.

    Raises:
      UserError: the workdir cannot be used, or was written with other versions.
    """
    files, is_writer, accepted = Workdir.at(workdir), processes.is_writer(), threading.Event()
    parsed(on_event)  # in every process, so that all end alike
    with (
        contextlib.closing(Notifier(on_event if is_writer else "", str(files.root))) as notify,
        Watchdog(config.runtime.hang_timeout, files.heartbeat, notify) as watchdog,
        contextlib.ExitStack() as closing,
        processes.noticing_lost_peers(),
    ):

        def enter() -> tuple[Lease | None, Elapsed]:
            lock = claim(files, longer, closing) if is_writer else None
            if is_writer:
                closing.enter_context(restoring_heartbeat(files, accepted))
            return lock, Elapsed(files.elapsed)

        def is_of_run(error: BaseException | None) -> TypeGuard[BaseException]:
            return error is not None and (accepted.is_set() or not is_refusal(error))

        def record_end(_, error: BaseException | None, __) -> None:
            if is_of_run(error):
                watchdog.end(end_of(error), command_line.code_for(error), reason(error))

        def report_end(_, error: BaseException | None, __) -> None:
            if is_of_run(error):
                notify(end_of(error), message=reason(error))

        closing.push(report_end)  # first in, last out: a command that starts the run again finds the lock free
        with contextlib.ExitStack() as without_logs:
            without_logs.push(record_end)
            lock, elapsed = processes.together(enter)
            versions.check(files, other_versions, versions.hashes(versions.foreign_modules(config.training_kinds)))
            without_logs.pop_all()
        writer = closing.enter_context(LogWriter(is_writer, lock))
        closing.push(record_end)
        writer.add(watchdog)  # now: opening the data may take longer than a launcher waits for a heartbeat
        before = record.shared_record(files)
        if before is None:  # the first start counts what it prepares
            writer.add(elapsed)
        yield Session(files, before, lock, writer, watchdog, elapsed, accepted, closing)


def claim(files: Workdir, longer: bool, closing: contextlib.ExitStack) -> Lease | None:
    """Lock a workdir until `closing` closes; see `Workdir.locked`.

    Raises:
      UserError: the path cannot hold checkpoints, has some without a record, or has no run although `longer` is set.
    """
    files.check_checkpoints()
    lock = closing.enter_context(files.locked())
    if not storage.exists(files.config):
        if saved := files.saved_steps():  # any settings would continue it: only the record has those of the run
            raise UserError(
                f"workdir {files.root} has checkpoint {saved[-1]} and no {files.config.name}; restore that file from a "
                "copy, or use another --workdir"
            )
        if longer:
            raise UserError(f"--longer finds no run in {files.root}; name the run to continue with --workdir")
    return lock


@dataclasses.dataclass(frozen=True)
class Start:
    """A start that matches its workdir; nothing of it is written before `commit`.

    Attributes:
      session: the open workdir.
      setups: what each stage computes with; the configuration in them is resolved.
      feeds: the run's data.
      frozen: frozen params, on the devices.
      source: initial parameters; None for random ones.
      run_record: written by `commit`.
      resumes: whether the workdir already holds the run.
      longer: whether the last stage may have more steps than before.
    """

    session: Session
    setups: tuple[Setup, ...]
    feeds: Feeds
    frozen: Frozen
    source: init_from.Source | None
    run_record: record.RunRecord
    resumes: bool
    longer: bool

    @property
    def setup(self) -> Setup:
        """The setup of the last stage, which trains the finished model."""
        return self.setups[-1]

    @property
    def config(self) -> Config:
        return self.setup.config

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """Metadata stored with every checkpoint."""
        return {
            "config": configuration.to_dict(self.config),
            "identity": self.run_record.identity,
            "tokenizer": self.feeds.store.tokenizer.fingerprint,
            "plans": self.feeds.fingerprints,
            "layout": report.layout_line(self.setup),
        }

    def commit(self) -> None:
        """Write the record and this start's line. Call it once nothing can refuse the start anymore.

        Raises:
          UserError: the processes have different workdirs; nothing is written.
          Unavailable: the writer has lost its lock; nothing is written.
        """
        check_shared(self.session.files)
        self.session.verify_lock()
        processes.on_writer(self._write)
        self.session.accept()

    def _write(self) -> None:
        files, config = self.session.files, self.run_record.config
        modules = versions.foreign_modules((*config.training_kinds, *config.runtime.hooks))
        record.write_record(files, self.run_record, self.feeds.store.tokenizer)
        append_jsonl(files.starts, start_record(self.resumes, self.longer, modules))
        write_json(files.versions, versions.installed())
        for task in config.tasks:
            source = self.feeds.store_of(task)
            if isinstance(source, LabeledSource) and source.is_divided:
                record.write_split(files, task, source.divided)


def check_start(session: Session, config: Config, longer: bool, beside: Workdir | None = None) -> Start:
    """Open everything that a run needs, and compare it with the record in the workdir.

    Args:
      session: the open workdir.
      config: the configuration as the user wrote it.
      longer: whether the last stage may have more steps than before.
      beside: a run that must have read the same data.

    Raises:
      UserError: the configuration cannot be run here, or settings or data differ from the ones that the workdir was
        started with.
    """
    files, before = session.files, session.before
    resumed = before if before and (config.init_from or config.init_words) and record.has_checkpoint(files) else None
    initial = branch if config.init_state else init_from

    def look() -> tuple[Config, tuple[Setup, ...]]:
        """Check all that needs no data: preparing a corpus takes minutes or a day."""
        initial.check(config, resumed)
        opened = open_teachers(config)
        check_trackers(opened.runtime.trackers)
        check_encoder(opened.encoder(opened.expected_vocab_size, jax.default_backend()))
        return opened, checked_setups(opened, opened.expected_vocab_size)

    resolved, setups = processes.together(look)
    with session.watchdog.state("starting", is_watched=False):
        feeds = open_feeds(resolved, before)
        processes.together(feeds.plan)
    vocab_size = feeds.store.tokenizer.vocab_size
    if feeds.config.stages[0].minutes:
        setups = processes.together(checked_setups, feeds.config, vocab_size)
        with session.watchdog.state("compiling"):
            feeds = dataclasses.replace(feeds, config=with_measured_steps(setups[-1], feeds, before))
        processes.together(feeds.plan)
    session.watchdog.locate(0, sum(cast(int, stage.steps) for stage in feeds.config.stages))

    def open_weights() -> tuple[tuple[Setup, ...], init_from.Source | None, Frozen]:
        is_known = (feeds.config, vocab_size) == (setups[-1].config, setups[-1].encoder.vocab_size)
        of_stages = setups if is_known else checked_setups(feeds.config, vocab_size)
        return of_stages, initial.source_of(resumed, of_stages, feeds), init_frozen(of_stages)

    setups, source, frozen = processes.together(open_weights)
    identity = _identity(feeds, frozen[setups[-1]], source)
    run_record = record.RunRecord(feeds.config, config, identity, vocab_size)

    def compare() -> bool:
        if beside:
            record.check_reads(beside, identity)
        return record.check_identity(files, run_record, longer)

    resumes = processes.from_writer(compare, "record")
    record.check_processes(identity)
    return Start(session, setups, feeds, frozen, source, run_record, resumes, longer)


def _identity(feeds: Feeds, frozen: Mapping[str, dict | None], source: init_from.Source | None) -> dict[str, Any]:
    """Return what decides the result of a run, as compared when it resumes."""
    # Settings alone do not determine the result: plans, frozen parameters (a teacher, for example), initial weights and
    # resources such as a lexicon are compared by content.
    config = feeds.config
    identity = config.identity(feeds.store.fingerprint) | {"plans": feeds.fingerprints}
    if any(frozen.values()):
        identity["frozen"] = {
            config.qualified(name, path): value
            for name, params in frozen.items()
            if params
            for path, value in fingerprints(params).items()
        }
    if source is not None:
        identity["init_from"] = source.fingerprint
    if feeds.read:
        identity["read"] = feeds.read
    return identity


def print_plan(start: Start) -> None:
    """Print parameters, data, stages and layout of a run."""
    setup, feeds, config = start.setup, start.feeds, start.config
    label = functools.partial(config.qualified, name="")
    layers = "encoder/layers/" + "N/" * config.optimizer.is_outside
    lines = report.parameter_lines(setup.shapes["params"], setup.encoder, layers)
    for (task, _), feed in feeds.train.items():
        lines.append(report.plan_line(feed, task, label(task)))
        lines += report.reading_warnings(feed, task) if isinstance(feeds.store, TokenStore) else []
        if shares := feeds.source_shares(feed):
            lines.append(report.sources_line(shares, label(task)))
    lines += source_epochs.lines(feeds, make_timetable(config), branch.first_step(config))
    lines += [report.heldout_line(feed, label(task)) for task, feed in feeds.heldout.items()]
    lines += [report.heldout_line(feed, config.qualified(*key)) for key, feed in feeds.further_heldout.items()]
    lines += [report.stage_line(index, own) for index, own in enumerate(start.setups)]
    lines += [f"warm-up: {config.optimizer.warmup_steps:,} steps", *report.replacing_lines(config)]
    print("\n".join([*lines, report.layout_line(setup)]), flush=True)


_LOOKS, _SECONDS_BETWEEN_LOOKS = 60, 1.0


def check_shared(workdir: Workdir) -> None:
    """Raise UserError in every process unless all see a file that process 0 writes and then removes.

    The file has a new name each time, because an NFS client caches known files. The name ends in `.draft`, so the next
    start removes the file if this process is killed.
    """
    if jax.process_count() == 1:
        return
    name = processes.from_writer(lambda: f".shared.{uuid.uuid4().hex}.draft", "mark")
    mark = workdir.root / name
    processes.on_writer(lambda: storage.write_bytes(mark, b"seen by all processes?"), "write-mark")
    try:
        processes.together(wait_for, mark, workdir, purpose="see-mark")
    finally:
        processes.on_writer(lambda: mark.unlink(missing_ok=True), "remove-mark")


def wait_for(mark: epath.Path, workdir: Workdir) -> None:
    """Raise UserError if a file does not appear within a minute."""
    # An NFS client may cache the listing of a folder for half a minute (acdirmin, nfs(5)).
    for _ in range(_LOOKS):
        if storage.exists(mark):
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise UserError(f"workdir {workdir.root} is not the workdir of process 0; name one that all processes share")
