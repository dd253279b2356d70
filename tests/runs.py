"""Start runs as a user does: the command line, in a process of its own or in this one."""

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.ports import reserve_port
from tests.waiting import LIMIT_SECONDS, kill_at_exit, wait_until

CONFIG = Path(__file__).parent / "small_config.py"
# Settings that nothing compiled reads: they choose data and first weights, or what happens between steps.
_NOT_COMPILED, _FILES = {"data", "eval", "init_from", "init_state"}, {"train", "heldout", "fold"}
_BETWEEN_STEPS = {"workers", "log_every", "trackers", "hooks", "save_every", "save_seconds", "keep", "keep_every"}
_BETWEEN_STEPS |= {"keep_best", "keep_at", "skip_rows", "heartbeat_timeout", "hang_timeout"}
# The setups of the runs of this process by their other settings, the last used one last.
_setups: collections.OrderedDict[tuple, Any] = collections.OrderedDict()
_MOST_SETUPS = 24


def write_corpus(path: Path, documents: int = 60) -> Path:
    """Write made-up words in sentences, a paragraph for each document; always the same."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(2, 12))).capitalize() + "."

    path.write_text("\n\n".join(" ".join(sentence() for _ in range(draw.randint(1, 30))) for _ in range(documents)))
    return path


def start(*flags: str, module: str = "train", fault: str = "", **environment: str) -> subprocess.Popen:
    """Start a command of bertjax, a module of the tests, or a run with a fault of `tests.disturbed`."""
    entry = ["bertjax.train"] if module == "train" else ["bertjax", module]
    program = ["tests.disturbed", fault] if fault else [module] if module.startswith("tests.") else entry
    command = [sys.executable, "-m", *program, "--platform=cpu", *flags]
    return kill_at_exit(
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
        )
    )


def start_many(count: int, *flags: str, module: str = "train", fault: str = "") -> list[subprocess.Popen]:
    """Start one run in several processes."""
    together = {"JAX_COORDINATOR_ADDRESS": f"localhost:{reserve_port()}", "JAX_NUM_PROCESSES": str(count)}
    together |= {"module": module, "fault": fault}
    return [start("--distributed", *flags, **together, JAX_PROCESS_ID=str(index)) for index in range(count)]


def finish_many(processes: list[subprocess.Popen]) -> list[subprocess.CompletedProcess]:
    """Wait for the processes of a run; none outlives a test."""
    try:
        return [finish(process) for process in processes]
    finally:
        for process in processes:
            process.kill()


def finish(process: subprocess.Popen) -> subprocess.CompletedProcess:
    """Wait for a process that `start` started."""
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextlib.contextmanager
def shared_programs() -> Iterator[None]:
    """Let runs in this process share what is traced and compiled once for equal settings.

    A run with a teacher has its own setup: the settings are the path of the teacher, which may hold other weights.
    """
    from bertjax.objectives.wrapper import Wrapper
    from bertjax.training import setup, trace_checks
    from bertjax.training.results import rescore

    def shared(make: Callable, config: Any, *others: Any) -> Any:
        if any(isinstance(task.objective, Wrapper) for task in config.tasks.values()):
            return make(config, *others)
        settings = _fields(config, _NOT_COMPILED | {"runtime", "tasks"}) | _fields(config.runtime, _BETWEEN_STEPS)
        tasks = [
            (name, _fields(task, {"examples"}), _fields(task.examples, _FILES)) for name, task in config.tasks.items()
        ]
        # Settings of user-defined objectives and formats may be equal although their classes are not.
        classes = [type(part) for task in config.tasks.values() for part in (task.objective, task.examples)]
        key = (make, repr((settings, tasks, others)), *classes)
        made = _setups[key] = _setups.pop(key, None) or make(config, *others)
        while len(_setups) > _MOST_SETUPS:
            _setups.popitem(last=False)
        return _with_config(made, config)

    of_run, of_model = (functools.partial(shared, make) for make in (setup.make_setups, setup.make_setup))
    with mock.patch.object(trace_checks, "make_setups", of_run), mock.patch.object(rescore, "make_setup", of_model):
        yield


def _fields(settings: Any, without: set[str]) -> dict[str, Any]:
    return {
        field.name: getattr(settings, field.name) for field in dataclasses.fields(settings) if field.name not in without
    }


def _with_config(made: Any, config: Any) -> Any:
    """Return setups with another configuration; stages that have one in common still do."""
    if not isinstance(made, tuple):
        return dataclasses.replace(made, config=config)
    own = {id(each): dataclasses.replace(each, config=config) for each in made}
    return tuple(own[id(each)] for each in made)


def call(*flags: str) -> int:
    """Run the same command line in this process, and return the exit code.

    It saves the start of a process, and compiles nothing if this process has had a run with equal settings.
    """
    from bertjax.cli import train
    from bertjax.runtime import command_line

    handlers = {signum: signal.getsignal(signum) for signum in command_line.STOP_SIGNALS}
    try:
        with shared_programs():
            return command_line.exit_code_of(lambda: train.main(["--platform=cpu", *flags]))
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def train_in_bucket(store, name: str, *flags: str, **environment: str) -> str:
    """Train in gs://bucket/NAME of a `tests.object_store.ObjectStore`, and return what the command printed."""
    done = finish(start(*flags, f"--workdir=gs://bucket/{name}", **store.environment, **environment))
    assert done.returncode == 0, done.stderr
    _assert_complete(store, name, done.stdout, done.stderr)
    return done.stdout


