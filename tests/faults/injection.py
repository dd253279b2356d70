"""Faults at a chosen phase of a run: signals, errors of files, and processes that are killed.

As a program, `python -m tests.faults.injection PHASE FLAGS...` trains and kills itself with SIGKILL in that phase.
"""

import builtins
import contextlib
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

# What a run calls in each phase, and which call is in the middle of the run.
PLACES = {
    "start": ("bertjax.training.start", "open_teachers", 1),
    "prepare": ("bertjax.training.resolve", "open_or_prepare", 1),
    "restore": ("bertjax.training.run.checkpoint:Checkpoints", "restore_newest", 1),
    "step": ("bertjax.training.loop", "put_batches", 7),
    "evaluation": ("bertjax.training.hooks.default:Evaluator", "__call__", 1),
    "save": ("orbax.checkpoint:CheckpointManager", "save", 2),
    "export": ("bertjax.config.export", "write", 1),
}


@contextlib.contextmanager
def at(phase: str, action: Callable[[], None], number: int = 0) -> Iterator[None]:
    """Run an action once when a run in this process reaches a phase, before what it does there.

    Args:
      number: which call of the phase; 0 for the one in the middle of the run.
    """
    place, name, middle = PLACES[phase]
    number = number or middle
    module, _, member = place.partition(":")
    owner = importlib.import_module(module)
    owner = getattr(owner, member) if member else owner
    original, calls = getattr(owner, name), itertools.count(1)

    def with_action(*arguments, **options):
        if next(calls) == number:
            action()
        return original(*arguments, **options)

    with mock.patch.object(owner, name, with_action):
        yield
    assert next(calls) > number, f"the run did not reach the phase {phase}"


@contextlib.contextmanager
def failing_writes(part: str, error: int, times: int = 1) -> Iterator[None]:
    """Fail to open files for writing, the first `times` ones with `part` in their path."""
    real, failures = builtins.open, itertools.count()

    def open_or_fail(path, mode="r", *arguments, **options):
        if isinstance(path, str | os.PathLike) and part in os.fspath(path) and set(mode) & set("wax+"):
            if next(failures) < times:
                raise OSError(error, os.strerror(error), os.fspath(path))
        return real(path, mode, *arguments, **options)

    with mock.patch.object(builtins, "open", open_or_fail):
        yield
    assert next(failures), f"no file with {part} in its path was written"


def flip_a_bit(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _train_and_die(phase: str, flags: list[str]) -> int:
    from bertjax.cli import train
    from bertjax.runtime import command_line

    with at(phase, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        return command_line.exit_code_of(lambda: train.main(flags))


if __name__ == "__main__":
    sys.exit(_train_and_die(sys.argv[1], sys.argv[2:]))
