"""A note on models that a run has not finished training."""

import sys

from bertjax.config.opening import SavedModel
from bertjax.runtime.errors import say
from bertjax.training.run.workdir import Workdir, has_finished


def note(saved: SavedModel, use: str) -> None:
    """Print a line if the newest checkpoint of an unfinished run is used; nothing if `RUN@STEP` or an export is named.

    Args:
      saved: the model.
      use: what is done with the checkpoint, a past participle such as `scored`.
    """
    if not saved.is_export and not saved.step and not has_finished(Workdir.at(saved.folder)):
        say(f"{saved.name} is not finished; its newest checkpoint is {use}", file=sys.stderr)
