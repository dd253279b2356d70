"""The one loop: batches in, steps out, and at chunk edges metrics, evaluations, checkpoints and the wish to stop."""

import dataclasses
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator

import jax
from tqdm import tqdm

from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.errors import RunFailed
from bertjax.training.checkpoint import Checkpoints
from bertjax.training.evaluation import Evaluation, Evaluator
from bertjax.training.files import Workdir, append_jsonl
from bertjax.training.metrics import MetricsLog, MetricsQueue, Totals
from bertjax.training.program import Program
from bertjax.training.report import show_samples
from bertjax.training.sharding import put_batches, replicated
from bertjax.training.state import State
from bertjax.training.step import train_chunk

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
    """

    step: int
    state: State
    totals: Totals
    evaluation: Evaluation | None


def train(program: Program, workdir: Workdir, meta: dict, should_stop: Callable[[], bool]) -> Trained:
    """Trains from the newest checkpoint, or from step 0, to the end or until it should stop.

    Args:
      program: what is trained.
      workdir: locked by the caller.
      meta: recorded beside every checkpoint.
      should_stop: asked at every chunk edge; a run that stops has saved its state.

    Raises:
      RunFailed: more non-finite steps in a row than allowed, or a checkpoint that cannot be written.
    """
    return _Loop(program, workdir, meta, should_stop).run()


class _Loop:
    def __init__(self, program: Program, workdir: Workdir, meta: dict, should_stop: Callable[[], bool]):
        self._program, self._workdir, self._meta, self._should_stop = program, workdir, meta, should_stop
        self._runtime, self._timetable = program.config.runtime, program.timetable
        self._checkpoints = Checkpoints(workdir.checkpoints, self._runtime.keep)
        restored = self._checkpoints.restore_newest(program.abstract_state)
        self._state = restored.tree if restored else program.init_state()
        self._start = restored.step if restored else 0
        if restored:
            log.info("resumed at step %d of %d", self._start, self._timetable.steps)
        totals = Totals(**restored.meta["totals"]) if restored else Totals()
        self._log = MetricsLog(workdir, program.encoder, totals, self._start)
        self._queue = MetricsQueue()
        self._evaluate = Evaluator(program)
        self._last: tuple[int, dict[str, float]] | None = None

    def run(self) -> Trained:
        step, evaluation = self._start, None
        with self._bar() as bar:
            bar.set_postfix_str("compiling the step")
            for first, step in self._chunks():
                evaluation = None
                self._take(bar, leave=1)
                if self._due(self._program.config.eval.every, first, step):
                    self._take(bar, leave=0)
                    evaluation = self._run_evaluation(bar, step)
                stop = self._should_stop()
                if stop or self._due(self._runtime.save_every, first, step):
                    self._take(bar, leave=0)
                    self._flush()
                    self._save(step)
                if stop:
                    break
            self._take(bar, leave=0)
            self._flush()
        self._checkpoints.close()
        if step < self._timetable.steps:
            evaluation = None
        elif evaluation is None:  # the run had been finished before
            evaluation = self._evaluate(self._state["params"])
        totals = self._log.totals
        self._log.close()
        return Trained(step, self._state, totals, evaluation)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Dispatches chunk after chunk; yields (steps before, steps after) as soon as one is under way."""
        layout = jax.tree.map(lambda leaf: leaf.sharding, self._program.abstract_state)
        run_chunk = jax.jit(
            functools.partial(train_chunk, self._program.context),
            donate_argnums=0,
            out_shardings=(layout, replicated(self._program.mesh)),
        )
        feeds = self._program.train_feeds
        make = LocalBatches(self._timetable.at, feeds, jax.process_index(), jax.process_count())
        batches = iterate(make, self._start, self._timetable.steps, self._runtime.workers, _PREFETCH)
        step = self._start
        while step < self._timetable.steps:
            end = self._timetable.edge_after(step, self._runtime.steps_per_call)
            began = time.monotonic()
            local = [next(batches) for _ in range(step, end)]
            self._log.waited(time.monotonic() - began)
            global_batches = put_batches(local, self._program.mesh)
            self._state, metrics = run_chunk(self._state, self._program.frozen, global_batches)
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
            self._log.count(metrics)
            self._last = (step, metrics)
            bar.update(step - bar.n)
            bar.set_postfix_str(_postfix(metrics, bar), refresh=False)

    def _flush(self, evaluation: dict[str, float] | None = None) -> None:
        if self._last:
            step, metrics = self._last
            if evaluation or step % self._runtime.log_every == 0 or step == self._timetable.steps:
                self._log.write(step, metrics, evaluation)
            self._last = None

    def _check(self, step: int, metrics: dict[str, float]) -> None:
        if metrics["skipped"] > self._runtime.max_skipped:
            losses = ", ".join(f"{name}={value}" for name, value in metrics.items() if name.endswith("_loss"))
            raise RunFailed(
                f"loss or gradient is not finite at step {step} ({losses}, gradient_norm={metrics['gradient_norm']}); "
                "nothing was saved after it: allow runtime.max_skipped such steps, or lower optimizer.learning_rate in "
                "a new workdir"
            )
        if metrics["skipped"]:
            log.warning("step %d was skipped: its loss or gradient is not finite", step)

    def _run_evaluation(self, bar: tqdm, step: int) -> Evaluation:
        evaluation = self._evaluate(self._state["params"])
        self._flush(evaluation.metrics)
        record = {"step": step, "samples": [dataclasses.asdict(sample) for sample in evaluation.samples]}
        append_jsonl(self._workdir.samples, record)
        bar.write(show_samples(step, evaluation))
        return evaluation

    def _save(self, step: int) -> None:
        self._checkpoints.save(step, self._state, {"totals": dataclasses.asdict(self._log.totals), **self._meta})

    def _bar(self) -> tqdm:
        interactive = sys.stderr.isatty()
        return tqdm(
            total=self._timetable.steps,
            initial=self._start,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5 if interactive else 15.0,
            smoothing=0.1,
        )


def _postfix(metrics: dict[str, float], bar: tqdm) -> str:
    shown = [f"{name}={value:.3f}" for name, value in metrics.items() if name.endswith(("_loss", "_accuracy"))]
    rate = bar.format_dict["rate"]
    if rate:
        shown.append(f"{metrics['tokens'] * rate:,.0f} tokens/s")
    return " ".join(shown)
