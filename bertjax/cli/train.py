"""Train an encoder from one configuration file.

The workdir receives metrics, checkpoints and, at the end, an exported model. The same command resumes a run that was
stopped.

examples:
  the embedded corpus:  python -m bertjax.train --config=tiny
  your own texts:       python -m bertjax.train --config=tiny --config.data.corpus='texts/*.txt'
"""

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from etils import epath
from jax.experimental import multihost_utils

from bertjax.cli.train_output import describe_labeled, print_lines, report_result
from bertjax.config import config as configuration
from bertjax.config import config_file, export, private_paths, settings
from bertjax.config.config import Config
from bertjax.data.labeled.base import Record
from bertjax.interop import families, huggingface
from bertjax.interop.names import of_run
from bertjax.objectives.finetuning.answers import without_location
from bertjax.runtime import command_line, platform, storage
from bertjax.runtime.command_line import STOPPED, command, guarded, stop_signal
from bertjax.runtime.errors import RunFailed, Unexplained, UserError, say
from bertjax.training import loop, start, sweep
from bertjax.training.compression import describe_zeros
from bertjax.training.each import Results, Summary, Trial, run_each
from bertjax.training.evaluation import Evaluation
from bertjax.training.hooks.base import Run
from bertjax.training.hooks.default import default_hooks, user_hooks
from bertjax.training.hooks.log import open_log, parse_steps
from bertjax.training.optim.ema import averaged
from bertjax.training.optim.outside import function_of
from bertjax.training.parallel import processes
from bertjax.training.restore import restore
from bertjax.training.results import classes, curves, folds, seeds
from bertjax.training.results.scores import write_scores
from bertjax.training.run import record, versions
from bertjax.training.run.workdir import Workdir, has_trained, local_folder, runs_in, write_json, write_jsonl
from bertjax.training.setup import make_timetable, merged

log = logging.getLogger(__name__)


def run(
    config: Config,
    workdir: str | Path,
    *,
    name: str = "",
    longer: bool = False,
    other_versions: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    profile: range | None = None,
    on_event: str = "",
    beside: Workdir | None = None,
) -> Summary:
    """Train in a workdir, from its newest checkpoint if there is one, and export the result.

    Args:
      config: the configuration.
      workdir: folder for everything that the run writes; a second call with the same workdir resumes.
      name: configuration file name, to find the reference curve.
      longer: allow more steps in the last stage than when the workdir was started.
      other_versions: allow other versions of JAX and other computing libraries than at the last start.
      should_stop: called between steps and between evaluation batches. Once it returns True, the state is saved and
        `run` returns. It must return the same in all processes, see `processes.StopTogether`.
      profile: steps to trace with xprof, counted from 0; traces are written to `profile/`.
      on_event: command that the writer process runs at each event, see `Notifier`.
      beside: a run that must have read the same data, with which this one is compared.

    Raises:
      UserError: bad input; existing files are kept.
      RunFailed: the run started and cannot continue.
    """
    processes.check_started()
    if config.optimizer.is_outside:
        processes.together(function_of, config.optimizer.kind)
    with start.opened(config, workdir, longer, other_versions, on_event) as opened:
        own = processes.together(user_hooks, config.runtime.hooks)  # before a corpus is started
        started = start.check_start(opened, config, longer, beside)
        start.print_plan(started)
        facts = describe_labeled(started)
        files, tokenizer = opened.files, started.feeds.store.tokenizer
        with opened.watchdog.state("restoring"):
            figures = record.shared_figures(files, started.run_record.settings)
            is_at_end = bool(figures) and not record.has_checkpoint(files)  # they were removed to save space
            if not is_at_end:
                restored = restore(started)
                is_at_end = restored.step == make_timetable(started.config).steps and not restored.owes_evaluation
        if figures and is_at_end:  # nothing is left to do, and what is there stays as it is
            opened.end("finished", command_line.FINISHED, figures["steps"])
            return Summary(figures["steps"], True, figures, files.path, tokenizer.pad_id)
        with opened.watchdog.state("restoring"):
            opened.verify_lock()  # a run that took over while this one restored has logs of its own
            metrics_log = open_log(started, restored)
            hooks = [*default_hooks(started, restored, metrics_log, profile), *own]
            current = Run(started, restored, metrics_log, hooks, should_stop)
        started.commit()  # up to here, a refused start has not changed any file of the run
        if complaint := families.tokenizer_complaint(started.setup.encoder, tokenizer):
            log.warning("the model will convert neither to transformers nor to ONNX: %s", complaint)
        if facts:
            processes.on_writer(lambda: write_json(files.labeled, facts))
        if not loop.train(current):
            opened.end("stopped", STOPPED, current.saved)
            return Summary(current.saved, False, {}, files.path)
        with opened.watchdog.state("exporting"):
            figures = _export(current, name)
        if current.failure:  # raised after the export, which may be all that is left of the run
            raise current.failure
        opened.end("finished", command_line.FINISHED, current.step)
        return Summary(current.step, True, figures, files.path, tokenizer.pad_id)


