"""The training loop: dispatches chunks of steps; between them it logs, evaluates, saves, and stops if asked to."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator

import jax
from tqdm import tqdm

from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.errors import RunFailed
from bertjax.models.flops import Counts
from bertjax.training.evaluation import Evaluation, Evaluator
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import batch_shards, put_batches
from bertjax.training.program import Program
from bertjax.training.results.report import show_samples
from bertjax.training.run.checkpoint import Checkpoints, NotSaved
from bertjax.training.run.fingerprints import check_replicas
from bertjax.training.run.goodput import Elapsed, goodput_of, mfu
from bertjax.training.run.heartbeat import Heartbeat
from bertjax.training.run.lease import Lease
from bertjax.training.run.metrics import MetricsLog, MetricsQueue, Totals
from bertjax.training.run.profiling import Trace
from bertjax.training.run.progress import progress_bar, show_metrics
from bertjax.training.run.spikes import SpikeReport
from bertjax.training.run.watchdog import Watchdog
from bertjax.training.run.workdir import Workdir
from bertjax.training.run.writer import LogWriter
from bertjax.training.state import State, grow

# Batches that are made in advance.
_PREFETCH = 2

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of the loop.

    Attributes:
      step: number of steps done.
      state: the state after them.
      totals: what they consumed.
      evaluation: the evaluation after the last step; None if the loop stopped before it.
      goodput: what the run spent its time on, see `goodput_of`.
    """

    step: int
    state: State
    totals: Totals
    evaluation: Evaluation | None
    goodput: dict[str, float]


