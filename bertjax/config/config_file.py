"""Read configuration files `FILE[:variant]` and overrides `a.b=value`, and define the flags for both."""

import argparse
import difflib
import functools
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_collections

from bertjax.config import row_lengths, typed
from bertjax.config.config import INIT_FROM, Config, from_dict, plain, with_changes
from bertjax.config.opening import SavedModel
from bertjax.data.config import DataConfig
from bertjax.models import directions
from bertjax.models.blocks import BLOCKS
from bertjax.models.embeddings import EMBEDDINGS
from bertjax.runtime import command_line
from bertjax.runtime.errors import Untrusted, UserError
from bertjax.runtime.setting import FREE, marked
from bertjax.runtime.storage import place_of

# Folders with recipes: in an installed package (setup.py), and in a checkout.
_RECIPES = (Path(__file__).parents[1] / "recipes", Path(__file__).parents[2] / "configs")

# Alternatives that determine one number: given directly, or derived from the others. A flag for one of them replaces
# the recipe's choice, so that `--config.stages.0.steps=500` also works if the recipe sets epochs.
_ALTERNATIVES = {
    r"stages\.\d+": (("steps", "epochs", "flops"), ("batch", "examples")),
    r"optimizer": (("warmup_steps", "warmup_share", "warmup_tokens"),),
}
# Settings that have a `kind`.
_UNIONS = ("objective", "masking", "examples", "schedule", "embeddings", "block")
# {model setting that may name code: function that imports it}
_CODE = {"direction": directions.check, "embeddings.kind": EMBEDDINGS.class_of, "block.kind": BLOCKS.class_of}
# {setting: another one that has no effect without it and is removed together with it}.
_DEPENDENT = {"epochs": "min_steps"}


def load(config_path: str, overrides: Sequence[str] = ()) -> Config:
    """Read `FILE[:variant]` and apply overrides.

    Args:
      config_path: a recipe that comes with bertjax (`find`), or a Python file whose `get_config(variant)` returns a
        ConfigDict or a dict.
      overrides: assignments `a.b=value`.

    Raises:
      UserError: the file is missing or fails, the variant is unknown, or a setting is wrong.
    """
    place_of(config_path, reads_remote=False)  # a URL has a colon before its name
    path, _, variant = config_path.partition(":")
    mapping = _settings(config_path, find(path), variant)
    tasks = list(mapping["tasks"]) if isinstance(mapping.get("tasks"), dict) else []
    # A flag for `kind` clears the recipe's settings for the old kind, so it must come before flags for the new one.
    for assignment in _in_order(overrides):
        if removed := typed.override(mapping, assignment, unions=_UNIONS):
            names = ", ".join(removed)
            print(f"{assignment}: settings that the recipe has for another kind are not used: {names}", file=sys.stderr)
    _check_tasks(mapping, tasks)
    model = mapping.get("model")
    if isinstance(model, dict) and model.get("preset") == INIT_FROM:
        inherited = _model_of(mapping.get("init_from", ""))
        _check_code(inherited, model)
        # Settings beside the preset win over the inherited ones.
        mapping["model"] = with_changes(inherited, model)
        del mapping["model"]["preset"]
        mapping = row_lengths.fit(mapping, {assignment.partition("=")[0] for assignment in overrides})
    _take_alternatives(mapping, [assignment.partition("=")[0] for assignment in overrides])
    _take_corpora(mapping, [assignment.partition("=")[0] for assignment in overrides])
    _check_warmup(mapping.get("optimizer"))
    _open_stages(mapping)
    return from_dict(mapping, trust_code=True)  # the user names the file


