"""Several runs of one command, one after the other: seeds and folds."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etils import epath

from bertjax.config.config import Config
from bertjax.runtime import platform
from bertjax.training.run import record
from bertjax.training.run.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes:
      step: steps done.
      finished: whether all steps are done.
      figures: metrics and totals, as in `summary.json`; empty unless the run is finished.
      workdir: the run's folder; an `etils.epath` path for a URL.
      pad_id: the tokenizer's padding id.
    """

    step: int
    finished: bool
    figures: dict[str, Any]
    workdir: Path | epath.Path
    pad_id: int = 0


def run_each(
    configs: dict[str, Config],
    workdir: str | Path,
    run: Callable[[Config, epath.Path], Summary],
    should_stop: Callable[[], bool],
) -> tuple[Summary, list[dict[str, Any]]]:
    """Train each configuration in its folder of the workdir, and compile equal programs once.

    Runs that have finished with the same settings are skipped: exporting them again could take all the time between two
    preemptions.

    Args:
      configs: {folder: configuration}.
      workdir: folder of the folders; a second call with the same workdir resumes.
      run: trains a configuration in a workdir.
      should_stop: called between runs; True ends the command.

    Returns:
      (summary of the last run, figures of the finished runs). If a run was stopped, the summary is not finished.
    """
    figures, last = [], list(configs)[-1]
    with platform.sharing_compiled_programs():
        for folder, config in configs.items():
            files = Workdir.at(f"{workdir}/{folder}")
            if finished := record.shared_figures(files, config):
                summary = Summary(finished["steps"], True, finished, files.path)
            else:
                print(f"run       {files.root}", flush=True)
                summary = run(config, files.root)
            if not summary.finished:
                break
            figures.append(summary.figures)
            if folder != last and should_stop():  # the signal came after the last step of this run
                summary = dataclasses.replace(summary, finished=False)
                break
    return summary, figures
