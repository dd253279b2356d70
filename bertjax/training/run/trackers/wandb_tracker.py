"""Weights & Biases tracker. W&B's environment variables apply; `WANDB_MODE=offline` writes to the workdir."""

import os

from bertjax.training.run.trackers import base


class Tracker(base.Tracker):
    """A W&B run that keeps its id across resumes."""

    package = "wandb"

    def start(self, run):
        import wandb

        # `allow` creates a run with this id or continues it, so a resumed run stays one curve.
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bertjax"),
            name=run.name,
            id=run.id or None,
            config=run.settings,
            dir=os.environ.get("WANDB_DIR", run.folder),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        return self._run.id

    def write(self, step, scalars):
        self._run.log(scalars, step=step)

    def close(self):
        self._run.finish()
