"""Argument parser, exit codes and printed command lines of all commands, and the terminal that they run in.

A terminal that is gone, a pipe whose reader has left and a full disk under a log raise an error at whatever line
prints. They must not decide how a command ends, except for the stdout of a command whose result it is.
"""

import argparse
import contextlib
import difflib
import faulthandler
import io
import logging
import os
import re
import select
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from bertjax.runtime import storage
from bertjax.runtime.errors import FailedAgain, RunFailed, Unavailable, UserError, printable
from bertjax.runtime.storage import may_pass

# They often reach a whole process group: Ctrl-C, a terminal that closes, systemd when a VM shuts down, Slurm.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A second SIGTERM within this time of the first is the same request.
_SAME_REQUEST_SECONDS = 5.0


def prepare_streams() -> None:
    """Open streams that the caller has closed (`>&-`) as empty ones, and let stdout escape what it cannot encode."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # `open` takes the lowest free descriptor, so no data file gets it
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
            os.set_inheritable(getattr(sys, name).fileno(), True)
    if isinstance(sys.stdout, io.TextIOWrapper):  # that of stderr does so by default
        sys.stdout.reconfigure(errors="backslashreplace")


def silence(stream: Any) -> None:
    """Discard what is written to a stream's descriptor from now on, also what is in its buffer."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _Guarded:
    """A stream that is silenced at its first error instead of raising it."""

    def __init__(self, name: str):
        self._name, self._stream = name, getattr(sys, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[..., Any], *arguments: str) -> None:
        try:
            action(*arguments)
        except OSError as error:
            silence(self._stream)
            other = sys.stderr if self._name == "stdout" else sys.stdout
            if isinstance(other, _Guarded):  # else it is the result of the command
                print(f"warning: {self._name} cannot be written and is closed: {error}", file=other, flush=True)


@contextlib.contextmanager
def guarded(name: str) -> Iterator[None]:
    """In this context, an error of `stdout` or `stderr` silences it and has no other effect."""
    stream, guard = getattr(sys, name), _Guarded(name)
    setattr(sys, name, guard)
    try:
        yield
    finally:
        guard.flush()
        setattr(sys, name, stream)


def write_error(line: bytes) -> None:
    """Write to stderr without its buffer, whose lock the interrupted line may hold."""
    with contextlib.suppress(OSError):
        os.write(2, line)