def _export(current: Run, name: str) -> dict[str, Any]:
    """Write the model and the results of a finished run, and return its figures."""
    setup, evaluation, files = current.setup, current.evaluation, current.session.files
    models = {files.export: _model(current, merged(setup, current.state), evaluation)}
    if evaluation.ema:
        average = averaged(current.config.optimizer.ema_decay, current.state)
        models[files.export_ema] = _model(current, merged(setup, average), evaluation.ema)
    current.session.verify_lock()
    processes.on_writer(lambda: _write_results(current, models, name))
    return models[files.export].numbers


def _model(current: Run, params: dict, evaluation: Evaluation) -> export.Export:
    """Return the model with these params, and with the figures of their evaluation."""
    config, figures = current.config, current.figures(evaluation)
    params = multihost_utils.process_allgather(export.exported(params), tiled=True)
    own = private_paths.without_teachers(configuration.to_dict(config.tuned(evaluation.metrics)))
    modules = versions.foreign_modules(config.foreign_kinds)
    return export.Export(own, current.setup.encoder, params, current.feeds.store.tokenizer, figures, modules)


def train_each(
    root: epath.Path, trials: Sequence[Trial], should_stop: Callable[[], bool] = lambda: False, **options: Any
) -> Results:
    """Train each run in its folder; see `run_each`.

    Args:
      root: folder of the folders; a second call resumes.
      trials: all runs.
      should_stop, options: further arguments for `run`.
    """

    def train(trial: Trial, files: Workdir, beside: Workdir | None) -> Summary:
        return run(trial.config, files.root, name=trial.name, beside=beside, should_stop=should_stop, **options)

    return run_each(root, trials, train, should_stop)


