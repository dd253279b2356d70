"""Configuration files: `FILE[:variant]`, overrides `a.b=value`, and the command-line flags that carry them."""

import argparse
import importlib.util
import re
from pathlib import Path
from typing import Any

import ml_collections

from bertjax import typed
from bertjax.config import INIT_FROM, Config, from_dict, plain
from bertjax.errors import UserError
from bertjax.opening import SavedModel


def load(config_path: str, overrides: list[str] = ()) -> Config:
    """Reads `FILE[:variant]`, whose `get_config(variant)` gives a ConfigDict, and applies `a.b=value` overrides.

    Raises:
      UserError: the file is missing or broken, the variant unknown, or see `from_dict`.
    """
    path, _, variant = config_path.partition(":")
    if not Path(path).is_file():
        raise UserError(f"configuration file {path!r} does not exist; see the files in configs/")
    spec = importlib.util.spec_from_file_location("bertjax_config_file", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = module.get_config(variant) if variant else module.get_config()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"configuration {config_path!r}: {error}") from error
    except Exception as error:  # it is the user's program, and may fail in any way
        raise UserError(f"configuration {config_path!r} cannot be read: {type(error).__name__}: {error}") from error
    mapping = plain(_in_file_order(found))
    for assignment in sorted(overrides, key=_kinds_first):
        typed.override(mapping, assignment, unions=("objective", "masking", "examples", "schedule"))
    model = mapping.get("model")
    if isinstance(model, dict) and model.get("preset") == INIT_FROM:
        mapping["model"] = _model_of(mapping.get("init_from", "")) | model
        del mapping["model"]["preset"]
    _open_stages(mapping)
    return from_dict(mapping)


def _open_stages(mapping: dict[str, Any]) -> None:
    """Remove the steps and rows that `epochs` and `examples` replace, so that nothing reads them as known."""
    stages = mapping.get("stages")
    for stage in stages if isinstance(stages, list) else []:
        if isinstance(stage, dict):
            for number, by_data in (("steps", "epochs"), ("batch", "examples")):
                if stage.get(by_data):
                    stage.pop(number, None)


def _in_file_order(value: Any) -> Any:
    """Return nested dicts whose keys are in the order in which the file sets them; a ConfigDict lists them sorted.

    The order of tasks is part of a run: the first one names the best checkpoint, and turns are taken in order.
    """
    if isinstance(value, ml_collections.ConfigDict):
        return {key: _in_file_order(value[key]) for key in value._fields}
    if isinstance(value, dict):
        return {key: _in_file_order(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_file_order(entry) for entry in value]
    return value


def _model_of(name: str) -> dict[str, Any]:
    """The settings of the model that `init_from` names, but for the size of its vocabulary."""
    if not name:
        raise UserError(f"model.preset={INIT_FROM} has no model to be like; set --config.init_from=EXPORT")
    return SavedModel(name).settings["model"]


def _kinds_first(assignment: str) -> tuple[bool, int]:
    """Kinds before other settings, and the outer before the inner: each takes the settings of another kind with it."""
    path = assignment.partition("=")[0]
    return (False, path.count(".")) if path.endswith(".kind") else (True, 0)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --config; the overrides --config.a.b=value are left to `parse`."""
    parser.add_argument("--config", required=True, metavar="FILE[:VARIANT]", help="for example configs/tiny.py:smoke")
    parser.epilog = (
        "Any setting can be overridden: --config.a.b=value, for example --config.seed=1 "
        "--config.data.corpus=my/texts --config.stages.0.steps=500 --config.optimizer.learning_rate=1e-3."
    )


def parse(parser: argparse.ArgumentParser, argv: list[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Parses flags and collects the overrides (`a.b=value`, without the leading --config.).

    Raises:
      UserError: a flag that neither the parser nor the configuration knows.
    """
    args, rest = parser.parse_known_args(argv)
    overrides = []
    for flag in rest:
        if not flag.startswith("--config."):
            hint = f"; did you mean --config.{flag[2:]}?" if re.match(r"--[\w.]+=", flag) and "." in flag else ""
            raise UserError(f"unknown flag {flag!r}{hint or '; see --help'}")
        overrides.append(flag.removeprefix("--config."))
    return args, overrides


def short_name(config_path: str, overrides: list[str]) -> str:
    """`tiny-smoke-seed=1` for configs/tiny.py:smoke and seed=1: the default name of a workdir."""
    path, _, variant = config_path.partition(":")
    parts = [Path(path).stem, variant, *(_short(assignment) for assignment in identifying(overrides))]
    return re.sub(r"[^\w.=,-]+", "_", "-".join(part for part in parts if part))


def identifying(overrides: list[str]) -> list[str]:
    """The overrides that make another run of it; those of `eval` and `runtime` do not."""
    return [assignment for assignment in overrides if not assignment.startswith(("eval.", "runtime."))]


def _short(assignment: str) -> str:
    key, _, value = assignment.partition("=")
    return f"{key.rsplit('.', 1)[-1]}={value}"
