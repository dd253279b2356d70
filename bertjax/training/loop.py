"""The training loop: dispatch chunks of steps; between them log, evaluate, save, and stop on request."""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from tqdm import tqdm

from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.models.flops import Counts
from bertjax.models.vocabulary import count_parameters
from bertjax.runtime.errors import Unavailable
from bertjax.training.evaluation import Evaluation, Evaluator
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import batch_shards, put_batches
from bertjax.training.program import Program
from bertjax.training.results.newest import NewestResults
from bertjax.training.results.report import show_samples, summary_of
from bertjax.training.run import restored_steps
from bertjax.training.run.checkpoint import Checkpoints, NotSaved
from bertjax.training.run.failures import Failures, NotFinite, check_finite
from bertjax.training.run.fingerprints import check_replicas
from bertjax.training.run.goodput import Elapsed, goodput_of, mfu, speed
from bertjax.training.run.lease import Lease
from bertjax.training.run.metrics import MetricsLog, MetricsQueue, Totals, read_scores
from bertjax.training.run.profiling import Trace
from bertjax.training.run.progress import progress_bar, show_metrics
from bertjax.training.run.retention import Retention
from bertjax.training.run.saving import Saving
from bertjax.training.run.spikes import SpikeReport
from bertjax.training.run.tracking import Tracking
from bertjax.training.run.watchdog import TRAINING, Watchdog
from bertjax.training.run.workdir import Workdir
from bertjax.training.run.writer import LogWriter
from bertjax.training.stage_flops import of_stage
from bertjax.training.state import State, grow

