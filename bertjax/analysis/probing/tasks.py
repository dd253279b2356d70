"""Probing tasks: labels of words or texts from a labeled file, and trees from CoNLL-U."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.analysis.probing.structural_probe import Sentence, tree_distances
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.labeled import labels, tables, tagged_files
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError

# Tag of punctuation in Universal Dependencies.
PUNCTUATION = "PUNCT"
# State of a word or text: its first token, or the mean over its tokens.
POOLINGS = FIRST, MEAN = "first", "mean"
# Held-out share of the records when --heldout names no file.
_HELDOUT = 1 / 3


class Units(NamedTuple):
    """Words or texts whose states a probe reads.

    Attributes:
      ragged: their examples.
      unit_of: int64 [n], the unit of each token, -1 for none: a word's first piece, or all tokens of a text.
      labels: int32 [units], their classes.
      types: the words; empty for texts, which do not repeat.
    """

    ragged: Ragged
    unit_of: np.ndarray
    labels: np.ndarray
    types: list[str]


@dataclasses.dataclass(frozen=True, eq=False)
class LabeledTask:
    """A labeled file to probe.

    Attributes:
      name: name on the page.
      format: its format.
      classes: the labels, by class number.
      train: training records for the probes, in random order.
      heldout: records that score the probes; records with labels unseen in training are left out.
      has_trees: whether records are CoNLL-U sentences with `heads` and `upos`.
      pooling: one of `POOLINGS`; if empty, `first` for words and `mean` for texts.
      without_trees: why a CoNLL-U file has no trees; otherwise empty.
    """

    name: str
    format: LabeledFormat
    classes: tuple[str, ...]
    train: list[Record]
    heldout: list[Record]
    has_trees: bool = False
    without_trees: str = ""
    pooling: str = ""

    @property
    def reads_cls(self) -> bool:
        """Whether a text is represented by its [CLS]."""
        return self.pooling == FIRST and not isinstance(self.format, Tagged)


def labeled_task(
    name: str, format: LabeledFormat, examples: int, seed: int, heldout: str = "", pooling: str = ""
) -> LabeledTask:
    """Read a task.

    Args:
      name: its name.
      format: its format, with the file as `heldout`.
      examples: maximum records per file, drawn at random; 0 for all.
      seed: seed for this draw and the order of training records.
      heldout: second file, which scores the probes; if empty, a third of the first file does.
      pooling: see `LabeledTask`.

    Raises:
      UserError: a file cannot be read, or has fewer than two classes.
    """

    files = [format.read(path) for path in (format.heldout, heldout) if path]
    without_trees, has_trees = "", all(map(is_conllu, filter(None, (format.heldout, heldout))))
    if has_trees:
        try:
            files = [_with_heads(records, path) for records, path in zip(files, (format.heldout, heldout))]
        # A damaged tree costs the structural probe only; tags can still be probed.
        except UserError as error:
            without_trees, has_trees = str(error), False
    train, *others = (_drawn(records, examples, seed) for records in files)
    count = round(_HELDOUT * len(train))
    scored, train = (others[0], train) if others else (train[:count], train[count:])
    classes = labels.ordered(format.class_counts(train))
    if len(classes) < 2:
        raise UserError(f"{format.heldout} has {len(classes)} classes to probe; give a file with two or more")
    known = [record for record in scored if set(format.class_counts([record])) <= set(classes)]
    if not known:
        raise UserError(f"{heldout or format.heldout} has no record to score probes on; give a longer file")
    return LabeledTask(name, format, classes, train, known, has_trees, without_trees, pooling)


def units_of(task: LabeledTask, records: list[Record], tokenizer: Tokenizer, longest: int) -> Units:
    """Return the words of tagged records, or the texts of others.

    Args:
      task: the task.
      records: its `train` or `heldout`.
      tokenizer: the model's tokenizer.
      longest: maximum tokens per example; longer sentences are split into windows, longer texts are cut.
    """
    examples = task.format.encode(records, tokenizer, longest, task.classes)
    ragged = examples.ragged
    if isinstance(task.format, Tagged):
        is_unit = ragged.token_labels["word"] >= 0
        unit_of = np.where(is_unit, np.cumsum(is_unit) - 1, -1)
        if task.pooling == MEAN:
            unit_of = _with_continuations(unit_of, ragged, Vocabulary.of(tokenizer))
        types = list(itertools.chain.from_iterable(record["words"] for record in records))
        return Units(ragged, unit_of, ragged.token_labels["tag"][is_unit], types)
    unit_of = ragged.token_examples
    if task.reads_cls:
        unit_of = np.where(ragged.token_index == ragged.cls_index[unit_of], unit_of, -1)
    return Units(ragged, unit_of, ragged.labels["label"].astype(np.int32), [])


def _with_continuations(unit_of: np.ndarray, ragged: Ragged, vocabulary: Vocabulary) -> np.ndarray:
    """Extend each word's unit to all its pieces."""
    continues = vocabulary.continues_word[ragged.tokens] & ~ragged.special & (unit_of < 0)
    # Running maximum over the indices of tokens that start something: each piece finds the token that it continues.
    first = np.maximum.accumulate(np.where(continues, 0, np.arange(len(unit_of))))
    return np.where(continues, unit_of[first], unit_of)


def sentences_of(records: Sequence[Record]) -> list[Sentence]:
    """Return trees whose words are the units of `units_of`."""
    lengths = [len(record["words"]) for record in records]
    starts = np.cumsum([0, *lengths[:-1]])
    return [
        Sentence(int(start), tree_distances(record["heads"]), np.array(record["upos"]) != PUNCTUATION)
        for start, record in zip(starts, records, strict=True)
    ]


def is_conllu(path: str) -> bool:
    """Return whether a file is CoNLL-U, judged by name."""
    return tables.kind_of(path) == tagged_files.CONLLU


def _with_heads(records: list[Record], path: str) -> list[Record]:
    """Add the trees of their file to CoNLL-U sentences."""
    trees = tagged_files.read_conllu(path, _tree)
    return [record | tree for record, tree in zip(records, trees, strict=True)]


def _tree(words: list[dict[str, Any]], where: str) -> Record:
    """Return {`heads`, `upos`}. A head is a word number, counted from 1, or 0 for the only root.

    Raises:
      UserError: the heads do not form a tree.
    """
    heads = [int(values["head"]) if values["head"].isdecimal() else -1 for values in words]
    if not _is_tree(heads):
        raise UserError(f"{where} starts a sentence whose heads are no tree with one root; correct the column head")
    return {"heads": heads, "upos": [values["upos"] for values in words]}


def _is_tree(heads: list[int]) -> bool:
    """Return whether every word reaches the only root."""
    if heads.count(0) != 1 or not all(0 <= head <= len(heads) for head in heads):
        return False
    # Walk down from the root, level by level; words in a cycle are never reached.
    reached = {0}
    while below := {word for word, head in enumerate(heads, 1) if head in reached} - reached:
        reached |= below
    return len(reached) == len(heads) + 1


def _drawn(records: list[Record], examples: int, seed: int) -> list[Record]:
    """Return at most `examples` records in random order; all if it is 0."""
    order = np.random.default_rng(seed).permutation(len(records))
    return [records[index] for index in order[: examples or None]]
