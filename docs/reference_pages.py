"""The reference of the site, made from the code: settings from dataclasses, commands from their parsers, the API."""

import contextlib
import dataclasses
import importlib
import io
import shutil
from pathlib import Path

from bertjax.__main__ import COMMANDS
from bertjax.config import settings
from bertjax.config.config import CONFIG_UNIONS, Config
from bertjax.config.settings import Setting
from bertjax.data.config import SourceConfig
from bertjax.models.presets import PRESETS
from bertjax.training.optim.config import Multiplier

# What users of the Python API import, by what they want to do.
API = {
    "Load, predict, train": ["bertjax"],
    "BERT on one page": ["bertjax.nano"],
    "Encoders": [
        "bertjax.models.config",
        "bertjax.models.encoder",
        "bertjax.models.model",
        "bertjax.models.blocks.base",
    ],
    "Objectives": ["bertjax.objectives.base", "bertjax.objectives.host", "bertjax.objectives.losses"],
    "Data": ["bertjax.data.batch", "bertjax.data.masking", "bertjax.data.store"],
    "Training": ["bertjax.training.step", "bertjax.training.hooks.base", "bertjax.training.state"],
    "Inference": ["bertjax.inference.predictor"],
}


def write(folder: Path) -> None:
    """Write the pages of the reference to a folder of their own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pages = {"settings.md": settings_page(), "commands.md": commands_page(), "api.md": api_page()}
    for name, text in pages.items():
        (folder / name).write_text(text)


def settings_page() -> str:
    """Return the page of all settings: those of every run, then those that each kind adds."""
    lines = [
        "# Settings",
        "",
        "Every setting is a flag, `--config.PATH=VALUE`, and a line of a recipe. `bertjax train --config=RECIPE "
        "--settings` prints them with the values of a recipe. Tasks have names, and `tasks.bert` is the default one. "
        "Stages have numbers from 0.",
    ]
    sections: dict[str, list[Setting]] = {}
    for setting in settings.settings_of(Config()):
        head, dot, _ = setting.path.partition(".")
        sections.setdefault(head if dot else "the run", []).append(setting)
    for title, members in sections.items():
        lines += ["", f"## {title}", *map(_described, members)]
        if title == "model":
            names = ", ".join(f"`{name}`" for name in PRESETS)
            lines.append(f"\n`model.preset`\n: {names}, or `init_from` for the architecture of that model")
    for title, part in {"data.sources.NAME": SourceConfig, "optimizer.multipliers.N": Multiplier}.items():
        lines += ["", f"## {title}", *_fields(part)]
    for union in CONFIG_UNIONS:
        lines += ["", f"## Kinds of {union.setting.replace('.*', '')}"]
        for kind in union.kinds:
            cls = union.class_of(kind)
            first = (cls.__doc__ or "").strip().split("\n\n")[0]
            lines += ["", f"### {kind}", "", " ".join(first.split()), *_fields(cls)]
    return "\n".join(lines) + "\n"


def _fields(part: type) -> list[str]:
    """Return the settings of a dataclass, described."""
    docs = settings.docs_of(part)
    fields = [field for field in dataclasses.fields(part) if field.init and field.name != "kind"]
    return [_described(Setting(each.name, None, settings.default_of(each), docs.get(each.name, ""))) for each in fields]


def _described(setting: Setting) -> str:
    default = setting.value if setting.default is None else setting.default
    shown = settings.REQUIRED if default == settings.REQUIRED else f"`{settings.shown(default)}`"
    return f"\n`{setting.path}` (default {shown})\n: {setting.doc}"


def commands_page() -> str:
    """Return the page of all commands, as `--help` prints them."""
    lines = ["# Commands", "", "`bertjax COMMAND`, or `python -m bertjax COMMAND`."]
    for purpose, commands in COMMANDS.items():
        lines += ["", f"## {purpose[0].upper()}{purpose[1:]}"]
        for name in commands:
            lines += ["", f"### {name}", "", "```text", _help_of(name).strip(), "```"]
    return "\n".join(lines) + "\n"


def _help_of(command: str) -> str:
    """Return what `--help` of a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        importlib.import_module(f"bertjax.cli.{command}").main(["--help"])
    return printed.getvalue()


def api_page() -> str:
    """Return the page of the Python API."""
    lines = ["# Python API", "", "What most users import. Other modules are documented in their files."]
    for title, modules in API.items():
        lines += ["", f"## {title}"]
        for module in modules:
            lines += ["", f"### {module}", "", "```{eval-rst}", f".. automodule:: {module}", "   :members:", "```"]
    return "\n".join(lines) + "\n"