class Loop:
    """Trains from the newest checkpoint, or from step 0, to the last step or until `should_stop`.

    The constructor restores the state and opens the files of the workdir; `run` trains.

    Args:
      program: the model, the tasks and the devices.
      feeds: the batches.
      workdir: locked by the caller.
      meta: recorded with every checkpoint.
      create_state: returns the state at step 0.
      should_stop: called between chunks; if it returns True, the loop saves the state and stops.
      elapsed: wall time of all starts of the run.
      writer: writes the logs.
      heartbeat: reports what the run does.
      lock: the lock of the workdir, if this process holds one that can be lost.
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
        heartbeat: Heartbeat,
        lock: Lease | None = None,
        profile: range | None = None,
    ):
        self._program, self._feeds = program, feeds
        self._meta, self._should_stop = meta, should_stop
        self._lock = lock
        self._elapsed, self._heartbeat, self._trace = elapsed, heartbeat, Trace(profile, workdir.profile)
        self._runtime, self._timetable = program.config.runtime, program.timetable
        self._checkpoints = Checkpoints(
            workdir.checkpoints, self._runtime.keep, self._runtime.keep_every, self._runtime.keep_best
        )
        restored = self._checkpoints.restore_newest(lambda step: self._program_at(step).abstract_state)
        self._state = restored.tree if restored else create_state()
        self._start = restored.step if restored else 0
        check_replicas(self._state, self._start)
        if restored:
            log.info("resumed at step %d of %d", self._start, self._timetable.steps)
            if (before := restored.meta.get("layout")) != meta["layout"]:
                log.info(
                    "the checkpoint was saved on %s; the run continues on %s with the same batches",
                    before,
                    meta["layout"],
                )
        totals = Totals(**restored.meta["totals"]) if restored else Totals()
        self._log = processes.together(  # a damaged file of the writer is an error in every process
            lambda: MetricsLog(workdir, totals, self._start, writer)
        )
        self._queue = MetricsQueue()
        self._evaluators: dict[int, Evaluator] = {}
        self._watchdog, self._spikes = Watchdog(), SpikeReport(self._log)
        self._last: tuple[int, dict[str, float]] | None = None
        # The newest metrics of each task that was trained since the last line of metrics.jsonl.
        self._recent: dict[str, float] = {}

    def run(self) -> Trained:
        """Train to the end, or until `should_stop`.

        Raises:
          RunFailed: too many non-finite steps in a row, or a checkpoint cannot be written.
          Unavailable: the lock of the workdir is lost.
        """
        step, evaluation = self._start, None
        bar = progress_bar(self._timetable.steps, self._start, disable=not processes.is_writer())
        with contextlib.closing(self._log), bar, self._watchdog:
            bar.set_postfix_str("compiling the step")
            for first, step in self._chunks():
                evaluation = None
                self._take(bar, leave=1)
                self._watchdog.beat()
                self._heartbeat.beat(step, "training")
                if self._lock:
                    self._lock.check()
                if self._due(self._program.config.eval.every, first, step):
                    self._take(bar, leave=0)
                    evaluation = self._run_evaluation(bar, step)
                if self._program_at(step) is not self._program_at(step - 1):
                    moments = self._program.config.optimizer.grow_moments
                    self._state = grow(self._state, self._program_at(step).abstract_state, moments)
                    log.info("from step %d on the encoder has %d layers", step, self._program_at(step).encoder.layers)
                stop = self._should_stop()
                best = evaluation is not None and self._runtime.keep_best > 0
                if stop or best or self._due(self._runtime.save_every, first, step):
                    self._take(bar, leave=0)
                    self._flush()
                    self._save(step, evaluation, last=stop or step == self._timetable.steps)
                if stop:
                    break
            self._take(bar, leave=0)
            self._flush()
        self._trace.end(self._state)
        with self._log.spending("checkpoint"):
            self._checkpoints.settle()
        if step < self._timetable.steps:
            evaluation = None
        elif evaluation is None:  # an earlier start had finished the run
            with self._log.spending("evaluation"):
                evaluation = self._evaluate(step)
        totals = self._log.totals
        goodput = goodput_of(totals, self._elapsed.seconds)
        goodput |= mfu(totals.flops, totals.executed_flops, goodput["step"], self._program.mesh)
        return Trained(step, self._state, totals, evaluation, goodput)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Dispatch chunk after chunk; yield (steps before, steps after) as soon as one is dispatched."""
        make = LocalBatches(self._timetable.at, self._feeds.train, *batch_shards(self._program.mesh))
        batches = iterate(make, self._start, self._timetable.steps, self._runtime.workers, _PREFETCH)
        step, compiled = self._start, set()
        while step < self._timetable.steps:
            end = self._timetable.edge_after(step, self._runtime.steps_per_call)
            self._trace.edge(step, end, self._state)
            with self._log.spending("data_wait"):
                local = [next(batches) for _ in range(step, end)]
            global_batches = put_batches(local, self._program.mesh)
            spec = self._timetable.at(step)
            task = self._program.at(spec.stage).tasks[spec.task]
            self._log.dispatched(task.flops.executed(global_batches))
            chunk, arguments = task.chunk_at(spec.stage), (self._state, task.frozen, global_batches)
            shapes = (spec.stage, spec.task, end - step)
            if shapes in compiled:
                self._state, metrics = chunk(*arguments)
            else:  # the first call returns when the program is compiled, every later one at once
                compiled.add(shapes)
                with self._log.spending("compile"), self._watchdog.paused():
                    self._state, metrics = chunk(*arguments)
            self._queue.put(step + 1, metrics)
            yield step, end
            step = end
        batches.close()

    def _due(self, every: int, first: int, step: int) -> bool:
        """Whether the chunk contains a multiple of `every`, or ends the run."""
        return step // every > first // every or step == self._timetable.steps

    def _take(self, bar: tqdm, leave: int) -> None:
        """Count and log the steps whose metrics have arrived, except the newest one, which may still be evaluated."""
        for step, metrics in self._queue.take(leave):
            self._flush()
            self._check(step, metrics)
            spec = self._timetable.at(step - 1)
            if processes.is_writer():  # every process has the same metrics
                self._spikes.check(step, metrics, spec, self._feeds.train[spec.task, spec.seq_len])
            task = self._program.at(spec.stage).tasks[spec.task]
            counts = Counts(**{name: metrics[name] for name in Counts._fields})
            self._log.count(metrics, task.flops.useful(counts))
            self._recent |= metrics
            self._last = (step, dict(self._recent))
            bar.update(step - bar.n)
            show_metrics(bar, metrics)

    def _flush(self, evaluation: dict[str, float] | None = None) -> None:
        if self._last:
            step, metrics = self._last
            if evaluation or step % self._runtime.log_every == 0 or step == self._timetable.steps:
                self._log.write(step, metrics, evaluation)
                self._recent = {}
            self._last = None

    def _check(self, step: int, metrics: dict[str, float]) -> None:
        if metrics["skipped"] > self._runtime.max_skipped:
            losses = ", ".join(f"{name}={value}" for name, value in metrics.items() if name.endswith("_loss"))
            raise RunFailed(
                f"loss or gradient is not finite at step {step} ({losses}, gradient_norm={metrics['gradient_norm']}); "
                "nothing was saved after it; raise runtime.max_skipped, or lower optimizer.learning_rate in a new "
                "workdir"
            )
        if metrics["skipped"] and processes.is_writer():
            log.warning("step %d was skipped: its loss or gradient is not finite", step)

    def _run_evaluation(self, bar: tqdm, step: int) -> Evaluation:
        with self._log.spending("evaluation"), self._watchdog.paused():
            evaluation = self._evaluate(step)
        metrics_of = {name: part.metrics for name, part in evaluation.by_set.items()}
        self._flush({f"{name}/{metric}": v for name, metrics in metrics_of.items() for metric, v in metrics.items()})
        self._log.write_samples(step, [dataclasses.asdict(sample) for sample in evaluation.samples])
        bar.write(show_samples(step, evaluation))
        return evaluation

    def _evaluate(self, step: int) -> Evaluation:
        """Evaluate the state as the step left it, before it grows."""
        program = self._program_at(step - 1)
        if program.encoder.layers not in self._evaluators:
            self._evaluators[program.encoder.layers] = Evaluator(program, self._feeds)
        return self._evaluators[program.encoder.layers](program.merged(self._state["params"]))

    def _program_at(self, step: int) -> Program:
        """Return the program of the step that follows `step` steps."""
        return self._program.at(self._timetable.at(min(step, self._timetable.steps - 1)).stage)

    def _save(self, step: int, evaluation: Evaluation | None, last: bool) -> None:
        """Start a checkpoint. If one cannot be written, the run keeps the older ones and continues, if it can."""
        meta = {"totals": dataclasses.asdict(self._log.totals), **self._meta}
        score = evaluation and evaluation.rank
        self._log.flush()
        processes.on_writer(self._lock.verify if self._lock else lambda: None)
        for action in (self._checkpoints.settle, lambda: self._checkpoints.save(step, self._state, meta, score)):
            try:
                with self._log.spending("checkpoint"), self._watchdog.paused():
                    action()
            except NotSaved as error:
                if last or jax.process_count() > 1:
                    raise
                log.warning("%s; the run continues, free disk space", error)
