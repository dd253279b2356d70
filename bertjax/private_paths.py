"""Paths in the settings of a run, which an export leaves out: they name users, machines and buckets."""

from collections.abc import Callable, Mapping
from typing import Any

from bertjax.data import places

# Settings that name files and folders; `*` is any one part of the path.
_PATHS = (
    "init_from",
    "data.corpus",
    "data.heldout",
    "data.sources.*.corpus",
    "data.filters.*.against.*",
    "data.tokenizer.model",
    "data.tokenizer.keep_file",
    "tasks.*.objective.teacher",
    "tasks.*.objective.masking.lexicon",
    "tasks.*.examples.train",
    "tasks.*.examples.heldout",
    "tasks.*.examples.unlabeled",
    "tasks.*.examples.further_heldout.*",
)
# Where a machine keeps data; an export has the defaults.
_PLACES = {"data.store": places.STORE, "data.cache_dir": places.CACHE_DIR}
# Prefixes of corpora that are not paths (`bertjax.data.sources.PLACES`).
_PUBLIC = ("embedded:", "tfds:", "hf:")


def base_name(name: str) -> str:
    """Return a path or URL without its folders; the names of published data sets are kept."""
    is_public = name.startswith(_PUBLIC) and not name.partition(":")[2].startswith(("/", ".", "~"))
    return name if is_public else name.rstrip("/").rpartition("/")[2]


def without(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with the base names of its files, and with the default places of data."""
    return _mapped(settings, _shortened)


def restored(settings: Mapping[str, Any], of_run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an export with the paths of the run that it is from.

    Args:
      settings: the settings of the export.
      of_run: those of the run. A path of it is taken if the export has what `without` leaves of it.
    """
    paths: dict[tuple[str, ...], str] = {}
    _mapped(of_run, lambda path, value: paths.setdefault(path, value))

    def restore(path: tuple[str, ...], value: str) -> str:
        return paths[path] if path in paths and _shortened(path, paths[path]) == value else value

    return _mapped(settings, restore)


def _shortened(path: tuple[str, ...], value: str) -> str:
    return _PLACES.get(".".join(path)) or base_name(value)


def _mapped(value: Any, change: Callable[[tuple[str, ...], str], str], path: tuple[str, ...] = ()) -> Any:
    """Return nested dicts and lists in which the texts that name files or places are changed."""
    if isinstance(value, Mapping):
        return {key: _mapped(entry, change, (*path, key)) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(entry, change, (*path, str(index))) for index, entry in enumerate(value)]
    is_path = any(_matches(pattern, path) for pattern in (*_PATHS, *_PLACES))
    return change(path, value) if is_path and isinstance(value, str) else value


def _matches(pattern: str, path: tuple[str, ...]) -> bool:
    parts = pattern.split(".")
    return len(parts) == len(path) and all(part in ("*", name) for part, name in zip(parts, path))
