"""Open what a run needs, check the start against the record in its workdir, and write the new record."""

import dataclasses
import functools
import time
import uuid
from typing import Any, cast

import jax
from etils import epath

from bertjax.config import config as configuration
from bertjax.config.config import Config
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.store import TokenStore
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training import branch, init_from
from bertjax.training.encoder_check import check_encoder
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.program import Program
from bertjax.training.resolve import open_feeds, with_measured_steps
from bertjax.training.results import report, source_epochs
from bertjax.training.run import record, versions
from bertjax.training.run.fingerprints import fingerprints
from bertjax.training.run.record import start_record
from bertjax.training.run.tracking import check_trackers
from bertjax.training.run.workdir import Workdir, append_jsonl, write_json
from bertjax.training.session import Session
from bertjax.training.teachers import open_teachers


@dataclasses.dataclass(frozen=True)
class Start:
    """A start that matches its workdir; nothing of it is written before `commit`.

    Attributes:
      session: the open workdir.
      program: the run with its resolved configuration.
      feeds: the run's data.
      source: initial parameters; None for random ones.
      run_record: written by `commit`.
      resumes: whether the workdir already holds the run.
      longer: whether the last stage may have more steps than before.
    """

    session: Session
    program: Program
    feeds: Feeds
    source: init_from.Source | None
    run_record: record.RunRecord
    resumes: bool
    longer: bool

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """Metadata stored with every checkpoint."""
        return {
            "config": configuration.to_dict(self.program.config),
            "identity": self.run_record.identity,
            "tokenizer": self.feeds.store.tokenizer.fingerprint,
            "plans": self.feeds.fingerprints,
            "layout": report.layout_line(self.program),
        }

    def commit(self) -> None:
        """Write the record and this start's line. Call it once nothing can refuse the start anymore.

        Raises:
          UserError: the processes have different workdirs; nothing is written.
        """
        check_shared(self.session.files)
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
    resumed = before if before and config.init_from and record.has_checkpoint(files) else None
    initial = branch if config.init_state else init_from
    processes.together(initial.check, config, resumed)
    settings, config = config, processes.together(open_teachers, config)
    processes.together(check_trackers, config.runtime.trackers)
    encoder = config.encoder(config.expected_vocab_size, jax.default_backend())
    processes.together(check_encoder, encoder)
    expected = Program(config, config.expected_vocab_size)
    processes.together(expected.check)  # before a corpus is prepared
    with session.watchdog.state("starting", is_watched=False):  # preparing a corpus takes minutes or a day
        feeds = open_feeds(config, before)
        processes.together(feeds.plan)
    config, tokenizer = feeds.config, feeds.store.tokenizer  # resolved
    program = Program(config, tokenizer.vocab_size)
    program = expected if program == expected else program  # its model has been traced
    processes.together(program.check)
    if config.stages[0].minutes:
        with session.watchdog.state("compiling"):
            config = with_measured_steps(program, feeds, before)
        feeds, program = dataclasses.replace(feeds, config=config), Program(config, tokenizer.vocab_size)
        processes.together(feeds.plan)
        processes.together(program.check)
    session.watchdog.locate(0, sum(cast(int, stage.steps) for stage in config.stages))
    source = processes.together(initial.source_of, resumed, program, feeds)
    identity = _identity(program, feeds, source)
    if beside:
        processes.from_writer(lambda: record.check_reads(beside, identity), "reads")
    run_record = record.RunRecord(config, settings, identity, tokenizer.vocab_size)
    resumes = processes.from_writer(lambda: record.check_identity(files, run_record, longer), "record")
    record.check_processes(identity)
    return Start(session, program, feeds, source, run_record, resumes, longer)


def _identity(program: Program, feeds: Feeds, source: init_from.Source | None) -> dict[str, Any]:
    """Return what decides the result of a run, as compared when it resumes."""
    # Settings alone do not determine the result: plans, frozen parameters (a teacher, for example), initial weights and
    # resources such as a lexicon are compared by content.
    identity = program.config.identity(feeds.store.fingerprint) | {"plans": feeds.fingerprints}
    frozen = processes.together(lambda: {name: task.frozen for name, task in program.tasks.items() if task.frozen})
    if frozen:
        identity["frozen"] = {
            program.config.qualified(name, path): value
            for name, params in frozen.items()
            for path, value in fingerprints(params).items()
        }
    if source is not None:
        identity["init_from"] = source.fingerprint
    if feeds.read:
        identity["read"] = feeds.read
    return identity


def print_plan(start: Start) -> None:
    """Print parameters, data, stages and layout of a run."""
    program, feeds, config = start.program, start.feeds, start.program.config
    label = functools.partial(config.qualified, name="")
    layers = "encoder/layers/" + "N/" * config.optimizer.is_outside
    lines = report.parameter_lines(program.abstract_state["params"], program.encoder, layers)
    for (task, _), feed in feeds.train.items():
        lines.append(report.plan_line(feed, task, label(task)))
        lines += report.reading_warnings(feed, task) if isinstance(feeds.store, TokenStore) else []
        if shares := feeds.source_shares(feed):
            lines.append(report.sources_line(shares, label(task)))
    lines += source_epochs.lines(feeds, program.timetable, branch.first_step(config))
    lines += [report.heldout_line(feed, label(task)) for task, feed in feeds.heldout.items()]
    lines += [report.heldout_line(feed, config.qualified(*key)) for key, feed in feeds.further_heldout.items()]
    lines += [report.stage_line(index, program) for index in range(len(config.stages))]
    lines += [f"warm-up: {config.optimizer.warmup_steps:,} steps", *report.replacing_lines(config)]
    print("\n".join([*lines, report.layout_line(program)]), flush=True)


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
