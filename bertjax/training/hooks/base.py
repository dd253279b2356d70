"""The interface of hooks, and the run in progress that they see."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bertjax.models.vocabulary import count_parameters
from bertjax.training.evaluation import Evaluation
from bertjax.training.restore import Restored
from bertjax.training.results.report import summary_of
from bertjax.training.run.metrics import MetricsLog, MetricsQueue, goodput_of, mfu
from bertjax.training.run.watchdog import Failures
from bertjax.training.setup import make_timetable
from bertjax.training.stage_flops import StepFlops, of_stage
from bertjax.training.start import Start


class Stopping(Exception):
    """The run is asked to stop."""


class Run:
    """A run in progress, as its hooks see it. `bertjax.training.loop.train` trains it.

    Args:
      start: the checked start: setups, data and workdir.
      restored: the state to begin with.
      log: logs and totals.
      hooks: called in this order at each moment.
      should_stop: called between chunks and between evaluation batches, in all processes after the same ones.

    Attributes:
      setups: the setup of each stage, of which `setup` is the last one.
      state: state after `step` steps.
      step: steps dispatched. A chunk is what one dispatch trains, one step or several.
      taken: steps whose metrics have arrived; at most one dispatch behind, so that the device never waits.
      owes_evaluation: whether the state after `step` steps is evaluated next, by a resumed run if not by this start.
      evaluation: the newest evaluation.
      saved: step of the newest state that is saved, once the run was asked to stop.
      failure: error of the last save or of closing a hook, to raise once the results are exported.
      failures: failures of all starts.
    """

    def __init__(
        self,
        start: Start,
        restored: Restored,
        log: MetricsLog,
        hooks: Sequence["Hook"],
        should_stop: Callable[[], bool],
    ):
        self.start, self.restored, self.log, self.hooks = start, restored, log, hooks
        self.session, self.feeds, self.setups, self.setup = start.session, start.feeds, start.setups, start.setup
        self.config, self.runtime = start.config, start.config.runtime
        self.timetable = make_timetable(self.config)
        self.state, self.step = restored.take_state(), restored.step
        self.taken = self.saved = restored.step
        self.owes_evaluation = restored.owes_evaluation
        self.evaluation: Evaluation | None = None
        self.failure: Exception | None = None
        # Read here, before the start is committed: a damaged file refuses it.
        self.failures = Failures(self.session.files.failures, restored.step)
        self.queue = MetricsQueue()
        self._should_stop = should_stop

    def call_hooks(self, moment: str, *arguments: Any) -> None:
        """Call a method of every hook, in order."""
        for hook in self.hooks:
            getattr(hook, moment)(self, *arguments)

    def take(self, leave: int = 0) -> None:
        """Pass the metrics of steps to the hooks; without waiting if the newest dispatch is left out (`leave=1`)."""
        arrived = self.queue.take(leave)
        for step, metrics in arrived:
            self.call_hooks("on_step", step, metrics)
            self.taken = step
        if arrived:  # one beat: the steps of a dispatch arrive together
            self.session.watchdog.beat(self.taken)

    def check_stop(self) -> None:
        """Raise Stopping if the run is asked to stop."""
        if self._should_stop():
            raise Stopping

    def is_due(self, every: int, first: int) -> bool:
        """Return whether the chunk from `first` to `step` contains a multiple of `every`, or ends the run."""
        return self.step // every > first // every or self.is_at_end

    @property
    def is_at_end(self) -> bool:
        """Whether all steps are dispatched."""
        return self.step == self.timetable.steps

    @property
    def has_finished(self) -> bool:
        """Whether all steps are done and this start has evaluated the last state."""
        return self.is_at_end and self.evaluation is not None and not self.owes_evaluation

    @property
    def may_be_best(self) -> bool:
        """Whether the state may rank as best: not before pruning has ended, since it is denser than the result."""
        return self.config.pruning.has_ended(self.step, self.timetable.steps)

    def flops_at(self, step: int) -> StepFlops:
        """Return the FLOPs of a step, counted from 0."""
        spec = self.timetable.at(step)
        return self._flops_of(spec.stage, spec.task)

    @functools.cached_property
    def _flops_of(self) -> Callable[[int, str], StepFlops]:
        return functools.cache(lambda stage, task: of_stage(self.setups[stage], task, stage))

    def figures(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return results after an evaluation of the current state, as in `summary.json`."""
        totals = self.log.totals
        goodput = goodput_of(totals, self.session.elapsed.seconds)
        flops = totals.flops - totals.trunk_flops, totals.executed_flops - totals.trunk_executed_flops
        goodput |= mfu(*flops, goodput["step"], self.setup.layout.mesh)
        parameters = count_parameters(self.setup.shapes["params"], self.setup.encoder)
        return summary_of(evaluation, totals, self.step, goodput, parameters)


class Hook:
    """One duty of a run between its steps. A subclass defines the moments that it needs.

    All processes call all hooks, at the same moments unless one of them fails; only process 0 prints and writes, see
    `bertjax.training.parallel.processes`. An error in a hook ends the run, and what was trained since the last
    checkpoint is lost. A hook must not change the state: what a run computes is decided by its configuration alone.

    Add your own hook with `runtime.hooks=["module:Class"]`: it is made without arguments, and called after bertjax's.
    """

    def on_start(self, run: Run) -> None:
        """Before the first chunk of this start, and before any other moment of any hook."""

    def on_ready(self, run: Run) -> None:
        """Once all hooks have started: the first save and an evaluation that an earlier start owes."""

    def on_dispatch(self, run: Run, first: int, end: int) -> None:
        """Before the chunk with the steps `first` to `end - 1`, counted from 0."""

    def on_step(self, run: Run, step: int, metrics: dict[str, float]) -> None:
        """When the metrics of a step have arrived; `step` steps are done. They arrive in order.

        A resumed run has the steps since its checkpoint again. The last ones before a stop may never arrive.
        """

    def on_chunk(self, run: Run, first: int) -> None:
        """After the chunk from `first` to `run.step`; `run.take()` waits for its metrics. A stop takes its place."""

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        """After an evaluation of the state after `run.step` steps that this run records."""

    def on_save(self, run: Run, meta: dict[str, Any]) -> None:
        """Before a checkpoint is saved: put what a resumed run needs into its metadata, as JSON, under a name."""

    def on_stop(self, run: Run) -> None:
        """When the run is asked to stop, between two chunks or in the middle of an evaluation."""

    def on_close(self, run: Run, error: BaseException | None) -> None:
        """At the end, also after a stop or an error. It is called even if another hook fails here.

        After an error, other processes may not be here, and another one may own the workdir: exchange and write
        nothing. After a stop, `run.has_finished` is False.
        """
