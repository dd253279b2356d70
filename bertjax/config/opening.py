"""Open a trained model by name: an export folder, a run, or one of its checkpoints."""

import functools
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertjax.config import export, private_paths
from bertjax.config.export import Export
from bertjax.data.tokenizer import Tokenizer
from bertjax.models.encoder import Encoder
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, quoted, reason, say
from bertjax.runtime.storage import place_of, split_name

if TYPE_CHECKING:
    from bertjax.config.config import Config

log = logging.getLogger(__name__)

# Prefix of models of the Hugging Face Hub.
_HUB = "hf:"
# File with a run's record, in its workdir.
RUN_RECORD = "config.json"


class Model(NamedTuple):
    """A pretrained encoder, ready for `module.apply({"params": params}, tokens_BT)`.

    Pass `params` to jitted functions as an argument. Closing over them also works, but embeds a copy in the program as
    constants.

    Attributes:
      module: a Flax Linen `Encoder`.
      params: its parameters, a plain nested dict of float32 numpy arrays.
      tokenizer: converts text to ids and back.
    """

    module: Encoder
    params: dict
    tokenizer: Tokenizer


class SavedModel:
    """An export folder, a workdir `RUN` (its newest checkpoint), `RUN@STEP` or a model of the Hugging Face Hub.

    Parts are read lazily. `hf:OWNER/NAME@REVISION` is downloaded and converted, and then stands for an export folder.

    Only checkpoints need Orbax and a backend.

    An export, which may come from somebody else, must not decide what this machine reads or writes: `config` contains
    only the settings that `private_paths.read_from_export` accepts. A workdir is the user's own, so all of its settings
    apply.

    Args:
      name: folder path, with `@STEP` for a certain checkpoint; or `hf:OWNER/NAME`, with `@REVISION` for another one.
      trust_code: whether `config` and `export` may import modules that the model names as `module:Class`.
      task: restrict settings and params to this task, if the model has several.

    Raises:
      UserError: the folder does not exist, or the model of the Hub cannot be had. The properties raise it if their
        part is missing or damaged.
    """

    def __init__(self, name: str | os.PathLike, trust_code: bool = False, task: str = ""):
        self.name = os.fspath(name)
        place_of("" if self.name.startswith(_HUB) else name, reads_remote=False)
        path, self.step = (_converted(self.name), "") if self.name.startswith(_HUB) else split_name(name)
        self.folder = Path(path)
        self._trust_code, self._task = trust_code, task
        if self.folder.suffix == ".onnx" and self.folder.is_file():
            raise UserError(
                f"{path!r} is an ONNX file, which predict, evaluate, bench and serve use; name the export folder or "
                "the run that it was made from"
            )
        if not self.folder.is_dir():
            problem = "is a file" if self.folder.exists() else "does not exist"
            is_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not self.folder.parent.exists()
            download = f", or hf:{path} for the model of the Hugging Face Hub" if is_hub else ""
            raise UserError(
                f"{path!r} {problem}; name an export folder (bertjax convert makes one of a checkpoint from "
                f"elsewhere), a workdir, or WORKDIR@STEP{download}"
            )
        if not self.is_export and _is_of_transformers(self.folder):
            raise UserError(
                f"{path!r} is a checkpoint of transformers; convert it and use the result: python -m bertjax convert "
                f"--from={path} --to={self.folder.name}.bertjax"
            )

    @property
    def is_export(self) -> bool:
        """Whether this is an export folder rather than a run."""
        # `@STEP` names a checkpoint, even if the folder also holds an export.
        return not self.step and (self.folder / export.MANIFEST).exists()

    def note_unfinished(self, use: str) -> None:
        """Print a line if the newest checkpoint of an unfinished run is used.

        Args:
          use: what is done with the checkpoint, a past participle such as `scored`.
        """
        from bertjax.training.run.workdir import Workdir, has_finished

        if not self.is_export and not self.step and not has_finished(Workdir.at(self.folder)):
            say(f"{self.name} is not finished; its newest checkpoint is {use}", file=sys.stderr)

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The training configuration as plain dicts."""
        return _of_task(self._recorded, self._task) if self._task else self._recorded

    @functools.cached_property
    def _recorded(self) -> dict[str, Any]:
        if self.is_export:
            return export.read_manifest(self.folder)["config"]
        self._check_is_run()
        path = self.folder / RUN_RECORD
        try:
            settings = untrusted.read_json(path)["config"]
            if not isinstance(settings, dict):
                raise TypeError(f"config={quoted(settings)} is not settings by name")
            return private_paths.without_teachers(settings)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({reason(error)}); restore it") from error

    @functools.cached_property
    def model(self) -> dict[str, Any]:
        """The settings of the architecture; in a run whose stages differ in it, those of the checkpoint's stage."""
        stages = [] if self.is_export else self.settings["stages"]
        # The stage of the newest checkpoint is known only to the checkpoint.
        differ = any(stage.get(name) for stage in stages for name in export.WHOLE_MODEL)
        return (self.export if differ else self).settings["model"]

    @functools.cached_property
    def config(self) -> "Config":
        """The training configuration; for an export only what `private_paths.read_from_export` accepts.

        Raises:
          Untrusted: it names a module that is not imported, and `trust_code` is False.
        """
        return self.config_of(self.settings)

    def config_of(self, settings: dict[str, Any]) -> "Config":
        """Build a configuration from other settings, with the same trust rules as for the model's own."""
        # Imported here: it loads every objective and format, which reading weights does not need.
        from bertjax.config.config import from_dict

        if not self.is_export:
            from bertjax.training.run.record import with_split
            from bertjax.training.run.workdir import Workdir

            return with_split(Workdir.at(self.folder), from_dict(settings, self._trust_code))
        read = private_paths.read_from_export(settings)
        if isinstance(data := read.setdefault("data", {}), dict):  # otherwise `from_dict` reports it
            data["tokenizer"] = {"model": str(self.folder / "tokenizer")}
        return from_dict(read, self._trust_code)

    def check_data(self, flag: str) -> None:
        """Check that the model can be scored on its own data: a run's data, or a corpus that comes with bertjax.

        Args:
          flag: flag that names other data, for the message.

        Raises:
          UserError: the model is an export whose data is not available.
        """
        from bertjax.data.labeled.base import LabeledFormat

        is_labeled = isinstance(self.config.task.examples, LabeledFormat)
        if self.is_export and (is_labeled or self.config.data.corpus == private_paths.EMBEDDED):
            raise UserError(
                f"{self.folder} is an export, which opens no data but what comes with bertjax; add {flag}, or name the "
                "run itself"
            )

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return export.read_tokenizer(self.folder)

    @functools.cached_property
    def export(self) -> Export:
        """Everything that is stored for the model."""
        if self._trust_code:
            _ = self.config  # imports the modules that users of the export need
        model = self._read()
        _warn_of_changes(model)
        if not self._task:
            return model
        # Unwrap the task's own heads, so that the result looks like a model with a single task.
        # Imported here because only models with several tasks need the formats.
        from bertjax.data.formats import FORMATS
        from bertjax.data.labeled.base import LabeledFormat

        settings, params = _of_task(model.settings, self._task), model.params
        several, task = len(model.settings["tasks"]) > 1, settings["tasks"][self._task]
        if several and issubclass(FORMATS.class_of(task["examples"]["kind"]), LabeledFormat):
            params = params | {"heads": params.get("heads", {}).get(self._task, {})}  # `Loss.own_heads`
        return model._replace(settings=settings, params=params)

    def _read(self) -> Export:
        if self.is_export:
            return export.read(self.folder)
        self._check_is_run()
        # Imported here, because exports must open without Orbax.
        from bertjax.training.run.record import read_checkpoint

        return read_checkpoint(self.folder, self.step)

    def _check_is_run(self) -> None:
        from bertjax.training.run.workdir import Workdir, runs_in

        # Check this first: a folder of runs has no record itself, and the general message would not help.
        if several := runs_in(Workdir.at(self.folder).root):
            raise UserError(f"{str(self.folder)!r} holds several runs; name one, such as {several[0]}")
        if not (self.folder / RUN_RECORD).exists():
            raise UserError(
                f"{str(self.folder)!r} holds neither an export ({export.MANIFEST}) nor a run ({RUN_RECORD}); name an "
                "export folder, a workdir, or WORKDIR@STEP"
            )