def _write_results(current: Run, models: dict[epath.Path, export.Export], name: str) -> None:
    config, evaluation, files = current.config, current.evaluation, current.session.files
    for path, model in models.items():
        with local_folder(path) as folder:
            export.write(folder, model)
            try:
                huggingface.write(folder / "hf", model)
            except UserError as error:  # transformers has no class for this objective's heads
                print(f"{path / 'hf'} is not written: {of_run(error, str(files.root))}")
    model = models[files.export]
    write_scores(files.scores, evaluation.of_all("scores"))
    for heldout, part in evaluation.by_set.items():
        if part.predictions:
            path = files.predictions / f"{heldout.replace('/', '-')}.jsonl"
            write_jsonl(path, map(without_location, part.predictions))
    say("".join(f"{line}\n" for line in classes.write(files, config, evaluation)), end="")
    if config.pruning.kind:
        print(f"pruned    {describe_zeros(model.params)}")
    curves.draw(current.log.lines_to_draw, files.curves, name)
    write_json(files.summary, {"finished": True, **model.numbers})  # last: this marks the run as finished


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("train", __doc__)
    config_file.add_flags(parser)
    parser.add_flags(
        {
            "--settings=PREFIX": "print the settings of this configuration, or those below a prefix such as "
            "optimizer, and train nothing"
        },
        nargs="?",
        const="",
    )
    command_line.add_platform_flag(parser)
    processes.add_flag(parser)
    parser.add_flags(
        {
            "--workdir": "folder for everything the run writes (default: runs/<file and overrides>)",
            "--minutes=N": "train for about N minutes here in place of the recipe's steps: the first start measures "
            "the time of a step, and sets steps, warm-up and decay",
        },
        default=None,
    )
    parser.add_flags(
        {
            "--longer": "continue a run with more steps in its last stage (bertjax extend grows a vocabulary)",
            "--other-versions": "resume with other versions of JAX, Flax or Optax than the last start had; the result "
            "may differ",
        },
        action="store_true",
    )
    parser.add_flags(
        {"--profile=FIRST:LAST": "write an xprof trace of these steps, such as 100:105, to profile/ in the workdir"},
        type=parse_steps,
    )
    parser.add_flags(
        {
            "--on-event=COMMAND": "run this command when the run has saved, finished, stopped or failed, and when a "
            "loss jumps or a step is late; it gets the event as JSON on stdin"
        }
    )
    parser.add_flags(
        {"--seeds=N": "train N times, with the seeds 0 to N-1, and report mean and standard deviation of the scores"},
        type=command_line.positive,
        default=0,
    )
    parser.add_flags(
        {
            "--sweep=KEY=VALUE,VALUE,...": "train with each of these values of a setting; may be repeated, for all "
            "combinations"
        },
        action="append",
        default=[],
    )
    args, overrides = config_file.parse(parser, argv)
    if args.seeds and (own := [each for each in (*overrides, *args.sweep) if each.startswith("seed=")]):
        raise UserError(f"--seeds={args.seeds} sets the seeds 0 to {args.seeds - 1}, not {own[0]}; leave one out")
    if args.sweep and (args.distributed or args.longer):
        flag = "--distributed" if args.distributed else "--longer"
        raise UserError(f"{flag} cannot be combined with --sweep; start the --sweep on each machine with one --workdir")
    if args.workdir == "":
        raise UserError("--workdir is empty; name a folder, or leave the flag out")
    if args.minutes is not None:
        if own := [each for each in overrides if re.match(r"stages(\.0\.(steps|epochs|flops|min_steps))?=", each)]:
            raise UserError(f"--minutes={args.minutes} and --config.{own[0]} both set the steps; leave one out")
        overrides.append(f"stages.0.minutes={args.minutes}")
    config = config_file.load(args.config, overrides)
    kinds = {"--seeds": args.seeds, "--sweep": args.sweep, "examples.folds": folds.are_open(config)}
    kinds["stages.0.minutes"] = config.stages[0].minutes  # runs that are compared need equal steps
    several = [kind for kind, value in kinds.items() if value]
    if len(several) > 1 and several != ["--seeds", "--sweep"]:
        raise UserError(f"{several[0]} cannot be combined with {several[-1]}; leave one out")
    if args.settings is not None:  # after all checks of flags: `tpu_pod.sh check` asks for settings to make them
        print(settings.as_text(settings.settings_of(config, args.settings)))
        return command_line.FINISHED
    workdir = args.workdir or f"runs/{config_file.short_name(args.config, overrides)}"
    try:
        if args.distributed:
            processes.start(config.runtime.heartbeat_timeout)
        platform.configure(args.platform)
    except Unexplained as error:
        # Bad input is final for a launcher. A run that has trained before had good input, so a device has failed.
        if not has_trained(workdir):
            raise
        raise RunFailed(f"{error}; the run has trained before, so the same command may succeed again") from error
    platform.configure_logging(processes.is_writer())
    platform.keep_compiled_programs()
    should_stop = processes.StopTogether() if args.distributed else stop_signal()
    with contextlib.ExitStack() as silenced:
        silenced.enter_context(guarded("stdout"))
        if not processes.is_writer():
            silenced.enter_context(contextlib.redirect_stdout(silenced.enter_context(open(os.devnull, "w"))))
        options = {"longer": args.longer, "should_stop": should_stop, "profile": args.profile}
        options |= {"other_versions": args.other_versions, "on_event": args.on_event}
        root, again = Workdir.at(workdir).root, ["train", *(sys.argv[1:] if argv is None else argv)]
        is_single = several in ([], ["stages.0.minutes"])
        others = (lambda: bool(runs_in(root))) if is_single else (lambda: storage.exists(Workdir(root).config))
        if processes.from_writer(others, "other-runs"):
            held = "several runs" if is_single else "a single run"
            raise UserError(f"workdir {workdir} holds {held}, which this command does not train; use another --workdir")
        if is_single:
            name = config_file.reference_name(args.config, overrides)
            return report_result(run(config, workdir, name=name, **options), config, again)
        return _train_several(args, overrides, config, root, options, again)


def _train_several(
    args: argparse.Namespace, overrides: list[str], config: Config, root: epath.Path, options: Any, again: list[str]
) -> int:
    """Train folds, seeds or all `--sweep` combinations, print what they came to, and return the exit code.

    Raises:
      Exception: no run has finished, or a fold has failed, so that its records have no predictions.
    """

    def load(chosen: tuple[str, ...]) -> tuple[Config, str]:
        changes = [*overrides, *chosen]
        return config_file.load(args.config, changes), config_file.reference_name(args.config, changes)

    parts: list[list[Record]] = []
    if folds.are_open(config):
        parts, configs = folds.divide(root, config)
        trials = [Trial(folder, of_fold) for folder, of_fold in configs.items()]
    else:
        trials = sweep.trials_of(args.sweep, args.seeds, load)
    if args.sweep:
        sweep.check_base(root, config)
    results = train_each(root, trials, **options)
    if results.is_stopped:
        print(f"stopped; to resume: {command(*again)}")
        return STOPPED
    if results.error and (parts or not results.figures):
        raise results.error
    figures = [results.figures.get(trial.folder) for trial in trials]
    if parts:
        spread = processes.from_writer(lambda: folds.write(root, parts, figures), "folds")
        return print_lines(lambda: folds.lines_of(root, config, spread, again), root)
    if args.sweep:
        ranked = sweep.write(root, trials, results)
        return print_lines(lambda: sweep.lines_of(root, ranked), root)
    spread = processes.from_writer(lambda: seeds.write(root, figures, results.failures), "seeds")
    return print_lines(lambda: seeds.lines_of(root, spread), root)