def train_here_in_bucket(store, name: str, *flags: str) -> str:
    """The same in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with store.used_here(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = call(*flags, f"--workdir=gs://bucket/{name}")
    assert code == 0, errors.getvalue()
    _assert_complete(store, name, output.getvalue(), errors.getvalue())
    return output.getvalue()


def _assert_complete(store, name: str, output: str, errors: str) -> None:
    assert "Traceback" not in errors and "could not be printed" not in errors, errors
    heartbeat = json.loads(store.content(f"{name}/heartbeat.json"))
    assert (heartbeat["state"], heartbeat["exit_code"]) == ("finished", 0)
    assert json.loads(store.content(f"{name}/summary.json"))["finished"]
    assert {f"{name}/export/model.safetensors", f"{name}/curves.png"} <= set(store.names(name))
    # The commands after it read disks.
    assert f"next      mkdir -p {name} && gcloud storage cp --recursive gs://bucket/{name}/export {name}" in output
    assert f"{name}/export" in output.splitlines()[-1]


def train_here(flags: list[str], workdir: Path, at_edge: Callable[[int], None]):
    """Run the same configuration in this process, and return its `Summary`; `at_edge(step)` is called after every step.

    A run asks whether to stop between the batches of an evaluation as well, which are not counted.
    """
    from bertjax.training.evaluation import Evaluator

    steps, evaluate, evaluating = itertools.count(1), Evaluator.__call__, []

    def noted(evaluator: Evaluator, params: dict):
        evaluating.append(True)
        try:
            return evaluate(evaluator, params)
        finally:
            evaluating.clear()

    with mock.patch.object(Evaluator, "__call__", noted):
        return train_until(flags, workdir, lambda: not evaluating and at_edge(next(steps)) is not None)


def train_until(flags: list[str], workdir: Path, should_stop: Callable[[], bool]):
    """Run the same configuration in this process until it is asked to stop."""
    from bertjax.cli import train
    from bertjax.config import config_file

    first, *overrides = [flag.removeprefix("--config").lstrip("=.") for flag in flags]
    with shared_programs():
        return train.run(config_file.load(first, overrides), workdir, should_stop=should_stop)


def on_devices(count: int, module: str) -> dict:
    """Run a module of the tests on simulated devices, in a process of its own, and return the JSON that it prints."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=CONFIG.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def score_export(workdir: Path) -> dict:
    """Score the export of a run as the run itself was scored; an export has no data and settings of evaluation."""
    from bertjax.config.opening import SavedModel
    from bertjax.training.results import rescore

    with shared_programs():
        return rescore.score(SavedModel(workdir / "export"), SavedModel(workdir).config)


def look_inside(workdir: Path, other: Path, folder: Path, parts: str | None = None) -> dict:
    """Run `report` and `compare` on a finished run, `analyze` if it has parts, and `probe` if `layers` is one of them.

    Args:
      workdir: the run.
      other: another run, which it is compared with.
      folder: where the commands write.
      parts: parts of the analysis, separated by commas; all that can serve the run if empty, none if None.

    Returns:
      The numbers of the analysis, which are empty without parts.
    """
    from bertjax.cli import analyze, compare, probe, report
    from bertjax.runtime import command_line

    lines = [
        f"{color} {'cat' if number % 2 else 'dog'}s sleep.\t{number % 2}" for number, color in enumerate("abcdef" * 2)
    ]
    (folder / "toy.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    there = (f"--out={folder / 'analysis'}", "--platform=cpu")
    commands = [
        (report, workdir, f"--out={folder / 'report.html'}"),
        (compare, workdir, other, f"--out={folder / 'compare.png'}"),
    ]
    if parts is not None:
        commands.append((analyze, workdir, "--examples=4", f"--parts={parts}", *there))
    if parts == "" or "layers" in (parts or ""):
        commands.append((probe, workdir, f"--labeled={folder / 'toy.tsv'}", "--platform=cpu"))
    for module, *flags in commands:
        assert command_line.exit_code_of(lambda module=module, flags=flags: module.main(list(map(str, flags)))) == 0, (
            module
        )
    assert (folder / "report.html").exists() and (folder / "compare.png").exists()
    return json.loads((folder / "analysis" / "analysis.json").read_text()) if parts is not None else {}


def records(path: Path) -> list[dict]:
    """Return the records of a file of JSON lines, without a line that is still being written."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def wait_for_step(workdir: Path, step: int, process: subprocess.Popen) -> None:
    """Wait until a live run has logged a step."""
    metrics = workdir / "metrics.jsonl"
    wait_until(lambda: any(record["step"] >= step for record in records(metrics)), process)


def losses(workdir: Path) -> list[tuple[int, float, float]]:
    """(step, losses of both terms) of every logged step, in the order of the file."""
    return [(r["step"], r["train/mlm_loss"], r["train/nsp_loss"]) for r in records(workdir / "metrics.jsonl")]


def weights(workdir: Path) -> bytes:
    """The exported weights."""
    return (workdir / "export" / "model.safetensors").read_bytes()


def content(folder: Path) -> dict[str, bytes]:
    """{relative path: bytes} of every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
