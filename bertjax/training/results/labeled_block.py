"""What a run prints about its labeled files before the first step and writes to `labeled.json`, and suspect labels.

Suspects are found by confident learning (Northcutt et al., 2021, Confident Learning: Estimating Uncertainty in Dataset
Labels, section 3.1, arXiv 1911.00068). The probabilities must come from a model that was not trained on these labels.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled.base import SPLITS, Record
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


def suspects_of(
    probabilities_MC: np.ndarray, labels_M: np.ndarray, unknown: Collection[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples whose labels are probably wrong, and the classes that they probably have.

    The threshold of a class is the mean probability of the class over the examples with this label. An example is
    suspect if its label is not the most probable class, nor the most probable one among the classes that reach their
    thresholds (equation 1 of the paper). The order is that of the probability of its label, the lowest first.

    Args:
      probabilities_MC: class probabilities of examples that the model was not trained on.
      labels_M: labels, int.
      unknown: classes that are never suggested.

    Returns:
      (indices of the suspects, int64 [S], the most suspect first; their probable classes, int64 [S]).
    """
    probabilities_MC, count = probabilities_MC.astype(np.float64), probabilities_MC.shape[1]
    of_label_M = np.take_along_axis(probabilities_MC, labels_M[:, None], axis=1)[:, 0]
    number_C = np.bincount(labels_M, minlength=count)
    sums_C = np.bincount(labels_M, weights=of_label_M, minlength=count)
    # A class without examples has no threshold that an example could reach.
    thresholds_C = np.divide(sums_C, number_C, out=np.full(count, np.inf), where=number_C > 0)
    thresholds_C[list(unknown)] = np.inf
    is_confident_MC = probabilities_MC >= thresholds_C
    probable_M = np.where(is_confident_MC, probabilities_MC, -1.0).argmax(axis=1)
    # If the label is as probable as any class, as with equal probabilities, nothing speaks against it.
    is_improbable_M = probabilities_MC.max(axis=1) > of_label_M
    is_suspect_M = is_confident_MC.any(axis=1) & (probable_M != labels_M) & is_improbable_M
    (indices,) = np.nonzero(is_suspect_M)
    order = np.argsort(of_label_M[indices], kind="stable")
    return indices[order], probable_M[indices[order]]


def suspect_records(records: Sequence[Record], label: str) -> list[Record]:
    """Return the suspect records among predictions with probabilities, the most suspect first.

    A class that only one fold has was never seen by the model that predicts its records. Its threshold would be near 0,
    and nearly every record would reach it, so it has none.

    Args:
      records: records with `probabilities`, {class: probability}, as `predict` and evaluations return them, and with
        `fold` if several models predicted them.
      label: the field of the label.

    Returns:
      The records with `suggested`, the probable class, and `label_probability`.
    """
    if not records:
        return []
    classes = list(records[0]["probabilities"])
    probabilities_MC, labels_M = arrays_of(records, label)
    return [
        {name: value for name, value in records[index].items() if name != "probabilities"}
        | {"suggested": classes[probable], "label_probability": float(probabilities_MC[index, labels_M[index]])}
        for index, probable in zip(*suspects_of(probabilities_MC, labels_M, _unseen(records, labels_M)), strict=True)
    ]


def _unseen(records: Sequence[Record], labels_M: np.ndarray) -> list[int]:
    """Return the classes all of whose records are in one of several folds."""
    if "fold" not in records[0]:
        return []
    folds_M = np.array([record["fold"] for record in records])
    return [each for each in np.unique(labels_M).tolist() if len(np.unique(folds_M[labels_M == each])) == 1]


def arrays_of(records: Sequence[Record], label: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (class probabilities, float64 [M, C]; labels, int64 [M]) of records with `probabilities`."""
    classes = list(records[0]["probabilities"])
    number = {name: index for index, name in enumerate(classes)}
    labels_M = np.array([number[label_names.class_of(record[label])] for record in records])
    return np.array([[record["probabilities"][name] for name in classes] for record in records]), labels_M
