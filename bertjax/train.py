"""python -m bertjax.train: pretrains an encoder from one configuration, and goes on where it was stopped."""

import argparse
import dataclasses
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from bertjax import config as configuration
from bertjax import errors, export
from bertjax.commands import command
from bertjax.config import Config
from bertjax.data.preparation import open_or_prepare
from bertjax.errors import UserError
from bertjax.training import curves, platform, report, restoring
from bertjax.training.checkpoint import fingerprints
from bertjax.training.files import Workdir, append_jsonl, cut_jsonl, write_json
from bertjax.training.loop import Trained, train
from bertjax.training.program import Program
from bertjax.training.sharding import check_batch, make_mesh

_RECORDED_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece")


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a call of `run` came to.

    Attributes:
      step: steps done.
      finished: whether that is all of them.
      figures: as in `summary.json`; empty where the run is not finished.
      workdir: where everything was written.
    """

    step: int
    finished: bool
    figures: dict[str, Any]
    workdir: Path


def run(
    config: Config,
    workdir: str | Path,
    *,
    name: str = "",
    extend: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Trains in a workdir, from its newest checkpoint if it has one, and exports the result.

    Args:
      config: what to train.
      workdir: where everything is written; the same call on it resumes.
      name: of the configuration file, for its reference curve.
      extend: allows the last stage to be longer than when the workdir was begun.
      should_stop: asked between steps; when it says yes, the state is saved and the call returns.

    Raises:
      UserError: bad input; nothing that was there is lost.
      RunFailed: the run began and cannot go on.
    """
    if jax.process_count() > 1:
        raise UserError(f"{jax.process_count()} processes take part; this version trains with one, on all its devices")
    files = Workdir.at(workdir)
    with files.locked():
        if extend and not files.config.exists():
            raise UserError(f"--extend finds no run in {files.root}; name the run that shall go on with --workdir")
        mesh = make_mesh(config.runtime.mesh)
        for stage in config.stages:
            check_batch(stage.batch, config.runtime.micro_batches, mesh)
        program = Program(config, open_or_prepare(config.data, may_prepare=True), mesh)
        trained = _train_in(files, program, extend, should_stop)
        if trained.evaluation is None:
            return Summary(trained.step, False, {}, Path(files.root))
        figures = report.summary_of(trained.evaluation, trained.totals, trained.step)
        _write_results(files, program, trained, figures, name)
        return Summary(trained.step, True, figures, Path(files.root))


def _train_in(files: Workdir, program: Program, extend: bool, should_stop: Callable[[], bool]) -> Trained:
    feed = program.train_feeds[program.config.task_name, program.config.stages[0].seq_len]
    identity = program.config.identity(program.store.fingerprint) | {"plan": feed.fingerprint}
    if program.frozen is not None:
        identity["frozen"] = fingerprints(program.frozen)
    if program.opened_objective.fingerprints:
        identity["read"] = program.opened_objective.fingerprints
    resumes = restoring.check_identity(files, identity, extend)
    tokenizer = program.store.tokenizer
    restoring.write_record(files, restoring.RunRecord(program.config, identity, tokenizer.vocab_size), tokenizer)
    cut_jsonl(files.starts, last_step=math.inf)
    append_jsonl(files.starts, _start_record(resumes, extend))
    print("\n".join(report.parameter_lines(program.abstract_state["params"], program.encoder)))
    print(report.plan_line(feed))
    devices = f"{program.mesh.devices.size} {jax.default_backend()} device(s)"
    print(f"{devices}, {program.encoder.execution.dtype}", flush=True)
    meta = {
        "config": configuration.to_dict(program.config),
        "tokenizer": tokenizer.fingerprint,
        "plan": feed.fingerprint,
    }
    return train(program, files, meta, should_stop)


def _write_results(files: Workdir, program: Program, trained: Trained, figures: dict, name: str) -> None:
    params = jax.device_get(trained.state["params"])
    export.write(files.export, export.Export(program.config, program.encoder, params, program.store.tokenizer, figures))
    write_json(files.summary, figures)
    curves.draw(files.metrics, files.curves, name)


def _start_record(resumes: bool, extend: bool) -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "resumes": resumes,
        "extend": extend,
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "git": _git_state(),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "python": sys.version.split()[0],
        "versions": {package: metadata.version(package) for package in _RECORDED_PACKAGES},
    }


def _git_state() -> str:
    """Which commit of bertjax this is; empty where there is no git, or no repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _stop_signal() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set; a second signal ends the process at once."""
    stop = threading.Event()

    def ask_to_stop(signum: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\nstopping after this step; once more to leave without saving\n")

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, ask_to_stop)
    return stop


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = errors.ArgumentParser(
        prog="python -m bertjax.train",
        description="Pretrains an encoder: text in, checkpoints and an exported encoder out. The same command resumes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    configuration.add_flags(parser)
    parser.add_argument("--workdir", help="where everything is written (default: runs/<config and overrides>)")
    platform.add_flag(parser)
    parser.add_argument(
        "--extend", action="store_true", help="train a run longer than it was begun: more stages.0.steps"
    )
    args, overrides = configuration.parse(parser, argv)
    if argv is None:
        platform.restart_with_huge_pages(args.platform)
    platform.configure_logging()
    config = configuration.load(args.config, overrides)
    platform.configure(args.platform)
    workdir = args.workdir or f"runs/{configuration.short_name(args.config, overrides)}"
    changed = [override for override in configuration.identifying(overrides) if not override.startswith("seed=")]
    name = "" if changed else configuration.short_name(args.config, [])
    summary = run(config, workdir, name=name, extend=args.extend, should_stop=_stop_signal().is_set)

    if not summary.finished:
        again = command("train", *(sys.argv[1:] if argv is None else argv))
        print(f"stopped and saved at step {summary.step}; to go on: {again}")
        return 0
    report.print_summary(summary.figures)
    root = summary.workdir
    print(f"encoder   {root / 'export'}\ncurves    {root / 'curves.png'}\nfigures   {root / 'summary.json'}")
    print(f"next      {command('evaluate', str(root / 'export'))}")
    return 0


if __name__ == "__main__":
    sys.exit(errors.exit_code_of(main))
