"""For the page of a run: its first training rows, token by token, and its settings that differ from the defaults."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.analysis.page import Section, Token, TokenRow
from bertjax.config.config import Config, plain
from bertjax.data import tokenizer
from bertjax.data.inspect.show import originals_of
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.pipeline import Feed
from bertjax.data.preparation.spec import corpora, find
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import labeled_files
from bertjax.training.results.report import plan_line
from bertjax.training.run.record import RunRecord, with_split
from bertjax.training.run.workdir import Workdir

_NAME, _TITLE = "rows", "What a row of data looks like"
_MOST_TASKS = 4


def section_of(workdir: Workdir, record: RunRecord) -> Section:
    """Return the first training rows of a run, or the reason why they cannot be shown. Nothing is prepared."""
    try:
        feeds = _feeds(workdir, record)
        shown = list(feeds.train.items())[:_MOST_TASKS]
        label = record.config.qualified
        lines = [f"{plan_line(feed, task, label(task, '').rstrip('/'))}." for (task, _), feed in shown]
        # One task gets two rows, a mixture one row per task.
        count = 2 if len(shown) == 1 else 1
        rows = [row for (task, _), feed in shown for row in rows_of(feed, feeds.store_of(task).tokenizer, count, task)]
    except (UserError, OSError) as error:
        return Section(_NAME, _TITLE, skipped=" ".join(str(error).splitlines()))
    legend = (
        "Blue is segment A, yellow segment B. A framed token is predicted: above is what the model reads, below what "
        "was there before masking. Padding is left out."
    )
    return Section(_NAME, _TITLE, (*lines, legend), tuple(rows))


def _feeds(workdir: Workdir, record: RunRecord) -> Feeds:
    """Return the data feeds of a run.

    Raises:
      UserError: its token store is not on this machine, or its labeled files cannot be read.
    """
    config = record.config
    if isinstance(config.task.examples, LabeledFormat):
        config = with_split(workdir, config)
        return Feeds(config, labeled_files(config, tokenizer.load(Path(workdir.tokenizer))))
    # Found by fingerprint: the store must be the one that the run has read, not a newer one.
    path = find(config.data, record.identity["data"]["store_fingerprint"])
    if path is None:
        raise UserError(
            f"data.store={config.data.store} does not hold the token store of the run ({corpora(config.data)}); run "
            "the command where the run was trained"
        )
    return Feeds(config, TokenStore.open(path, cache_dir=config.data.cache_dir))


def rows_of(feed: Feed, tokenizer: Tokenizer, count: int, task: str) -> list[TokenRow]:
    """Return the first training rows of a feed, token by token, without padding."""
    batch = feed.batch(np.arange(count))
    originals_BT, predicted_BT = originals_of(batch)
    rows = []
    for row in range(count):
        real = np.flatnonzero(batch["examples_BT"][row])
        tokens = tuple(
            Token(
                text=tokenizer.piece(int(batch["tokens_BT"][row, at])),
                segment=int(batch["segments_BT"][row, at]),
                original=tokenizer.piece(int(originals_BT[row, at])) if predicted_BT[row, at] else "",
            )
            for at in real
        )
        examples = np.flatnonzero(batch["example_ids_BN"][row] >= 0)
        labels = [
            f"{name.removesuffix('_labels_BN')}={', '.join(str(batch[name][row, slot]) for slot in examples)}"
            for name in sorted(batch)
            if name.endswith("_labels_BN")
        ]
        caption = (
            f"Row {row} of {task}: {len(real)} of {feed.seq_len} positions hold tokens; examples: {len(examples)}; "
            f"tokens to predict: {np.count_nonzero(predicted_BT[row])}"
            + "".join(f"; {label}" for label in labels)
            + "."
        )
        rows.append(TokenRow(caption, tokens))
    return rows


_UNSET = object()
# Derived from `runtime`, so not a setting on its own.
_DERIVED = "execution"


def changes_of(config: Config) -> dict[str, tuple[Any, Any]]:
    """Return {dotted setting name: (value, default)} for settings that differ; a missing default is None.

    Every stage is compared with the default stage, and settings under a `kind` with the defaults of its own class.
    """
    return {name: (plain(value), plain(default)) for name, value, default in _changes(config, Config(), "")}


def _changes(value: Any, default: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if dataclasses.is_dataclass(value):
        if type(value) is not type(default):
            # Another class than the default one: its fields are compared with its own defaults.
            if (kind := _kind_of(value)) is not None:
                yield f"{path}.kind", kind, _kind_of(default)
            default = None
        for field in dataclasses.fields(value):
            if field.name not in ("kind", _DERIVED):
                standard = _default_of(field) if default is None else getattr(default, field.name)
                yield from _changes(getattr(value, field.name), standard, f"{path}.{field.name}".lstrip("."))
    elif isinstance(value, dict) and value:
        known = default if isinstance(default, dict) else {}
        for key, entry in value.items():
            yield from _changes(entry, known.get(key, _UNSET), f"{path}.{key}")
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for index, entry in enumerate(value):
            # The default has one entry (one stage): each entry is compared with it.
            standard = default[0] if isinstance(default, tuple) and default else None
            yield from _changes(entry, standard, f"{path}.{index}")
    elif value != default:
        yield path, value, None if default is _UNSET else default


def _kind_of(value: Any) -> str | None:
    return plain(value).get("kind") if dataclasses.is_dataclass(value) else None


def _default_of(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _UNSET if field.default is dataclasses.MISSING else field.default