def heeds_hangup() -> bool:
    """Return whether SIGHUP concerns this process; nohup ignores it."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def stop_signal() -> Callable[[], bool]:
    """Install the handlers and return a function that is True after the first SIGTERM, SIGHUP or Ctrl-C.

    A second Ctrl-C ends the process at once. So does a SIGTERM more than five seconds after the first signal. An
    earlier one counts as the same request, because shells and process groups often deliver a signal twice.
    """
    first: list[float] = []
    interrupts = 0

    def request_stop(signum: int, frame: Any) -> None:
        nonlocal interrupts
        now = time.monotonic()
        interrupts += signum == signal.SIGINT
        if not first:
            first.append(now)
            write_error(b"\nstopping after this step; repeat the signal to leave without saving\n")
            return
        is_late = signum == signal.SIGTERM and now - first[0] > _SAME_REQUEST_SECONDS
        if is_late or (signum == signal.SIGINT and interrupts > 1):
            raise KeyboardInterrupt

    for signum in STOP_SIGNALS:
        if signum != signal.SIGHUP or heeds_hangup():
            signal.signal(signum, request_stop)
    return lambda: bool(first)


# Exit codes. 75 is EX_TEMPFAIL (sysexits.h): a launcher runs the same command again. 130 and 141 are 128 + SIGINT and
# 128 + SIGPIPE, as in shells.
FINISHED, FAILED, BAD_INPUT, FAILED_AGAIN, STOPPED, INTERRUPTED, UNREAD = 0, 1, 2, 3, 75, 130, 141
# {exit code: error class}. The first matching class decides, so subclasses come before their base.
_CLASSES = {STOPPED: Unavailable, FAILED_AGAIN: FailedAgain, FAILED: RunFailed, BAD_INPUT: UserError}

# argparse puts this before flags that it does not know.
_UNRECOGNIZED = "unrecognized arguments: "


def command(name: str, *arguments: str) -> str:
    """Return `python -m bertjax <name> ...`, quoted so that the user can paste it into a shell."""
    return f"{_python()} -m {_module(name)} {shlex.join(arguments)}".rstrip()


def _module(name: str) -> str:
    return "bertjax.train" if name == "train" else f"bertjax {name}"  # as the documentation spells them


def _python() -> str:
    """Return `python` if the shell would run this interpreter under that name, else its path."""
    here, in_path = Path(sys.executable), shutil.which("python")
    if in_path and Path(in_path).absolute() == here:
        return "python"
    return shlex.quote(os.path.relpath(here) if here.is_relative_to(Path.cwd()) else str(here))


def positive(text: str) -> int:
    """Return the value of a flag that takes whole numbers from 1: its `type` in argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least 1")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """Return the value of a flag that takes a list of such numbers, `1,8`."""
    return tuple(map(positive, text.split(",")))


def new_target(target: str | os.PathLike) -> Path:
    """Return the path of --to.

    Raises:
      UserError: something is there already.
    """
    path = Path(os.path.expanduser(target))  # `Path.expanduser` raises RuntimeError for an unknown user
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"--to={path} exists and is not empty; name another, or remove it")
    return path


def add_model_and_target(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and --to, for commands that write another export of a model."""
    parser.add_argument("model", help="an export folder, a workdir (its newest checkpoint), or WORKDIR@STEP")
    add_target(parser)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add --to, for commands that write an export."""
    parser.add_argument(
        "--to",
        dest="target",
        required=True,
        metavar="DIR",
        help="folder to write the export to; empty, or not there yet",
    )


def add_platform_flag(parser: argparse.ArgumentParser) -> None:
    """Add --platform, see `platform.configure`. It is here because that module imports JAX."""
    parser.add_argument(
        "--platform", choices=("cpu", "gpu", "tpu"), help="where to compute (default: the best there is)"
    )


def add_trust_flag(parser: argparse.ArgumentParser) -> None:
    """Add --trust-code."""
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="import the modules that the model names as module:Class, which runs their code",
    )


# Flags that name the columns of a labeled file: {setting of the examples: (type, content of the column)}.
COLUMNS = {
    "text": (str, "the text"),
    "pair": (str, "the second text; empty for single texts"),
    "word": (int, "the words of a tagged file, a number from 0"),
    "label": (str, "the label"),
    "tag": (int, "the tags of a tagged file, a number from 0, or -1 for the last"),
    "tag_field": (str, "the tags of a tagged file of JSON, a name"),
}
# Flags of commands that evaluate.
THRESHOLD = {
    "--threshold=P": "probability above which an answer is accepted, or a class applies (default: the model's)"
}
FIGURES = {"--per-class": "also print precision, recall and F1 of each class", "--json": "print the figures as JSON"}
# What is read of a record without its label.
INPUT_COLUMNS = ("text", "pair", "word")


def add_column_flags(parser: argparse.ArgumentParser, file_flag: str, names: Collection[str] = tuple(COLUMNS)) -> None:
    """Add --text, --pair and so on, for files whose columns differ from those of the training file.

    Args:
      parser: the parser of a command that reads labeled files.
      file_flag: the flag of the file, such as `--corpus`.
      names: the columns that the command reads.
    """
    for name in names:
        kind, what = COLUMNS[name]
        flag, note = f"--{name.replace('_', '-')}", f"with {file_flag}=FILE: the column of {what}"
        parser.add_argument(flag, type=kind, metavar="COLUMN", help=note)
    parser.set_defaults(column_names=tuple(names), column_file=file_flag)


def columns_of(args: argparse.Namespace) -> dict[str, str | int]:
    """Return {setting of the examples: column} from the flags of `add_column_flags`.

    Raises:
      UserError: a flag is given without the file.
    """
    columns = {name: value for name in args.column_names if (value := getattr(args, name)) is not None}
    if columns and not getattr(args, args.column_file.removeprefix("--")):
        name, column = next(iter(columns.items()))
        raise UserError(
            f"--{name.replace('_', '-')}={column} names a column of a labeled file; add {args.column_file}=FILE"
        )
    return columns


@contextlib.contextmanager
def output(out: str) -> Iterator[IO[bytes]]:
    """Open the file of --out, which appears when it is complete (`storage.whole_file`); stdout if it is empty.

    Raises:
      UserError: the file cannot be written.
    """
    if not out:
        yield sys.stdout.buffer  # bytes: output is UTF-8 on every machine, whatever its locale
        sys.stdout.buffer.flush()
        return
    try:
        with storage.whole_file(Path(out).expanduser()) as file:
            yield file
    except storage.StorageError as error:
        remedy = "name a file that you may write, in a folder that exists"
        raise UserError(f"--out={out} cannot be written: {error.strerror}; {remedy}") from None


class ArgumentParser(argparse.ArgumentParser):
    """The parser of one command: its texts keep their lines, and a bad flag raises UserError instead of exiting.

    Args:
      name: the command; empty if `texts` has a `prog`.
      doc: docstring of the command's module; its examples, and what follows them, are printed below the flags.
      texts: `description`, `epilog` and what else argparse takes.
    """

    def __init__(self, name: str = "", doc: str | None = None, **texts: Any):
        # No abbreviated flags: a flag that is added later would change their meaning.
        shape: dict[str, Any] = {"prog": f"python -m {_module(name)}", "allow_abbrev": False}
        shape["formatter_class"] = argparse.RawDescriptionHelpFormatter
        shape["description"], *examples = (doc or "").partition("\nexamples:\n")
        shape["epilog"] = "".join(examples)
        super().__init__(**shape | texts)

    def add_flags(self, rows: Mapping[str, str], **options: Any) -> None:
        """Add flags that differ in name and help only.

        Args:
          rows: {`--name` or `--name=METAVAR`: help}.
          options: what they have in common, as `add_argument` takes it; by default texts, empty unless given.
        """
        for row, text in rows.items():
            flag, _, metavar = row.partition("=")
            named: dict[str, Any] = {"metavar": metavar} if metavar else {}
            self.add_argument(flag, help=text, **named, **(options or {"default": ""}))

    def error(self, message: str):
        flags = message.removeprefix(_UNRECOGNIZED).split()
        if not flags:  # such as "$FLAGS" in a shell script, a variable that is not set
            raise UserError("an argument is empty; remove it, or set the variable that it comes from")
        near = self.nearest(flags[0].partition("=")[0])
        hint = f"did you mean {near}?" if near else f"see {self.prog} --help"
        raise UserError(f"{message}; {hint}")

    def nearest(self, flag: str) -> str:
        """Return the known flag closest to an unknown one; empty if none is close."""
        known = re.findall(r"--[a-z][\w-]*", self.format_usage())
        near = difflib.get_close_matches(flag, known, n=1, cutoff=0.8) if flag.startswith("--") else []
        return near[0] if near else ""


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run an entry point and return its exit code; an expected error is printed as one line on stderr."""
    prepare_streams()
    with guarded("stderr"):
        return _flushed(_exit_code_of(main))


