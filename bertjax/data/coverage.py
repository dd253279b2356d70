"""Plan checks at the start of a run: uninformative sentence pairs, and text that no plan reads."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertjax.data.formats import TextFormat
from bertjax.data.plan import Plan
from bertjax.data.store import Split
from bertjax.runtime.errors import UserError

# Above this share of one-sentence documents, most pairs would be random or lost.
MOST_ONE_SENTENCE = 0.5
# With fewer pairs, equal labels may be chance.
FEWEST_PAIRS = 32
# Above `_SAMPLE` items, only evenly spread blocks are read, because a run must not read a whole corpus to start.
_SAMPLE, _BLOCKS = 1 << 18, 64
_COVERED_EXAMPLES = 1 << 16


def check_documents(split: Split, examples: TextFormat, task: str) -> None:
    """Raise UserError if a format compares sentences within documents, but most documents have only one."""
    documents = split.documents
    # n documents have n + 1 offsets, so each block reads one more.
    sizes = [np.diff(documents[part.start : part.stop + 1]) for part in _sample(len(documents) - 1)]
    count = sum(map(len, sizes))
    single = sum(int(np.count_nonzero(size == 1)) for size in sizes)
    if single > MOST_ONE_SENTENCE * count:
        kind = f"tasks.{task}.examples.kind={examples.kind} compares sentences of one document"
        documents = f"{single / count:.0%} of the documents of the {split.name} split have a single sentence"
        raise UserError(f"{kind}, but {documents}; {_remedy(task)}")


def check_labels(plan: Plan, examples: TextFormat, task: str) -> None:
    """Raise UserError if a plan gives all examples the same label."""
    shares_L = label_shares(plan)
    if len(plan.examples) >= FEWEST_PAIRS and shares_L.max() == 1.0:
        kind, label = f"tasks.{task}.examples.kind={examples.kind}", f"{examples.labels[0]}={shares_L.argmax()}"
        raise UserError(f"{kind} gives all {len(plan.examples):,} training examples the label {label}; {_remedy(task)}")


def unread_share(plans: Sequence[Plan]) -> float:
    """Return the fraction of text that is in no example. Of a large corpus, only the beginning is measured.

    All plans cover the same documents, but cut long sentences in different places.
    """
    examples: list[Any] = [plan.examples for plan in plans]
    if not any(plan.counts.lost_tokens for plan in plans):
        return 0.0
    if not all(hasattr(each, "segments") for each in examples):  # a third-party format
        return min(plan.counts.lost_tokens / plan.counts.split_tokens for plan in plans)
    segments = [np.asarray(each.segments(slice(_COVERED_EXAMPLES))) for each in examples]
    first = min(int(read.min()) for read in segments)
    end = max(int(read.max()) for read in segments)
    for each, read in zip(examples, segments, strict=True):
        # Segments A of the first examples cover a contiguous beginning of the text; partners come from anywhere.
        if len(each) > _COVERED_EXAMPLES:
            end = min(end, int(read[::2].max()))
    # A difference array: +1 where a segment starts and -1 where it stops. Its running sum counts the segments over each
    # token, and 0 means that no plan reads the token.
    edges = np.zeros(end - first + 1, np.int64)
    for read in segments:
        starts, stops = np.clip(read - first, 0, len(edges) - 1).T
        edges += np.bincount(starts, minlength=len(edges)) - np.bincount(stops, minlength=len(edges))
    return float(np.mean(np.cumsum(edges)[:-1] == 0))


def label_shares(plan: Plan) -> np.ndarray:
    """Return the relative frequency of label 0, 1, ...; a large plan is sampled."""
    examples: Any = plan.examples
    counts = [examples.label_counts(part) for part in _sample(len(examples))]
    # `bincount` stops at the highest label of its block, so blocks may differ in length.
    totals_L = np.sum([np.pad(count, (0, max(map(len, counts)) - len(count))) for count in counts], axis=0)
    return totals_L / totals_L.sum()


def _sample(total: int) -> Iterator[slice]:
    """Yield slices of `range(total)`: one with everything, or evenly spread blocks."""
    if total <= _SAMPLE:
        yield slice(0, total)
        return
    size = _SAMPLE // _BLOCKS
    for start in np.linspace(0, total - size, _BLOCKS).astype(int).tolist():
        yield slice(start, start + size)


def _remedy(task: str) -> str:
    mlm = f"--config.tasks.{task}.objective.kind=mlm --config.tasks.{task}.examples.kind=doc_sentences"
    return f"join the lines of a document, set data.splitter=line, or predict masked tokens only: {mlm}"
