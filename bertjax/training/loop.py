"""The training loop: dispatch chunks of steps, and call the hooks between them."""

import logging
from collections.abc import Iterator
from typing import NoReturn, cast

from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.runtime.errors import RunFailed
from bertjax.training.hooks.base import Run, Stopping
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import batch_shards, put_batches
from bertjax.training.run.watchdog import TRAINING, NotFinite
from bertjax.training.setup import compile_chunk, setup_after
from bertjax.training.state import grow

# Batches made in advance: the host prepares the next ones while the device computes.
_PREFETCH = 2

log = logging.getLogger(__name__)


def train(run: Run) -> bool:
    """Train to the last step, or until the run is asked to stop; return whether it has finished.

    Raises:
      RunFailed: too many non-finite steps in a row, or checkpoints cannot be written.
      FailedAgain: the previous start failed at the same step from the same checkpoint.
      Unavailable: the lock of the workdir is lost.
    """
    error = None
    try:
        with run.session.watchdog.state(TRAINING):
            _train(run)
    except BaseException as caught:  # Ctrl-C, too
        error = caught
    _close(run, error)
    if error is None and not run.has_finished:
        error = run.failure  # the state of a stop is not saved
    if error is not None:
        _fail(error, run)
    return run.has_finished


def _train(run: Run) -> None:
    try:
        run.call_hooks("on_start")
        run.call_hooks("on_ready")
        for first in _chunks(run):
            run.take(leave=1)
            if run.session.lock:
                run.session.lock.check()
            run.owes_evaluation = run.is_due(run.config.eval.every, first)
            run.check_stop()
            run.call_hooks("on_chunk", first)
    except Stopping:
        run.call_hooks("on_stop")


def _chunks(run: Run) -> Iterator[int]:
    """Dispatch chunk after chunk; yield the steps before each once it is dispatched."""
    mesh = run.setup.layout.mesh
    make = LocalBatches(run.timetable.at, run.feeds.train, *batch_shards(mesh))
    batches = iterate(make, run.step, run.timetable.steps, run.runtime.workers, _PREFETCH)
    compiled = set()
    while not run.is_at_end:
        first, end = run.step, run.timetable.edge_after(run.step, run.runtime.steps_per_call, run.runtime.keep_at)
        run.call_hooks("on_dispatch", first, end)
        with run.log.spending("data_wait"):
            local = [next(batches) for _ in range(first, end)]
        global_batches = put_batches(local, mesh)
        _change_encoder(run)
        spec = run.timetable.at(first)
        run.log.dispatched(run.flops_at(first).executed(global_batches))
        setup = run.setups[spec.stage]
        chunk = compile_chunk(setup, spec.task, spec.stage)
        arguments = run.state, run.start.frozen[setup][spec.task], global_batches
        shapes = (spec.stage, spec.task, end - first)
        if shapes in compiled:
            run.state, metrics = chunk(*arguments)
        else:  # dispatch is asynchronous, but the first call for these shapes waits for the compiler
            compiled.add(shapes)
            with run.log.spending("compile"), run.session.watchdog.state("compiling"):
                run.state, metrics = chunk(*arguments)
        run.queue.put(first + 1, metrics)
        run.step = end
        yield first
    batches.close()


def _change_encoder(run: Run) -> None:
    """Log how the encoder of the next step differs from that of the step before, and grow it if it is deeper.

    Growing waits for that step, so the checkpoint and evaluation at the end of a stage have the depth it trained.
    """
    setup, before = run.setups[run.timetable.at(run.step).stage], setup_after(run.setups, run.step)
    if setup is before:
        return
    if setup.encoder.layers > before.encoder.layers:
        resets = run.config.optimizer.grow_moments == "reset"
        run.state = grow(run.state, setup.shapes, setup.optimizer.init if resets else None)
    for name, (old, new) in before.encoder.differences(setup.encoder).items():
        log.info("from step %d on the encoder has %s=%g instead of %g", run.step, name, new, old)


def _close(run: Run, error: BaseException | None) -> None:
    """Close all hooks, whatever one of them raises: its error must not hide that of the run, or prevent its export."""
    for hook in run.hooks:
        try:
            hook.on_close(run, error)
        except Exception as failure:
            log.error("%s.on_close has failed", type(hook).__name__, exc_info=failure)
            run.failure = run.failure or failure


def _fail(error: BaseException, run: Run) -> NoReturn:
    """Raise the error of a step, explained if its cause is known, or as one that occurred before."""
    judged = run.failures.judge(run.taken + 1, error) if isinstance(error, Exception) else error
    if isinstance(error, NotFinite):  # every process has it: they leave together
        processes.raise_first([cast(RunFailed, judged)])
    if judged is error:
        raise error
    raise judged from error
