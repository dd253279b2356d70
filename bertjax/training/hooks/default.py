"""The hooks of every run, in the order in which they are called."""

from bertjax.training.hooks.base import Hook
from bertjax.training.hooks.evaluate import Evaluate
from bertjax.training.hooks.finite import Finite
from bertjax.training.hooks.log import Log
from bertjax.training.hooks.newest import NewestResults
from bertjax.training.hooks.profiling import Trace
from bertjax.training.hooks.progress import ProgressBar
from bertjax.training.hooks.save import Save
from bertjax.training.hooks.spikes import Spikes
from bertjax.training.restore import Restored
from bertjax.training.run.metrics import MetricsLog
from bertjax.training.run.saving import Saving
from bertjax.training.start import Start


def default_hooks(start: Start, restored: Restored, log: MetricsLog, profile: range | None) -> list[Hook]:
    """Return the default hooks in call order, and add their log files to the writer. Hooks of users come after them.

    Args:
      start: the checked start.
      restored: the state that it begins with.
      log: logs and totals.
      profile: steps to trace, counted from 0; None for none.
    """
    runtime, session = start.program.config.runtime, start.session
    newest = NewestResults(session.files)
    session.writer.add(newest)
    saving = Saving(restored.checkpoints, runtime.save_every, runtime.save_seconds, log, session.watchdog)
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
