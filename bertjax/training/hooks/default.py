"""The hooks of every run, in the order in which they are called, and those that `runtime.hooks` names."""

from collections.abc import Sequence

from bertjax.config.registry import Union
from bertjax.runtime.errors import UserError, reason
from bertjax.training.hooks.base import Hook
from bertjax.training.hooks.evaluate import Evaluate
from bertjax.training.hooks.log import Finite, Log, ProgressBar, Trace
from bertjax.training.hooks.save import NewestResults, Save
from bertjax.training.hooks.spikes import Spikes
from bertjax.training.restore import Restored
from bertjax.training.run.metrics import MetricsLog
from bertjax.training.run.saving import Saving
from bertjax.training.start import Start

HOOKS = Union("runtime.hooks", Hook, "", {})


def default_hooks(start: Start, restored: Restored, log: MetricsLog, profile: range | None) -> list[Hook]:
    """Return the default hooks in call order, and add their log files to the writer. Hooks of users come after them.

    Args:
      start: the checked start.
      restored: the state that it begins with.
      log: logs and totals.
      profile: steps to trace, counted from 0; None for none.
    """
    runtime, session = start.config.runtime, start.session
    newest = NewestResults(session.files, lambda: log.lines_to_draw)
    session.writer.add(newest)
    saving = Saving(restored.checkpoints, runtime.save_seconds, log, session.watchdog)
    return [
        Log(restored),
        Finite(),  # after the log: the line of the step before is written
        Spikes(restored),
        ProgressBar(),
        Trace(profile, session.files.profile),
        Save(saving),  # before the evaluation: a preemption during it must not lose these steps
        Evaluate(),
        newest,
    ]


def user_hooks(kinds: Sequence[str]) -> list[Hook]:
    """Make the hooks that a configuration names as `module:Class`, in order.

    Raises:
      UserError: a hook cannot be imported or made.
    """
    return [_made(kind) for kind in kinds]


def _made(kind: str) -> Hook:
    choice, found = f"runtime.hooks={kind!r}", HOOKS.class_of(kind, trust_code=True)
    moments = [name for name in vars(Hook) if name.startswith("on_")]
    if unknown := [name for name in dir(found) if name.startswith("on_") and name not in moments]:
        raise UserError(f"{choice} defines {unknown[0]}(), which is never called; the moments are {', '.join(moments)}")
    try:
        return found()
    except TypeError as error:
        raise UserError(f"{choice} cannot be made without arguments ({reason(error)}); give them defaults") from error
