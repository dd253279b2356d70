"""The one loop: batches in, steps out, and at chunk edges metrics, evaluations, checkpoints and the wish to stop."""

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator

import jax
import numpy as np
from tqdm import tqdm

from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.errors import RunFailed
from bertjax.training.evaluation import Evaluation, Evaluator
from bertjax.training.feeds import Feeds
from bertjax.training.growth import grow
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import batch_shards, put_batches
from bertjax.training.program import Program
from bertjax.training.results.report import show_samples
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.goodput import Elapsed, goodput_of, mfu
from bertjax.training.run.metrics import MetricsLog, MetricsQueue, Totals
from bertjax.training.run.profiling import Trace
from bertjax.training.run.watchdog import Spikes, Watchdog
from bertjax.training.run.workdir import Workdir
from bertjax.training.state import State

# Batches that wait ready.
_PREFETCH = 2

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Where the loop ended.

    Attributes:
      step: steps done.
      state: after them.
      totals: what they consumed.
      evaluation: of the last step; None where the loop was asked to stop before it.
      goodput: what the run spent its time on, see `goodput_of`.
    """

    step: int
    state: State
    totals: Totals
    evaluation: Evaluation | None
    goodput: dict[str, float]


class Loop:
    """Trains from the newest checkpoint, or from step 0, to the end or until it should stop.

    Args:
      program: what is trained.
      feeds: on what.
      workdir: locked by the caller.
      meta: recorded beside every checkpoint.
      begin: gives the state at step 0.
      should_stop: asked at every chunk edge; a run that stops has saved its state.
      elapsed: wall time of the run's starts.
      profile: steps to trace.
    """

    def __init__(
        self,
        program: Program,
        feeds: Feeds,
        workdir: Workdir,
        meta: dict,
        begin: Callable[[], State],
        should_stop: Callable[[], bool],
        elapsed: Elapsed,
        profile: range | None = None,
    ):
        self._program, self._feeds = program, feeds
        self._meta, self._should_stop = meta, should_stop
        self._elapsed, self._trace = elapsed, Trace(profile, workdir.profile)
        self._runtime, self._timetable = program.config.runtime, program.timetable
        self._checkpoints = Checkpoints(
            workdir.checkpoints, self._runtime.keep, self._runtime.keep_every, self._runtime.keep_best
        )
        restored = self._checkpoints.restore_newest(lambda step: self._program_at(step).abstract_state)
        self._state = restored.tree if restored else begin()
        self._start = restored.step if restored else 0
        if restored:
            log.info("resumed at step %d of %d", self._start, self._timetable.steps)
            if (before := restored.meta.get("layout")) != meta["layout"]:
                log.info("it was saved on %s, and goes on on %s, with the same batches", before, meta["layout"])
        totals = Totals(**restored.meta["totals"]) if restored else Totals()
        self._log = processes.together(  # what is damaged in the writer's files is everyone's error
            lambda: MetricsLog(workdir, totals, self._start, processes.is_writer())
        )
        self._queue = MetricsQueue()
        self._evaluators: dict[int, Evaluator] = {}
        self._watchdog, self._spikes = Watchdog(), Spikes()
        self._last: tuple[int, dict[str, float]] | None = None
        self._recent: dict[str, float] = {}  # since the last line: of every task that had a turn, its newest

    def run(self) -> Trained:
        """Trains.

        Raises:
          RunFailed: more non-finite steps in a row than allowed, or a checkpoint that cannot be written.
        """
        step, evaluation = self._start, None
        with contextlib.closing(self._log), self._bar() as bar, self._watchdog:
            bar.set_postfix_str("compiling the step")
            for first, step in self._chunks():
                evaluation = None
                self._take(bar, leave=1)
                self._watchdog.beat()
                self._elapsed.write()
                if self._due(self._program.config.eval.every, first, step):
                    self._take(bar, leave=0)
                    evaluation = self._run_evaluation(bar, step)
                if self._program_at(step) is not self._program_at(step - 1):
                    self._state = grow(self._state, self._program_at(step))
                    log.info("from step %d on there are %d layers", step, self._program_at(step).encoder.layers)
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
        self._elapsed.write(now=True)
        if step < self._timetable.steps:
            evaluation = None
        elif evaluation is None:  # the run had been finished before
            with self._log.spending("evaluation"):
                evaluation = self._evaluate(step)
        totals = self._log.totals
        goodput = goodput_of(totals, self._elapsed.seconds)
        goodput |= mfu(totals.flops, totals.executed_flops, goodput["step"], self._program.mesh)
        return Trained(step, self._state, totals, evaluation, goodput)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Dispatches chunk after chunk; yields (steps before, steps after) as soon as one is under way."""
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
            self._log.dispatched(task.batch_flops(global_batches))
            arguments = (self._state, task.frozen, global_batches)
            shapes = (spec.stage, spec.task, end - step)
            if shapes in compiled:
                self._state, metrics = task.chunk(*arguments)
            else:  # a call returns as soon as its program is under way, the first once it is compiled
                compiled.add(shapes)
                with self._log.spending("compile"), self._watchdog.paused():
                    self._state, metrics = task.chunk(*arguments)
            self._queue.put(step + 1, metrics)
            yield step, end
            step = end
        batches.close()

    def _due(self, every: int, first: int, step: int) -> bool:
        """Whether a multiple of `every` lies in the chunk, or the run ends with it."""
        return step // every > first // every or step == self._timetable.steps

    def _take(self, bar: tqdm, leave: int) -> None:
        """Counts and logs the steps whose metrics have arrived; the newest one waits, it may be evaluated yet."""
        for step, metrics in self._queue.take(leave):
            self._flush()
            self._check(step, metrics)
            self._watch(step, metrics)
            spec = self._timetable.at(step - 1)
            task = self._program.at(spec.stage).tasks[spec.task]
            self._log.count(metrics, task.flops(*(metrics[name] for name in ("tokens", "token_pairs", "predictions"))))
            self._recent |= metrics
            self._last = (step, dict(self._recent))
            bar.update(step - bar.n)
            bar.set_postfix_str(_postfix(metrics, bar), refresh=False)

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
                "nothing was saved after it: allow runtime.max_skipped such steps, or lower optimizer.learning_rate in "
                "a new workdir"
            )
        if metrics["skipped"] and processes.is_writer():
            log.warning("step %d was skipped: its loss or gradient is not finite", step)

    def _watch(self, step: int, metrics: dict[str, float]) -> None:
        """Says where a loss jumps, and on which rows; every process sees the same, and one says it."""
        if not processes.is_writer():
            return
        losses = {name: value for name, value in metrics.items() if name.endswith("_loss")}
        for name, (loss, above) in self._spikes.judge(losses).items():
            spec = self._timetable.at(step - 1)
            last = spec.first + spec.rows - 1
            log.warning(
                "%s of step %d is %.3f, %.1f deviations above its mean, on rows %d to %d of task %s (spikes.jsonl)",
                *(name, step, loss, above, spec.first, last, spec.task),
            )
            epochs, plans, rows = self._feeds.train[spec.task, spec.seq_len].locate(np.arange(spec.first, last + 1))
            located = {"epochs": epochs.tolist(), "plans": plans.tolist(), "rows": rows.tolist()}
            self._log.write_spike(step, {"name": name, "loss": loss, "deviations": above, **located})

    def _run_evaluation(self, bar: tqdm, step: int) -> Evaluation:
        with self._log.spending("evaluation"), self._watchdog.paused():
            evaluation = self._evaluate(step)
        self._flush(evaluation.metrics)
        self._log.write_samples(step, [dataclasses.asdict(sample) for sample in evaluation.samples])
        bar.write(show_samples(step, evaluation))
        return evaluation

    def _evaluate(self, step: int) -> Evaluation:
        """Of the state as the step left it, before it may grow."""
        program = self._program_at(step - 1)
        if program.encoder.layers not in self._evaluators:
            self._evaluators[program.encoder.layers] = Evaluator(program, self._feeds)
        return self._evaluators[program.encoder.layers](self._state["params"])

    def _program_at(self, step: int) -> Program:
        """That of the next step after so many."""
        return self._program.at(self._timetable.at(min(step, self._timetable.steps - 1)).stage)

    def _save(self, step: int, evaluation: Evaluation | None, last: bool) -> None:
        """Begins a checkpoint. One that fails on the way costs no step: the older ones stay, and the next may do."""
        meta = {"totals": dataclasses.asdict(self._log.totals), **self._meta}
        score = evaluation and evaluation.rank
        self._log.flush()
        for action in (self._checkpoints.settle, lambda: self._checkpoints.save(step, self._state, meta, score)):
            try:
                with self._log.spending("checkpoint"), self._watchdog.paused():
                    action()
            except RunFailed as error:
                if last or jax.process_count() > 1:
                    raise
                log.warning("%s; the run goes on, make room", error)

    def _bar(self) -> tqdm:
        interactive = sys.stderr.isatty()
        return tqdm(
            total=self._timetable.steps,
            initial=self._start,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5 if interactive else 15.0,
            smoothing=0.1,
            disable=not processes.is_writer(),
        )


def _postfix(metrics: dict[str, float], bar: tqdm) -> str:
    shown = [f"{name}={value:.3f}" for name, value in metrics.items() if name.endswith(("_loss", "_accuracy"))]
    rate = bar.format_dict["rate"]
    if rate:
        shown.append(f"{metrics['tokens'] * rate:,.0f} tokens/s")
    return " ".join(shown)
