"""trackio tracker: keeps runs in a local database (`TRACKIO_DIR`) or a Space (`TRACKIO_SPACE_ID`)."""

import os
import secrets

from bertjax.training.run.trackers import base


class Tracker(base.Tracker):
    """A trackio run in the project `TRACKIO_PROJECT`, by default `bertjax`. trackio resumes runs by name."""

    package = "trackio"

    def start(self, run):
        import trackio

        name = run.id or f"{run.name}-{secrets.token_hex(4)}"  # trackio would merge runs with equal names
        project = os.environ.get("TRACKIO_PROJECT", "bertjax")
        options = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(project, name=name, config=run.settings, resume="allow", **options)
        return name

    def write(self, step, scalars):
        self._run.log(scalars, step=step)

    def close(self):
        self._run.finish()
