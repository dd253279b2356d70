"""What a run prints about its labeled files before the first step, and writes to `labeled.json`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.data.labeled.base import SPLITS
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.labeled.texts import LabeledText, conflicts_of
from bertjax.data.pipeline import Feed
from bertjax.runtime.errors import cut_text, shorten
from bertjax.training.feeds import Feeds
from bertjax.training.results import report

# A class with fewer training examples is warned of.
_FEWEST = 5
# Number of classes in a warning, and characters of an example.
_SHOWN, _TEXT_WIDTH = 12, 60


def facts_of(feeds: Feeds) -> dict[str, dict[str, Any]]:
    """Return facts about the labeled files of each task, as plain JSON; empty for a run on a corpus.

    For each task: `files` {split: file}, `heldout_share`, None if the held-out records have a file of their own,
    `classes` {class: {split: records}}, the rarest first (empty for numbers), `seq_len`, the tokens of a
    row, `lengths` {split: see `_lengths_of`}, `repeated`, the number of held-out records with texts of the training
    file, and `conflicts`, [text, labels] for each text that occurs with different labels (empty for numbers and tags).
    """
    facts = {}
    for (task, seq_len), feed in feeds.train.items():
        source = feeds.store_of(task)
        if not isinstance(source, LabeledSource):
            continue
        is_of_texts = source.has_classes and isinstance(source.format, LabeledText)
        facts[task] = {
            "files": {split: source.name_of(split) for split in SPLITS},
            "heldout_share": source.format.heldout if source.is_divided else None,
            "classes": source.counts_by_class,
            "seq_len": seq_len,
            "lengths": {"train": _lengths_of(feed), "heldout": _lengths_of(feeds.heldout[task])},
            "repeated": source.repeated(),
            "conflicts": conflicts_of([*source.train, *source.heldout], source.format) if is_of_texts else [],
        }
    return facts


def lines_of(feeds: Feeds, facts: Mapping[str, Any], destinations: Mapping[str, str]) -> list[str]:
    """Return the facts as lines of text: the split, classes, repeated texts, lengths, and formats of other libraries.

    Args:
      feeds: the data of the run.
      facts: see `facts_of`.
      destinations: {library or format: why the model cannot become one of its files; empty if it can}.
    """
    lines, config = [], feeds.config
    for task, of_task in facts.items():
        source, label = feeds.store_of(task), config.qualified(task, "")
        prefix = f"{label}: " if label else ""
        if source.is_divided:
            held, rest = (len(source.divided[split]) for split in reversed(SPLITS))
            own = source.format
            lines.append(
                f"{prefix}{own.train}: {held:,} of {held + rest:,} records are held out by class, equal texts on one "
                f"side (examples.heldout={own.heldout:g}, seed {own.limit_seed})"
            )
        lines += report.labeled_lines(source, config.tasks[task].objective, of_task["repeated"], label)
        lines += [f"warning: {prefix}{line}" for line in _class_warnings(of_task, bool(source.format.folds))]
        lines += [f"{prefix}{_length_line(split, lengths)}" for split, lengths in of_task["lengths"].items()]
        if of_task["lengths"]["train"]["notes"] and of_task["seq_len"] < config.model.max_positions:
            lines.append(f"{prefix}raise stages.0.seq_len={of_task['seq_len']} to cut fewer")
    if possible := [name for name, reason in destinations.items() if not reason]:
        lines.append(f"the model can be converted to {' and '.join(possible)}")
    return lines + [f"warning: not to {name}: {reason}" for name, reason in destinations.items() if reason]


def _class_warnings(facts: Mapping[str, Any], is_fold: bool) -> list[str]:
    """Warn of classes with too few records, and of texts with different labels.

    Args:
      facts: facts about a task.
      is_fold: whether other runs hold out the classes that this one does not.
    """
    warnings = []
    # One class, or records without class names, such as answers in a text.
    counts = facts["classes"] if len(facts["classes"]) > 1 else {}
    unseen = [repr(name) for name, of_class in counts.items() if of_class["train"] and not of_class["heldout"]]
    if unseen and not is_fold:
        warnings.append(f"no held-out record shows how well these classes are found: {shorten(unseen, _SHOWN)}")
    few = [f"{name!r} {of_class['train']}" for name, of_class in counts.items() if of_class["train"] < _FEWEST]
    if few and any(of_class["train"] for of_class in counts.values()):
        warnings.append(
            f"classes with fewer than {_FEWEST} training examples are hardly learned: {shorten(few, _SHOWN)}"
        )
    if conflicts := facts["conflicts"]:
        text, names = conflicts[0]
        warnings.append(
            f"equal texts with different labels: {len(conflicts):,}, such as {cut_text(text, _TEXT_WIDTH)!r} "
            f"({' and '.join(map(repr, names))}); correct the labels that are wrong"
        )
    return warnings


def _lengths_of(feed: Feed) -> dict[str, Any]:
    """Return the number of examples, quantiles of their tokens before cutting, and {what was cut: how many}."""
    examples = feed.plans[0].examples
    lengths = examples.lengths() if examples.whole_lengths is None else examples.whole_lengths
    median, most = np.percentile(lengths, (50, 95))
    return {
        "examples": len(lengths),
        "median": int(median),
        "p95": int(most),
        "longest": int(lengths.max()),
        "notes": dict(examples.notes),
    }


def _length_line(split: str, lengths: Mapping[str, Any]) -> str:
    notes = ", ".join(f"{count:,} of {lengths['examples']:,} {what}" for what, count in lengths["notes"].items())
    name = {"train": "training", "heldout": "held-out"}[split]
    return (
        f"{name} examples have {lengths['median']:,} tokens (median), 95% at most {lengths['p95']:,}, the longest "
        f"{lengths['longest']:,}{' before they are cut' * bool(notes)}; {notes or 'nothing cut or left out'}"
    )
