"""Filters for the settings in exports: paths are removed on writing, and only safe settings are used on reading.

Paths name users, machines and buckets, so exports contain base names only (`without`). The author of an export must not
control what another machine opens, writes, matches or runs, so few of its settings are used (`read_from_export`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

# Settings that name files and folders; `*` matches one component.
_PATHS = (
    "init_from",
    "data.corpus",
    "data.heldout",
    "data.sources.*.corpus",
    "data.filters.*.against.*",
    "data.tokenizer.model",
    "data.tokenizer.keep_file",
    "stages.*.masking.lexicon",
    "tasks.*.objective.teacher",
    "tasks.*.objective.masking.lexicon",
    "tasks.*.objective.objective.masking.lexicon",
    "tasks.*.examples.train",
    "tasks.*.examples.heldout",
    "tasks.*.examples.unlabeled",
    "tasks.*.examples.further_heldout.*",
)
# Default folders on this machine. Exports contain these instead of the user's own paths.
STORE = "~/.cache/bertjax/stores"
CACHE_DIR = "~/.cache/bertjax/remote"
_PLACES = {"data.store": STORE, "data.cache_dir": CACHE_DIR}
# Prefix of the corpora that come with bertjax. Without a name behind it: no corpus.
EMBEDDED = "embedded:"
# Prefixes of corpora that are not paths (`bertjax.data.sources.PLACES`).
PUBLIC = (EMBEDDED, "tfds:", "hf:")

# Settings used from an export, with everything below them. Corpora and filters have their own rules.
_READ = (
    "model",
    "tasks",
    "stages.*.seq_len",
    "stages.*.masking_rate",
    "stages.*.tasks",
    "data.splitter",
    "data.filters",
    "data.heldout_share",
)
# Exceptions below those: files, folders, and which part of a file was held out.
_OF_THE_MACHINE = (*(path.removesuffix(".*") for path in _PATHS), "tasks.*.examples.folds")


def base_name(name: str) -> str:
    """Return the last component of a path or URL; names of published data sets are kept whole."""
    # `tfds:/home/me/data` is a path all the same.
    is_public = name.startswith(PUBLIC) and not name.partition(":")[2].startswith(("/", ".", "~"))
    return name if is_public else name.rstrip("/").rpartition("/")[2]


def without(settings: Any, path: tuple[str, ...] = ()) -> Any:
    """Return a run's settings, or those below a path, with base names instead of paths and with default places."""
    if isinstance(settings, Mapping):
        return {key: without(entry, (*path, key)) for key, entry in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [without(entry, (*path, str(index))) for index, entry in enumerate(settings)]
    is_path = any(_matches(pattern, path) for pattern in (*_PATHS, *_PLACES))
    return (_PLACES.get(".".join(path)) or base_name(settings)) if is_path and isinstance(settings, str) else settings


def without_teachers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings as a finished student has them: without teachers, and without texts for them.

    Malformed settings are returned as they are; the code that builds a configuration raises the error.
    """
    if not isinstance(tasks := settings.get("tasks"), Mapping):
        return dict(settings)
    return {**settings, "tasks": {name: _without_teacher(task) for name, task in tasks.items()}}


def _without_teacher(task: Any) -> Any:
    objective = task.get("objective") if isinstance(task, Mapping) else None
    # A wrapper (`bertjax.objectives.wrapper`) may be a user's own, so look at its settings, not at its kind.
    if not isinstance(objective, Mapping) or "objective" not in objective:
        return task
    student = {**task, "objective": objective["objective"]}
    if isinstance(examples := task.get("examples"), Mapping):
        student["examples"] = {name: value for name, value in examples.items() if name != "unlabeled"}
    # Again, because a file that is not ours may hold a wrapper in a wrapper.
    return _without_teacher(student)


def read_from_export(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an export that are safe to build a configuration from; all others get defaults.

    Dropped settings are not even checked: a regular expression that takes hours or a bucket's URL stays plain text.

    Args:
      settings: configuration in the export's manifest.
    """
    read = _kept(without_teachers(settings), ())
    data, stored = read.get("data", {}), settings.get("data", {})
    # Other types stay as they are, and building the configuration reports them.
    if isinstance(data, Mapping) and isinstance(stored, Mapping):
        read["data"] = {**data, **_built_in_filters(stored), **_embedded(stored)}
    return read


def _kept(value: Any, path: tuple[str, ...]) -> Any:
    """Return the safe part of nested settings; values of a wrong type are kept for a later error message."""
    if isinstance(value, Mapping):
        return {key: _kept(entry, (*path, str(key))) for key, entry in value.items() if _may_hold((*path, str(key)))}
    if isinstance(value, (list, tuple)):
        return [_kept(entry, (*path, str(index))) for index, entry in enumerate(value)]
    return value


def _may_hold(path: tuple[str, ...]) -> bool:
    """Return whether a setting, or one below it, is used."""
    # Parents of a used setting are kept, because the setting is reached through them.
    leads = any(_matches(".".join(pattern.split(".")[: len(path)]), path) for pattern in _READ)
    return (leads or _is_below(_READ, path)) and not _is_below(_OF_THE_MACHINE, path)


def _is_below(patterns: Iterable[str], path: tuple[str, ...]) -> bool:
    """Return whether any pattern matches a setting or one of its parents."""
    return any(_matches(pattern, path[: pattern.count(".") + 1]) for pattern in patterns)


def _built_in_filters(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters that neither import a class nor read files; the others are dropped whole."""
    filters = data.get("filters")
    if not isinstance(filters, Mapping):
        return {}

    def is_built_in(rule: Any) -> bool:
        # A colon marks `module:Class`, whose import runs code; `against` names files.
        return not isinstance(rule, Mapping) or (":" not in str(rule.get("kind", "")) and "against" not in rule)

    return {"filters": {name: rule for name, rule in filters.items() if is_built_in(rule)}}


def _embedded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the corpora if all of them come with bertjax; otherwise a corpus that cannot be opened."""
    corpora = _corpora(data)
    are_embedded = corpora and all(isinstance(name, str) and name.startswith(EMBEDDED) for name in corpora)
    # One corpus that is not here changes the mixture, so none is opened.
    if data.get("heldout") or not are_embedded:
        return {"corpus": EMBEDDED}
    if isinstance(sources := data.get("sources"), Mapping) and sources:
        return {"sources": {name: {"corpus": corpus} for name, corpus in zip(sources, corpora, strict=True)}}
    return {"corpus": corpora[0]}


def _corpora(data: Mapping[str, Any]) -> list[Any]:
    sources = data.get("sources")
    if isinstance(sources, Mapping) and sources:
        return [source.get("corpus") if isinstance(source, Mapping) else source for source in sources.values()]
    return [data["corpus"]] if "corpus" in data else []


def _matches(pattern: str, path: tuple[str, ...]) -> bool:
    parts = pattern.split(".")
    # `zip` alone would let a pattern match a longer path.
    return len(parts) == len(path) and all(part in ("*", name) for part, name in zip(parts, path))