def _exit_code_of(main: Callable[[], int | None]) -> int:
    # Reading a memory-mapped file from a failed disk or server raises SIGBUS, which kills the process silently.
    if not faulthandler.is_enabled():
        faulthandler.enable(2)
    # gcsfs logs every failed request with its traceback. The error that it raises then ends the command in one line.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    try:
        return main() or FINISHED
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # `rich` printed a table that nobody reads
            return UNREAD
        *_, (frame, _) = traceback.walk_tb(ended.__traceback__)
        if frame.f_globals["__name__"] == "argparse":  # as after --help
            return cast(int, ended.code or FINISHED)
        # User code such as an objective. There, 0 would tell a launcher that the run has finished.
        return report(RunFailed("user code ended the process with sys.exit(); let it raise an exception"))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, UserError) as error:
        return UNREAD if isinstance(error, BrokenPipeError) and _reader_has_left() else report(error)


def _reader_has_left() -> bool:
    """Return whether stdout is a pipe without a reader, as after `| head`."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _flushed(code: int) -> int:
    """Flush stdout now, so that an error is reported here and not when the interpreter exits. Keep an earlier code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        failed = UNREAD if isinstance(error, BrokenPipeError) else report(error)
        silence(sys.stdout)  # the interpreter flushes again at exit, with an error message of its own
        return code or failed
    return code


def report(error: OSError | UserError) -> int:
    """Print an expected error as one line on stderr, and return its exit code."""
    line = printable(" ".join(str(error).splitlines()))
    if isinstance(error, OSError):
        remedy = "" if code_for(error) == STOPPED else "free disk space or fix the path, then "
        line = f"{line}; {remedy}run the same command again"
    print(f"error: {line}", file=sys.stderr)
    return code_for(error)


def code_for(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if may_pass(error):
        return STOPPED
    return next((code for code, kind in _CLASSES.items() if isinstance(error, kind)), FAILED)


def error_of(exit_code: int, message: str) -> UserError:
    """Return an error that has this exit code, to raise it for another process."""
    return _CLASSES.get(exit_code, RunFailed)(message)
