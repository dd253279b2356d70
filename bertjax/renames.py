"""The table of renamed settings, through which the files of older versions are read (docs/changes.md lists them)."""

from collections.abc import Mapping
from typing import Any

# {path of a setting under its old name: its new name, None if nothing depends on it any more}; `*` is any one part of
# the path, such as the name of a task.
KEYS: dict[str, str | None] = {"tasks.*.examples.on_bad_answer": "on_bad_record", "runtime.random_bits": None}

# {old kind: new kind}, of objectives, examples, maskings, schedules, optimizers and tokenizers.
KINDS: dict[str, str] = {"labelled_text": "labeled_text"}

_MOST_LAYERS = 1000


def current(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run under their current names.

    Args:
      settings: a configuration as `config.json` and `bertjax.json` hold it.
    """
    return _with_init_layers(_current(settings, ()))


def _with_init_layers(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which `init_layers` lists the layers that `init_every` counted."""
    every = settings.get("init_every")
    layers = settings["model"].get("layers", 0) if isinstance(settings.get("model"), dict) else 0
    if every != 1 and not (type(every) is int and type(layers) is int and 0 < layers <= _MOST_LAYERS):
        return settings  # the key is absent, or unknown to the reader
    chosen = [every * layer for layer in range(layers)] if every > 1 else []
    return {key: value for key, value in settings.items() if key != "init_every"} | {"init_layers": chosen}


def _current(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        named = ((_new_name((*path, key)), key, entry) for key, entry in value.items())
        return {name: _current(entry, (*path, key)) for name, key, entry in named if name is not None}
    if isinstance(value, (list, tuple)):
        return [_current(entry, (*path, str(index))) for index, entry in enumerate(value)]
    if path[-1:] == ("kind",) and isinstance(value, str):
        return KINDS.get(value, value)
    return value


def _new_name(path: tuple[str, ...]) -> str | None:
    for old, new in KEYS.items():
        parts = old.split(".")
        if len(parts) == len(path) and all(part in ("*", name) for part, name in zip(parts, path)):
            return new
    return path[-1]
