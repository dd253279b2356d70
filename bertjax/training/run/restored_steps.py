"""Check a restored checkpoint against the settings of the start that restores it."""

import logging
from collections.abc import Collection

from bertjax.runtime.errors import UserError, shorten
from bertjax.training.config import RuntimeConfig
from bertjax.training.run.workdir import Workdir

log = logging.getLogger(__name__)


def check_skipped_rows(runtime: RuntimeConfig, step: int, skipped: list[list[int]], workdir: Workdir) -> None:
    """Raise UserError if the settings skip other rows before `step` than the checkpoint was trained with."""
    if runtime.skipped_before(step) != skipped:
        raise UserError(
            f"checkpoint {step} was trained with runtime.skip_rows={skipped}, and the settings differ before that "
            f"step: {[list(steps) for steps in runtime.skip_rows]}; change only what is later, or move the checkpoints "
            f"after the first skipped step out of {workdir.checkpoints}"
        )


def warn_of_missed(keep_at: Collection[int], step: int, saved: Collection[int]) -> None:
    """Warn about steps in `keep_at` that the run has passed without saving a checkpoint."""
    if missed := [kept for kept in keep_at if kept < step and kept not in saved]:
        log.warning(
            "runtime.keep_at has %s, and the run has passed them without a checkpoint; it continues from step %d",
            shorten([f"step {kept}" for kept in missed]),
            step,
        )
