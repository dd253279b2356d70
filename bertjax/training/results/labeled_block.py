"""What a run prints about its labeled files before the first step, and writes to `labeled.json`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.data.labeled.base import SPLITS
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.pipeline import Feed
from bertjax.training.feeds import Feeds
from bertjax.training.results import report


def facts_of(feeds: Feeds) -> dict[str, dict[str, Any]]:
    """Return facts about the labeled files of each task, as plain JSON; empty for a run on a corpus.

    For each task: `files` {split: file}, `heldout_share`, None if the held-out records have a file of their own,
    `classes` {class: {split: records}}, the rarest first (empty for numbers), `seq_len`, the tokens of a row, `lengths`
    {split: see `_lengths_of`}, and `repeated`, the number of held-out records with texts of the training file.
    """
    facts = {}
    for (task, seq_len), feed in feeds.train.items():
        source = feeds.store_of(task)
        if not isinstance(source, LabeledSource):
            continue
        facts[task] = {
            "files": {split: source.name_of(split) for split in SPLITS},
            "heldout_share": source.format.heldout if source.is_divided else None,
            "classes": source.counts_by_class,
            "seq_len": seq_len,
            "lengths": {"train": _lengths_of(feed), "heldout": _lengths_of(feeds.heldout[task])},
            "repeated": source.repeated(),
        }
    return facts


def lines_of(feeds: Feeds, facts: Mapping[str, Any], destinations: Mapping[str, str]) -> list[str]:
    """Return the facts as lines of text: the split, classes, lengths, repeated texts, and formats of other libraries.

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
            lines.append(
                f"{prefix}{source.format.train}: {held:,} of {held + rest:,} records are held out by class, equal "
                f"texts on one side (examples.heldout={source.format.heldout:g}, seed {source.format.limit_seed})"
            )
        lines += report.labeled_lines(source, config.tasks[task].objective, label)
        lines += [f"{prefix}{_length_line(split, lengths)}" for split, lengths in of_task["lengths"].items()]
        if of_task["lengths"]["train"]["notes"] and of_task["seq_len"] < config.model.max_positions:
            lines.append(f"{prefix}raise stages.0.seq_len={of_task['seq_len']} to cut fewer")
    return [*lines, *_destination_lines(destinations)]


def _lengths_of(feed: Feed) -> dict[str, Any]:
    """Return the number of examples, quantiles of their tokens after cutting, and {what was cut: how many}."""
    examples = feed.plans[0].examples
    lengths = examples.lengths()
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
        f"{lengths['longest']:,}; {notes or 'nothing cut or left out'}"
    )


def _destination_lines(destinations: Mapping[str, str]) -> list[str]:
    if not destinations:
        return []
    possible = [name for name, reason in destinations.items() if not reason]
    lines = [f"the model can be converted to {' and '.join(possible)}"] if possible else []
    return lines + [f"warning: not to {name}: {reason}" for name, reason in destinations.items() if reason]
