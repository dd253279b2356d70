"""Restore a run's newest checkpoint or the one that it branches from, or create its state at step 0."""

import dataclasses
import logging
from typing import Any, cast

from bertjax.runtime.errors import UserError, shorten
from bertjax.training import branch, init_from
from bertjax.training.parallel import processes
from bertjax.training.run import record
from bertjax.training.run.checkpoint import Checkpoints, RestoredCheckpoint, Retention
from bertjax.training.run.fingerprints import check_replicas
from bertjax.training.run.workdir import read_jsonl
from bertjax.training.setup import make_timetable, setup_after
from bertjax.training.start import Start
from bertjax.training.state import State

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Restored:
    """Initial or restored state of a start.

    Attributes:
      checkpoints: checkpoints of the run.
      state: state after `step` steps, until `take_state`.
      step: steps done.
      meta: metadata of the restored checkpoint; empty at step 0.
      is_new: whether the run had no checkpoint of its own.
      owes_evaluation: whether the earlier start saved the state to evaluate it next, and ended before it had.
    """

    checkpoints: Checkpoints
    state: State | None
    step: int
    meta: dict[str, Any]
    is_new: bool
    owes_evaluation: bool

    @property
    def of_hooks(self) -> dict[str, Any]:
        """What hooks have put into the metadata (`Hook.on_save`); empty at step 0."""
        return self.meta.get("hooks", {})

    def take_state(self) -> State:
        """Return the state and forget it: training reuses its memory, so that nothing else may hold it."""
        state, self.state = self.state, None
        return cast(State, state)


def restore(start: Start) -> Restored:
    """Restore the newest checkpoint that is whole; without one, branch off another run or create the state at step 0.

    Raises:
      UserError: the settings contradict the checkpoint, or all checkpoints are damaged.
      RunFailed: the processes do not see the same checkpoints, or hold different copies of the state.
      Unavailable: the storage does not answer.
    """
    files, config, runtime = start.session.files, start.config, start.config.runtime
    steps = make_timetable(config).steps
    # `or` would not do: 0 means that no checkpoint is kept for good.
    every = 10 * runtime.save_every if runtime.keep_every is None else runtime.keep_every
    retention = Retention(runtime.keep, every, runtime.keep_best, runtime.keep_at)
    checkpoints = Checkpoints(files.checkpoints, retention)

    own = checkpoints.restore_newest(lambda step: setup_after(start.setups, step).shapes)
    restored = own or branch.restore(start.setups)
    step, state, meta = restored or RestoredCheckpoint(0, init_from.state_from(start.source, start.setups[0]), {})
    check_replicas(state, step)
    start.session.watchdog.locate(step, steps)
    if own:
        record.check_checkpoint(files, start.run_record, step, meta)
    if restored:
        remedy = f", or move the checkpoints after the first skipped step out of {files.checkpoints}" if own else ""
        if runtime.skipped_before(step) != (skipped := meta.get("skip_rows", [])):
            raise UserError(
                f"checkpoint {step} was trained with runtime.skip_rows={skipped}, and the settings differ before that "
                f"step: {[list(steps) for steps in runtime.skip_rows]}; change only what is later{remedy}"
            )
        saved = checkpoints.steps() if own and processes.is_writer() else runtime.keep_at
        if missed := [f"step {kept}" for kept in runtime.keep_at if kept < step and kept not in saved]:
            log.warning(
                "runtime.keep_at has %s, and the run has passed them without a checkpoint; it continues from step %d",
                *(shorten(missed), step),
            )
        log.info("resumed at step %d of %d", step, steps)
        if meta["layout"] != (layout := start.meta["layout"]):
            log.info(
                "the checkpoint was saved on %s; the run continues on %s with the same batches", meta["layout"], layout
            )
    evaluations = processes.from_writer(lambda: read_jsonl(files.evaluations, "step", "score"), "evaluations")
    scores = config.eval.scores(evaluations)
    if others := [f"step {scored}" for scored in sorted({line["step"] for line in evaluations} - scores.keys())]:
        log.warning("eval.rows or eval.seed was another at %s; these scores rank no checkpoint", shorten(others))
    checkpoints.scores = {scored: score for scored, score in scores.items() if scored <= step}
    # A state is saved before it is evaluated. If the previous start ended in between, this one evaluates it and writes
    # its line of metrics.
    owes_evaluation = meta.get("evaluation_is_due", False) and step not in {each["step"] for each in evaluations}
    return Restored(checkpoints, state, step, meta, own is None, owes_evaluation)
