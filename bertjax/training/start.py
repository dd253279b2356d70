"""What happens once at each start of a run: its record is written or compared, and its plan is printed."""

import functools
import math
from typing import Any

from bertjax import config as configuration
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.tokenizer import Tokenizer
from bertjax.training import init_from
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.program import Program
from bertjax.training.results import report, source_epochs
from bertjax.training.run import record, versions
from bertjax.training.run.fingerprints import fingerprints
from bertjax.training.run.foreign_code import foreign_modules
from bertjax.training.run.record import start_record
from bertjax.training.run.workdir import Workdir, append_jsonl, cut_jsonl, write_json


def record_run(
    files: Workdir, program: Program, feeds: Feeds, source: init_from.Source | None, longer: bool
) -> dict[str, Any]:
    """Write the record of the run, or compare it with the existing one, and print what the run is about to do.

    Args:
      files: the workdir.
      program: the run, its configuration resolved.
      feeds: its data.
      source: what its parameters start from; None for random ones.
      longer: whether more steps in the last stage than before are allowed.

    Returns:
      The metadata of every checkpoint.

    Raises:
      UserError: the settings or the data differ from those that the workdir was started with.
    """
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
    run_record = record.RunRecord(program.config, identity, tokenizer.vocab_size)
    processes.on_writer(lambda: _write_record(files, run_record, tokenizer, longer))
    processes.together(lambda: record.check_shared(files, identity))
    label = functools.partial(program.config.qualified, name="")
    print("\n".join(report.parameter_lines(program.abstract_state["params"], program.encoder)))
    for (task, _), feed in feeds.train.items():
        print(report.plan_line(feed, task, label(task)))
        if shares := feeds.source_shares(feed):
            print(report.sources_line(shares, label(task)))
    for line in source_epochs.lines(feeds, program.timetable):
        print(line)
    print("\n".join(report.heldout_line(feed, label(task)) for task, feed in feeds.heldout.items()))
    for task in feeds.heldout:
        if isinstance(labeled := feeds.store_of(task), LabeledSource) and (count := labeled.repeated()):
            print(report.repeated_line(count, label(task)))
    for key, feed in feeds.further_heldout.items():
        print(report.heldout_line(feed, program.config.qualified(*key)))
    print("\n".join(report.stage_line(index, program) for index in range(len(program.config.stages))))
    for line in report.replacing_lines(program.config):
        print(line)
    print(report.layout_line(program), flush=True)
    return {
        "config": configuration.to_dict(program.config),
        "tokenizer": tokenizer.fingerprint,
        "plans": feeds.fingerprints,
        "layout": report.layout_line(program),
    }


def _write_record(files: Workdir, run_record: record.RunRecord, tokenizer: Tokenizer, longer: bool) -> None:
    resumes = record.check_identity(files, run_record.identity, longer)
    record.write_record(files, run_record, tokenizer)
    cut_jsonl(files.starts, last_step=math.inf)
    append_jsonl(files.starts, start_record(resumes, longer, foreign_modules(run_record.config)))
    write_json(files.versions, versions.installed())