# Batches made in advance: the host prepares the next ones while the device computes.
_PREFETCH = 2

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of the loop.

    Attributes:
      step: steps done; if the loop was stopped, steps that are saved.
      state: state after the steps done.
      evaluation: evaluation after the last step; None if the loop was stopped.
      figures: results, see `summary_of`; empty if the loop was stopped.
      failure: error of the last save, if the state could not be saved.
    """

    step: int
    state: State
    evaluation: Evaluation | None
    figures: dict[str, Any]
    failure: NotSaved | None = None


class _Stopping(Exception):
    """A request to stop. The argument is whether the next start must evaluate the newest state."""


class Loop:
    """Trains from the newest checkpoint, or from step 0, to the last step or until `should_stop`.

    The constructor restores the state and opens the files of the workdir; `run` trains.

    Args:
      program: model, tasks and devices.
      feeds: training and held-out batches.
      workdir: locked by the caller.
      meta: metadata for every checkpoint.
      create_state: returns the state at step 0.
      should_stop: called between chunks and between evaluation batches; once it returns True, the loop saves and stops.
      elapsed: wall time over all starts.
      writer: writes the logs.
      watchdog: limits and reports each activity.
      lock: lock of the workdir, if this process holds one that can be lost.
      profile: steps to trace.
    """

    def __init__(
        self,
        program: Program,
        feeds: Feeds,
        workdir: Workdir,
        meta: dict,
        create_state: Callable[[], State],
        should_stop: Callable[[], bool],
        elapsed: Elapsed,
        writer: LogWriter,
        watchdog: Watchdog,
        lock: Lease | None = None,
        profile: range | None = None,
        trackers: Sequence[Tracking] = (),
    ):
        self._program, self._feeds = program, feeds
        self._meta, self._should_stop = meta, should_stop
        self._lock = lock
        self._elapsed, self._trace = elapsed, Trace(profile, workdir.profile)
        self._runtime, self._timetable = program.config.runtime, program.timetable
        self._workdir, self._watchdog = workdir, watchdog
        kept = self._runtime.keep, self._runtime.kept_every, self._runtime.keep_best, self._runtime.keep_at
        self._checkpoints = Checkpoints(workdir.checkpoints, Retention(*kept))
        restored = self._checkpoints.restore_newest(lambda step: self._program_of(step).abstract_state)
        self._state = restored.tree if restored else create_state()
        self._is_new = restored is None
        self._start = self._taken = restored.step if restored else 0
        check_replicas(self._state, self._start)
        watchdog.locate(self._start, self._timetable.steps)
        self._failures = Failures(workdir.failures, self._start)
        meta_before = restored.meta if restored else {}
        if restored:
            restored_steps.check_skipped_rows(self._runtime, self._start, meta_before.get("skip_rows", []), workdir)
            if processes.is_writer():
                restored_steps.warn_of_missed(self._runtime.keep_at, self._start, self._checkpoints.steps())
            log.info("resumed at step %d of %d", self._start, self._timetable.steps)
            if (before := meta_before.get("layout")) != meta["layout"]:
                log.info(
                    "the checkpoint was saved on %s; the run continues on %s with the same batches",
                    before,
                    meta["layout"],
                )
        totals = Totals(**meta_before["totals"]) if restored else Totals()
        scores = processes.from_writer(lambda: read_scores(workdir.evaluations, self._start), "evaluations")
        self._checkpoints.scores = dict(scores)
        # A state is saved before it is evaluated. If the previous start ended in between, this one evaluates it and
        # writes its line of metrics.
        is_due = meta_before.get("evaluation_is_due", False)
        self._owes_evaluation = is_due and self._start not in self._checkpoints.scores
        self._log = processes.together(  # a damaged file of the writer is an error in every process
            lambda: MetricsLog(workdir, totals, self._start, writer, trackers, self._speed, self._owes_evaluation)
        )
        self._queue = MetricsQueue()
        self._flops_at = functools.cache(lambda stage, task: of_stage(program.at(stage).tasks[task], stage))
        self._evaluators: dict[int, Evaluator] = {}
        self._newest = NewestResults(workdir)
        writer.add(self._newest)
        self._saving = Saving(
            self._checkpoints, self._runtime.save_every, self._runtime.save_seconds, self._log, watchdog
        )
        self._spikes = SpikeReport(self._log, meta_before.get("spikes"), processes.is_writer(), watchdog.notify)
        # Newest metrics of each task trained since the last line of metrics.jsonl.
        has_line = is_due and not self._owes_evaluation  # the evaluation after the save has written this line
        self._recent: dict[str, float] = {} if has_line else dict(meta_before.get("recent", {}))
        self._last: tuple[int, dict[str, float]] | None = None
        if self._owes_evaluation:
            self._last = (self._start, dict(self._recent))

    def _speed(self, before: Totals, now: Totals, steps: int) -> dict[str, float]:
        return speed(before, now, steps, self._elapsed.seconds, self._program.mesh)

    def run(self) -> Trained:
        """Train to the end, or until `should_stop`.

        Raises:
          RunFailed: too many non-finite steps in a row, or checkpoints cannot be written.
          FailedAgain: the previous start failed at the same step from the same checkpoint.
          Unavailable: the lock of the workdir is lost.
        """
        try:
            return self._run()
        except Exception as error:
            # Complete a running save only if no other process is needed for it and this one still owns the workdir.
            if isinstance(error, NotFinite) or (jax.process_count() == 1 and not isinstance(error, Unavailable)):
                self._saving.close()
            judged = self._failures.judge(self._taken + 1, error)
            if isinstance(error, NotFinite):
                processes.together(functools.partial(_raise, judged))  # they leave together
            if judged is error:
                raise
            raise judged from error

    def _run(self) -> Trained:
        step, evaluation, failure, is_stopping = self._start, None, None, False
        bar = progress_bar(self._timetable.steps, self._start, disable=not processes.is_writer())
        with contextlib.closing(self._log), bar, self._watchdog.state(TRAINING):
            if self._is_new:
                self._saving.try_out(self._workdir.trial_checkpoint, self._state)
                if 0 in self._runtime.keep_at:
                    self._save(0, is_last=False)
            try:
                if self._owes_evaluation:
                    evaluation = self._run_evaluation(bar, step)
                bar.set_postfix_str("compiling the step")
                for first, step in self._chunks():
                    evaluation, failure = self._between_chunks(bar, first, step)
                self._take(bar, leave=0)
                self._flush()
                if evaluation is None:  # all steps were done before this start
                    evaluation = self._evaluate(step)
            except _Stopping as stopping:
                is_stopping = True
                step, failure = self._stop(bar, step, *stopping.args)
        self._trace.end(self._state)
        if is_stopping:
            if failure:
                raise failure
            self._saving.close()
            return Trained(step, self._state, None, {})
        self._saving.close()
        with self._watchdog.state("exporting"):
            self._newest.end()
        return Trained(step, self._state, evaluation, self._figures(step, evaluation), failure)

    def _between_chunks(self, bar: tqdm, first: int, step: int) -> tuple[Evaluation | None, NotSaved | None]:
        """Log, save and evaluate after the chunk from `first` to `step`; return (evaluation, save error) if there are.

        Raises:
          _Stopping: the run is asked to stop.
        """
        evaluation = failure = None
        self._take(bar, leave=1)
        self._saving.check()
        if self._lock:
            self._lock.check()
        evaluates = self._due(self._program.config.eval.every, first, step)
        if self._should_stop():
            raise _Stopping(evaluates)
        may_be_best = evaluates and self._runtime.keep_best and self._may_be_best(step)
        saves = may_be_best or step in self._runtime.keep_at or self._is_save_due(first, step)
        if evaluates or saves:
            self._take(bar, leave=0)
        if saves:  # before the evaluation: a preemption during it must not lose these steps
            if not evaluates:  # an evaluated step has one line, which also holds the evaluation
                self._flush()
            failure = self._save(step, step == self._timetable.steps, evaluation_is_due=evaluates)
        if evaluates:
            evaluation = self._run_evaluation(bar, step)
        return evaluation, failure

    def _figures(self, step: int, evaluation: Evaluation) -> dict[str, Any]:
        """Return results after `step` steps, as in `summary.json`."""
        totals = self._log.totals
        goodput = goodput_of(totals, self._elapsed.seconds)
        goodput |= mfu(totals.flops, totals.executed_flops, goodput["step"], self._program.mesh)
        parameters = count_parameters(self._program.abstract_state["params"], self._program.encoder)
        return summary_of(evaluation, totals, step, goodput, parameters)

    def _stop(self, bar: tqdm, step: int, owes_evaluation: bool) -> tuple[int, NotSaved | None]:
        """Save the state, or finish a save that started a few steps ago; return (saved step, its error)."""
        if step == self._start and not self._is_new:
            return step, None  # nothing is trained: the restored checkpoint is this state
        if finished := self._saving.finish_recent(step):
            return finished
        self._take(bar, leave=0)
        if not owes_evaluation:
            self._flush()
        return step, self._save(step, is_last=True, evaluation_is_due=owes_evaluation)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Dispatch chunk after chunk; yield (steps before, steps after) once each is dispatched."""
        make = LocalBatches(self._timetable.at, self._feeds.train, *batch_shards(self._program.mesh))
        batches = iterate(make, self._start, self._timetable.steps, self._runtime.workers, _PREFETCH)
        step, compiled = self._start, set()
        while step < self._timetable.steps:
            end = self._timetable.edge_after(step, self._runtime.steps_per_call, self._runtime.keep_at)
            self._trace.edge(step, end, self._state)
            with self._log.spending("data_wait"):
                local = [next(batches) for _ in range(step, end)]
            global_batches = put_batches(local, self._program.mesh)
            self._grow(step)
            spec = self._timetable.at(step)
            task = self._program.at(spec.stage).tasks[spec.task]
            self._log.dispatched(self._flops_at(spec.stage, spec.task).executed(global_batches))
            chunk, arguments = task.chunk_at(spec.stage), (self._state, task.frozen, global_batches)
            shapes = (spec.stage, spec.task, end - step)
            if shapes in compiled:
                self._state, metrics = chunk(*arguments)
            else:  # dispatch is asynchronous, but the first call for these shapes waits for the compiler
                compiled.add(shapes)
                with self._log.spending("compile"), self._watchdog.state("compiling"):
                    self._state, metrics = chunk(*arguments)
            self._queue.put(step + 1, metrics)
            yield step, end
            step = end
        batches.close()

    def _grow(self, step: int) -> None:
        """Grow the encoder if the next step trains a deeper one than the step before.

        Growing waits for that step, so the checkpoint and evaluation at the end of a stage have the depth it trained.
        """
        program = self._program.at(self._timetable.at(step).stage)
        if program is not self._program_of(step):
            moments = self._program.config.optimizer.grow_moments
            self._state = grow(self._state, program.abstract_state, moments)
            log.info("from step %d on the encoder has %d layers", step, program.encoder.layers)

    def _due(self, every: int, first: int, step: int) -> bool:
        """Return whether the chunk contains a multiple of `every`, or ends the run."""
        return step // every > first // every or step == self._timetable.steps

    def _is_save_due(self, first: int, step: int) -> bool:
        due = self._due(self._runtime.save_every, first, step)
        return due and (step == self._timetable.steps or self._saving.may_save())

    def _take(self, bar: tqdm, leave: int) -> None:
        """Count and log all steps that have arrived; the newest one's line waits, as an evaluation may join it."""
        taken = self._queue.take(leave)
        for step, metrics in taken:
            self._flush()
            check_finite(step, metrics, self._runtime.max_skipped)
            self._taken = step
            spec = self._timetable.at(step - 1)
            self._spikes.check(step, metrics, spec, self._feeds.train[spec.task, spec.seq_len])
            counts = Counts(**{name: metrics[name] for name in Counts._fields})
            self._log.count(metrics, self._flops_at(spec.stage, spec.task).useful(counts))
            self._recent |= metrics
            self._last = (step, dict(self._recent))
            bar.update(step - bar.n)
            show_metrics(bar, metrics)
        if taken:  # one beat: the steps of a dispatch arrive together
            self._watchdog.beat(self._taken)

    def _flush(self, evaluation: dict[str, float] | None = None) -> None:
        if self._last:
            step, metrics = self._last
            if evaluation or step % self._runtime.log_every == 0 or step == self._timetable.steps:
                self._log.write(step, metrics, evaluation)
                self._recent = {}
            self._last = None

    def _run_evaluation(self, bar: tqdm, step: int) -> Evaluation:
        evaluation = self._evaluate(step)
        metrics_of = {name: part.metrics for name, part in evaluation.by_set.items()}
        self._flush({f"{name}/{metric}": v for name, metrics in metrics_of.items() for metric, v in metrics.items()})
        self._log.write_samples(step, [dataclasses.asdict(sample) for sample in evaluation.samples])
        bar.write(show_samples(step, evaluation))
        self._newest.add(self._figures(step, evaluation))
        # A score marks an evaluation as done, so its line of metrics must be on disk first.
        self._log.flush()
        score = evaluation.rank if math.isfinite(evaluation.rank) and self._may_be_best(step) else None
        self._log.write_score(step, score)
        self._checkpoints.scores[step] = score
        return evaluation

    def _evaluate(self, step: int) -> Evaluation:
        """Evaluate the state after `step` steps.

        Raises:
          _Stopping: the run is asked to stop. Nothing is recorded, since the mean over some rows is not the metric.
        """
        program = self._program_of(step)
        if program.encoder.layers not in self._evaluators:
            self._evaluators[program.encoder.layers] = Evaluator(program, self._feeds, self._between_eval_batches)
        with self._log.spending("evaluation"), self._watchdog.state("evaluating"):
            return self._evaluators[program.encoder.layers](program.merged(self._state))

    def _between_eval_batches(self) -> None:
        self._watchdog.beat()
        # A preemption gives as little as 30 s, and an evaluation may take minutes. All processes ask at every batch, so
        # they stop at the same one.
        if self._should_stop():
            raise _Stopping(True)

    def _program_of(self, step: int) -> Program:
        """Return the program that trained the last of `step` steps."""
        return self._program.at(self._timetable.at(max(step - 1, 0)).stage)

    def _save(self, step: int, is_last: bool, evaluation_is_due: bool = False) -> NotSaved | None:
        """Start saving the state. With `is_last`, wait for the save and return its error.

        Args:
          evaluation_is_due: whether this state is evaluated next, by a resumed run if not by this start.
        """
        meta = {
            **self._meta,
            "totals": dataclasses.asdict(self._log.totals),
            "spikes": self._spikes.state,
            "recent": self._recent,
            "evaluation_is_due": evaluation_is_due,
            "skip_rows": self._runtime.skipped_before(step),
        }
        self._log.flush()
        processes.on_writer(self._lock.verify if self._lock else lambda: None)
        self._checkpoints.hold_before = self._spikes.high_since
        if is_last:
            return self._saving.save_last(step, self._state, meta)
        self._saving.save(step, self._state, meta)
        return None

    def _may_be_best(self, step: int) -> bool:
        """Return whether a state may rank as best: not before pruning has ended, since it is denser than the result."""
        return self._program.config.pruning.has_ended(step, self._timetable.steps)


def _raise(error: Exception) -> None:
    raise error