def _converted(name: str) -> str:
    from bertjax.interop import hub  # not above: it imports every family, which no export needs

    return os.fspath(hub.converted(name))


def _warn_of_changes(model: Export) -> None:
    """Log a warning if a file of the encoder's code is not the one that the model was trained with."""
    encoder = model.encoder
    kinds = (encoder.embeddings.kind, encoder.block.kind, encoder.direction)
    for name in _changed([kind.partition(":")[0] for kind in kinds if ":" in kind], model.modules):
        log.warning("%s has changed since the model was trained, so the model may compute something else", name)


def _changed(names: Iterable[str], modules: Mapping[str, Any]) -> list[str]:
    """Return which imported modules have another file than the model was trained with.

    Args:
      names: module names.
      modules: `Export.modules`.
    """
    if not (imported := [name for name in names if name in sys.modules]):
        return []
    # Imported here: it reads the versions of all libraries.
    from bertjax.training.run import versions

    now = versions.foreign_modules(imported)
    recorded = {name: before.get("sha256") for name, before in modules.items() if isinstance(before, dict)}
    return [name for name, module in now.items() if recorded.get(name) not in ("", None, module["sha256"])]


def _is_of_transformers(folder: Path) -> bool:
    """Return whether `config.json` is from transformers, which uses the same file name as our runs."""
    try:
        return "model_type" in untrusted.read_json(folder / RUN_RECORD)
    # A damaged file is reported later, by the reader of runs.
    except (OSError, ValueError, TypeError):
        return False


def _of_task(settings: dict[str, Any], task: str) -> dict[str, Any]:
    """Restrict a run's settings to one task and the stages that train it."""
    tasks = settings.get("tasks", {})
    if task not in tasks:
        raise UserError(f"--task={task} is not a task of the model; choose one of {', '.join(tasks)}")
    stages = [stage for stage in settings.get("stages", []) if not stage.get("tasks") or task in stage["tasks"]]
    # The checks of `Config` are for a whole run. They would refuse stages that name tasks that are left out, a last
    # stage without the whole model, and a schedule, layers or steps of the stages that are missing.
    alone = export.WHOLE_MODEL | {"tasks": [], "frozen_layers": 0, "learning_rate": 0.0, "warmup_steps": 0}
    return settings | {
        "tasks": {task: tasks[task]},
        "stages": [stage | alone for stage in stages],
        "init_layers": [],
        "optimizer": settings.get("optimizer", {}) | {"warmup_steps": 0, "warmup_share": 0.0, "warmup_tokens": 0.0},
        "runtime": settings.get("runtime", {}) | {"keep_at": []},
    }


def load(name: str | os.PathLike, trust_code: bool = False) -> Model:
    """Read a pretrained encoder: an export folder, `RUN` or `RUN@STEP`; see `bertjax.load`."""
    saved = SavedModel(name, trust_code).export
    return Model(Encoder(saved.encoder), saved.params["encoder"], saved.tokenizer)