def find(path: str) -> str:
    """Return the path for `--config` without its variant: a file, or a recipe that comes with bertjax.

    `tiny`, `finetune/glue` and `configs/tiny.py` name recipes, in a checkout and in an installed package. An existing
    file takes precedence.

    Raises:
      UserError: there is neither a file nor a recipe with this name.
    """
    path = os.path.expanduser(path)  # shells leave ~ in `--config=~/my.py`
    if os.path.isfile(path):
        return path
    name = path.removeprefix("configs/").removesuffix(".py")
    for folder in _RECIPES:
        # A name with `..` would leave the folder of recipes.
        if (folder / f"{name}.py").is_file() and ".." not in Path(name).parts:
            return str(folder / f"{name}.py")
    state = "is not a file" if Path(path).is_dir() else "does not exist"
    known = sorted(
        {str(file.relative_to(folder).with_suffix("")) for folder in _RECIPES for file in folder.rglob("*.py")}
    )
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"recipes are {', '.join(known)}"
    raise UserError(f"configuration file {path!r} {state}; choose a recipe or write your own file; {hint}")


def _settings(config_path: str, path: str, variant: str) -> dict[str, Any]:
    """Run a configuration file and return the settings from its `get_config` as plain dicts."""
    # Load by path: the file need not be on PYTHONPATH, and its name need not be a valid module name.
    spec = importlib.util.spec_from_file_location("bertjax_config_file", path)
    if spec is None or spec.loader is None:
        raise UserError(f"configuration file {path!r} is not Python; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        settings = module.get_config(variant) if variant else module.get_config()
        mapping = plain(_in_file_order(settings))
    except UserError:
        raise
    except RecursionError as error:
        raise UserError(f"configuration {config_path!r} cannot be read: it contains itself, or calls itself") from error
    except ValueError as error:
        raise UserError(f"configuration {config_path!r}: {error}") from error
    except (Exception, SystemExit) as error:  # the file is a program of the user and may fail in any way
        raise UserError(f"configuration {config_path!r} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(mapping, dict):
        kind = type(settings).__name__
        raise UserError(f"configuration {config_path!r}: get_config() returns {kind}; return a ConfigDict or a dict")
    return mapping


def _check_tasks(mapping: dict[str, Any], names: list[str]) -> None:
    """Raise UserError if flags have made a task by mistake: a run with it would be a mixture.

    Args:
      names: tasks of the configuration file, before flags.
    """
    tasks = mapping.get("tasks")
    if not isinstance(tasks, dict) or not tasks.keys() >= set(names):  # a flag has replaced all tasks
        return
    for name, task in tasks.items() if names else ():
        objective = task.get("objective", {}) if isinstance(task, dict) else None
        # A misspelled task name creates a second task with the default objective; a meant one names its kind.
        if name not in names and isinstance(objective, dict) and "kind" not in objective:
            known = ", ".join(f"tasks.{own}" for own in names)
            raise UserError(
                f"tasks.{name} is not in the configuration, which has {known}; correct the name, or set "
                f"tasks.{name}.objective.kind for a task of its own"
            )


def _take_alternatives(mapping: dict[str, Any], named: list[str]) -> None:
    """Let a flag replace the recipe's alternative to it: `stages.0.steps` replaces `epochs`.

    Raises:
      UserError: flags set both alternatives.
    """
    for path in named:
        parent, _, name = path.rpartition(".")
        for alternatives in _alternatives_of(parent):
            section = functools.reduce(_entry, parent.split("."), mapping)
            if name not in alternatives:
                continue
            is_one_of_two = any(f"{parent}.{other}" in named and section.get(other) for other in alternatives)
            if not section.get(name) and (name != alternatives[0] or is_one_of_two):
                continue  # a zero chooses nothing: epochs=0, or warmup_steps=0 beside a flag for warmup_share
            for other in alternatives:
                if other != name and section.pop(other, None) and f"{parent}.{other}" in named:
                    raise UserError(f"{path} and {parent}.{other} exclude each other; leave one out")
                if other != name and other in _DEPENDENT:
                    section.pop(_DEPENDENT[other], None)


def _take_corpora(mapping: dict[str, Any], named: list[str]) -> None:
    """Let flags for `data.sources` replace the recipe's one corpus, and a flag for `data.corpus` its sources.

    If flags set both, `DataConfig` refuses them.
    """
    has_corpus = "data.corpus" in named
    has_sources = any(f"{path}.".startswith("data.sources.") for path in named)
    if has_corpus != has_sources and isinstance(data := mapping.get("data"), dict):
        # `smoothing` weights several sources, and `text_field` is that of the one corpus.
        for name in ("sources", "smoothing") if has_corpus else ("corpus", "text_field"):
            if f"data.{name}" not in named:
                data.pop(name, None)


def _check_warmup(optimizer: Any) -> None:
    """Raise UserError if a file sets the warm-up in steps and otherwise, of which only the other would count."""
    if isinstance(optimizer, dict) and (steps := optimizer.get("warmup_steps")):
        # Not in `OptimizerConfig`: there the steps have a default, and later those that the other setting results in.
        for name in ("warmup_share", "warmup_tokens"):
            if value := optimizer.get(name):
                raise UserError(
                    f"optimizer.warmup_steps={steps} and optimizer.{name}={value} both set the warm-up; leave one out"
                )


def _alternatives_of(parent: str) -> Sequence[tuple[str, ...]]:
    return next((groups for pattern, groups in _ALTERNATIVES.items() if re.fullmatch(pattern, parent)), ())


def _entry(section: Any, key: str) -> Any:
    return section[int(key)] if isinstance(section, list) else section[key]


def _open_stages(mapping: dict[str, Any]) -> None:
    """Remove steps and rows that `epochs`, `flops` or `examples` will determine: nothing may read them as known."""
    stages = mapping.get("stages")
    for index, stage in enumerate(stages if isinstance(stages, list) else []):
        if isinstance(stage, dict):
            for number, *by_data in _alternatives_of(f"stages.{index}"):
                if any(stage.get(name) for name in by_data):
                    stage.pop(number, None)


def _in_file_order(value: Any) -> Any:
    """Return nested dicts with keys in the order of the file; iterating over a ConfigDict would sort them.

    The order of tasks is part of a run: the first task ranks checkpoints, and tasks take turns in this order.
    """
    if isinstance(value, ml_collections.ConfigDict):
        # `_fields` is private to ConfigDict and has the order of assignment.
        return {key: _in_file_order(value[key]) for key in value._fields}
    if isinstance(value, dict):
        return {key: _in_file_order(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_file_order(entry) for entry in value]
    return value


def _model_of(name: Any) -> dict[str, Any]:
    """Return the model settings of `init_from`."""
    name = typed.build(str, name, "init_from", {})  # a folder such as 2024 is read as a number
    if not name:
        raise UserError(
            f"model.preset={INIT_FROM} needs a model to copy the architecture from; add --config.init_from=EXPORT"
        )
    return SavedModel(name).model


def _check_code(inherited: dict[str, Any], own: dict[str, Any]) -> None:
    """Import the code that the user's model settings name.

    Raises:
      Untrusted: the other model's architecture names code that the user's settings do not name.
    """
    for setting, check in _CODE.items():
        if name := _text(own, setting):
            check(name, trust_code=True)
        elif name := _text(inherited, setting):
            try:
                check(name)
            except Untrusted as error:
                raise Untrusted(
                    f"init_from has model.{setting}={name!r}, which runs the code of its author; if you trust it, add "
                    f"--config.model.{setting}={name}"
                ) from error


def _text(settings: Any, path: str) -> str:
    """Return a nested setting, or "" if it is not there or not a text."""
    for key in path.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings if isinstance(settings, str) else ""


def _in_order(overrides: Sequence[str]) -> list[str]:
    """Return overrides with `kind` settings first, outer ones before inner ones, but never before a group they are in.

    A group, such as `tasks={...}`, replaces what stands before it.
    """
    paths, groups, keys = [assignment.partition("=")[0] for assignment in overrides], 0, []
    for path in paths:
        is_group = any(other.startswith(f"{path}.") for other in paths)
        groups += is_group
        # False sorts before True.
        keys.append((groups, not is_group, not path.endswith(".kind"), path.endswith(".kind") and path.count(".")))
    return [overrides[place] for place in sorted(range(len(overrides)), key=keys.__getitem__)]


def add_flags(parser: command_line.ArgumentParser) -> None:
    """Add --config; `parse` collects the overrides --config.a.b=value."""
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE[:VARIANT]",
        help="recipe or configuration file with an optional variant, for example tiny:smoke or my/config.py",
    )
    parser.epilog = f"{parser.epilog}\n" if parser.epilog else ""
    parser.epilog += (
        "Any setting can be overridden with --config.a.b=value, for example --config.seed=1\n"
        "--config.data.corpus=my/texts --config.stages.0.steps=500 --config.optimizer.learning_rate=1e-3."
    )


def parse(parser: command_line.ArgumentParser, argv: list[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Parse flags.

    Returns:
      The parsed flags, and overrides as `a.b=value` without the leading `--config.`

    Raises:
      UserError: an unknown flag, or an override without a value.
    """
    args, overrides, unknown = parse_known(parser, argv)
    refuse(unknown, parser)
    return args, overrides


def parse_known(
    parser: command_line.ArgumentParser, argv: list[str] | None = None
) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Like `parse`, but return unknown flags as a third value."""
    args, rest = parser.parse_known_args(argv)
    for flag, following in itertools.pairwise([*rest, ""]):
        if flag.startswith("--config.") and "=" not in flag:  # `--config.seed 1`: argparse does not know its value
            value = following if following and not following.startswith("-") else "VALUE"
            raise UserError(f"{flag} has no value; write {flag}={value}")
    overrides = [flag.removeprefix("--config.") for flag in rest if flag.startswith("--config.")]
    return args, overrides, [flag for flag in rest if not flag.startswith("--config.")]


def refuse(unknown: list[str], parser: command_line.ArgumentParser) -> None:
    """Raise UserError if there are unknown flags, with the nearest known flag or setting."""
    for flag in unknown:
        if not flag:
            raise UserError("an argument is empty; remove it, or set the variable that it comes from")
        name, is_assigned, value = flag.partition("=")
        near = parser.nearest(name)
        # `--learning_rate=1e-4` is meant as a setting: print its full path.
        if name.startswith("--") and is_assigned:
            paths = [name[2:]] if "." in name else typed.paths_of(Config, name[2:])
            near = " or ".join(f"--config.{path}={value}" for path in paths) or near
        hint = f"did you mean {near}?" if near else "see --help"
        raise UserError(f"unknown flag {flag!r}; {hint}")


def short_name(config_path: str, overrides: list[str]) -> str:
    """Return the default workdir name: `tiny-smoke-seed=1` for configs/tiny.py:smoke and seed=1."""
    path, _, variant = config_path.partition(":")
    parts = [Path(path).stem, variant, *(_short(assignment) for assignment in identifying(overrides))]
    # Values may hold slashes, quotes and brackets, which do not belong in a folder name.
    return re.sub(r"[^\w.=,-]+", "_", "-".join(part for part in parts if part))


def reference_name(config_path: str, overrides: list[str]) -> str:
    """Return the reference curve's name; empty if a run trains with other settings than the recipe's."""
    # A reference curve covers several seeds, so another seed is still comparable with it.
    changed = [assignment for assignment in identifying(overrides) if not assignment.startswith("seed=")]
    return "" if changed else short_name(config_path, [])


def identifying(overrides: list[str]) -> list[str]:
    """Return overrides that change the result, or the workdir's name; `eval`, `runtime` and a token store do not."""
    free = [*marked(Config, FREE), *(f"data.{name}" for name in marked(DataConfig, FREE))]
    return [each for each in overrides if not re.match(rf"({'|'.join(free)})[.=]", each)]


def _short(assignment: str) -> str:
    key, _, value = assignment.partition("=")
    return f"{key.rsplit('.', 1)[-1]}={value}"
