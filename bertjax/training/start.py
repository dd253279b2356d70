"""Check a start against the record in its workdir, print the plan, and write the new record."""

import contextlib
import dataclasses
import functools
import math
from typing import Any

from bertjax.config import config as configuration
from bertjax.config.config import Config
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, say
from bertjax.training import init_from
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.program import Program
from bertjax.training.results import report, source_epochs
from bertjax.training.run import record, versions
from bertjax.training.run.fingerprints import fingerprints
from bertjax.training.run.foreign_code import foreign_modules
from bertjax.training.run.lease import Lease
from bertjax.training.run.record import start_record
from bertjax.training.run.shared import check_shared
from bertjax.training.run.workdir import Workdir, append_jsonl, cut_jsonl, write_json


@dataclasses.dataclass(frozen=True)
class Start:
    """A start that matches its workdir and has not written to it yet.

    Attributes:
      files: the workdir.
      run_record: written by `commit`.
      tokenizer: written by `commit`.
      resumes: whether the workdir already holds the run.
      longer: whether the last stage may have more steps than before.
      meta: metadata stored with every checkpoint.
    """

    files: Workdir
    run_record: record.RunRecord
    tokenizer: Tokenizer
    resumes: bool
    longer: bool
    meta: dict[str, Any]

    def commit(self) -> None:
        """Write the record and this start's line. Call it once nothing can refuse the start anymore.

        Raises:
          UserError: the processes have different workdirs; nothing is written.
        """
        check_shared(self.files)
        processes.on_writer(self._write)

    def _write(self) -> None:
        modules = foreign_modules(self.run_record.config)
        record.write_record(self.files, self.run_record, self.tokenizer)
        # A killed start may have left half a line; appending to it would damage the new line as well.
        cut_jsonl(self.files.starts, last_step=math.inf)
        append_jsonl(self.files.starts, start_record(self.resumes, self.longer, modules))
        write_json(self.files.versions, versions.installed())


def claim(files: Workdir, longer: bool, locks: contextlib.ExitStack) -> Lease | None:
    """Lock a workdir until `locks` closes; see `Workdir.locked`.

    Raises:
      UserError: the path cannot hold checkpoints, or `longer` is set and the workdir has no run to continue.
    """
    files.check_checkpoints()
    lock = locks.enter_context(files.locked())
    if longer and not storage.exists(files.config):
        raise UserError(f"--longer finds no run in {files.root}; name the run to continue with --workdir")
    return lock


def check_start(
    files: Workdir, settings: Config, program: Program, feeds: Feeds, source: init_from.Source | None, longer: bool
) -> Start:
    """Compare a start with the record in the workdir, if there is one, and print the run's plan.

    Args:
      files: the workdir.
      settings: configuration as the user wrote it.
      program: the run with its resolved configuration.
      feeds: the run's data.
      source: initial parameters; None for random ones.
      longer: whether the last stage may have more steps than before.

    Raises:
      UserError: settings or data differ from the ones that the workdir was started with.
    """
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
    tokenizer = feeds.store.tokenizer
    run_record = record.RunRecord(program.config, settings, identity, tokenizer.vocab_size)
    resumes = processes.from_writer(lambda: record.check_identity(files, run_record, longer), "record")
    record.check_processes(identity)
    label = functools.partial(program.config.qualified, name="")
    print("\n".join(report.parameter_lines(program.abstract_state["params"], program.encoder)))
    for (task, _), feed in feeds.train.items():
        print(report.plan_line(feed, task, label(task)))
        if isinstance(feeds.store, TokenStore):
            print("".join(f"{line}\n" for line in report.reading_warnings(feed, task)), end="")
        if shares := feeds.source_shares(feed):
            print(report.sources_line(shares, label(task)))
    for line in source_epochs.lines(feeds, program.timetable):
        print(line)
    print("\n".join(report.heldout_line(feed, label(task)) for task, feed in feeds.heldout.items()))
    for task in feeds.heldout:
        if isinstance(labeled := feeds.store_of(task), LabeledSource):
            for line in report.labeled_lines(labeled, program.config.tasks[task].objective, label(task)):
                say(line)
    for key, feed in feeds.further_heldout.items():
        print(report.heldout_line(feed, program.config.qualified(*key)))
    print("\n".join(report.stage_line(index, program) for index in range(len(program.config.stages))))
    for line in report.replacing_lines(program.config):
        print(line)
    print(report.layout_line(program), flush=True)
    meta = {
        "config": configuration.to_dict(program.config),
        "tokenizer": tokenizer.fingerprint,
        "plans": feeds.fingerprints,
        "layout": report.layout_line(program),
    }
    return Start(files, run_record, tokenizer, resumes, longer, meta)
