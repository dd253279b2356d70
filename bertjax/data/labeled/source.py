"""Labeled files in memory: records, examples and rows. Fine-tuning runs use this instead of a token store."""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping

import numpy as np

from bertjax.data.labeled import labels
from bertjax.data.labeled.base import SPLITS, WHERE, Classes, LabeledExamples, LabeledFormat, Record
from bertjax.data.labeled.split import divide, limited, text_key
from bertjax.data.packing import mixed
from bertjax.data.plan import Counts, Spec
from bertjax.data.random import bits
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.setting import OF_RECORDS, PLACE, marked

# Part of a plan's fingerprint: another packing algorithm gives other batches.
_PACKING_VERSION = 3
# Number of classes to print with their counts.
_CLASSES_SHOWN = 12
# Number of epochs to cache, because a batch may span two.
_EPOCHS_KEPT = 2


@dataclasses.dataclass(frozen=True)
class LabeledPlan:
    """The packed rows of one split, in memory; the counterpart of `bertjax.data.plan.Plan`.

    Row lengths are the same in every epoch. In training, groups with equal lengths swap places at random, by seed and
    epoch: seeds then differ in which examples share a row, not only in row order, and no row has to be packed again.

    Attributes:
      fingerprint: hex hash over everything that determines the rows, except for the seed.
      examples: the packed examples.
      counts: number of rows, examples and tokens.
      rows_RN: example indices per row before swapping, -1 for empty slots; int32.
      seed: the run's seed; None to keep examples in place (held-out rows).
    """

    fingerprint: str
    examples: LabeledExamples
    counts: Counts
    rows_RN: np.ndarray
    seed: int | None = None

    def rows(self, rows: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Return example indices for rows (int64 [B]) in epochs (int64 [B]), -1 for empty slots; int32 [B, N]."""
        rows_BN = self.rows_RN[rows]
        if self.seed is None:
            return rows_BN
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            rows_BN[here] = np.where(rows_BN[here] < 0, -1, self._swapped(epoch)[rows_BN[here]])
        return rows_BN

    def _swapped(self, epoch: int) -> np.ndarray:
        """Return the example that replaces each example in an epoch; int32 [M]."""
        if epoch not in self._epochs:
            size, groups = self.examples.group, np.arange(len(self._by_length))
            # Both orders sort by length, this one with random ties: a group only swaps with groups of equal length.
            order = np.lexsort((bits(self.seed, "packing", epoch, groups, 0), self._lengths))
            swapped = np.empty(len(order), np.int32)
            swapped[self._by_length] = order
            if len(self._epochs) == _EPOCHS_KEPT:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[epoch] = (swapped[:, None] * size + np.arange(size, dtype=np.int32)).ravel()
        return self._epochs[epoch]

    @functools.cached_property
    def _epochs(self) -> dict[int, np.ndarray]:
        return {}

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        """Tokens per group; int64."""
        return self.examples.lengths().reshape(-1, self.examples.group).sum(axis=1)

    @functools.cached_property
    def _by_length(self) -> np.ndarray:
        return np.argsort(self._lengths, kind="stable")


class LabeledSource:
    """One task's labeled files, read once.

    Args:
      format: the format, with file paths.
      tokenizer: the model's tokenizer.
      has_classes: whether labels are class names rather than numbers.
      classes: a trained model's class names by index; empty to take them from the training file.
    """

    def __init__(self, format: LabeledFormat, tokenizer: Tokenizer, has_classes: bool = True, classes: Classes = ()):
        self._configured, self.tokenizer, self.has_classes, self._known = format, tokenizer, has_classes, classes
        self._tokens_per_byte: dict[str, float] = {}
        self._encoded: dict[tuple, LabeledExamples] = {}

    @functools.cached_property
    def _given(self) -> LabeledFormat:
        try:
            return self._configured.located(self.has_classes)
        except UserError as error:
            raise type(error)(f"examples.train: {error}") from None

    @functools.cached_property
    def format(self) -> LabeledFormat:
        """The format, with the settings that depend on the training file filled in."""
        return self._given.resolved(self.train)

    @functools.cached_property
    def train(self) -> list[Record]:
        """Training records, followed by extra unlabeled ones."""
        return self.labeled + self._given.further_train()

    @functools.cached_property
    def labeled(self) -> list[Record]:
        """Training records of the training file."""
        return limited(self.divided["train"], self._given)

    @functools.cached_property
    def heldout(self) -> list[Record]:
        """Held-out records."""
        if self.is_divided:
            return self.divided["heldout"]
        return self._read("heldout", self._given.heldout, self.classes)

    @property
    def is_divided(self) -> bool:
        """Whether the held-out records are a share of the training file."""
        return isinstance(self._given.heldout, float)

    @functools.cached_property
    def divided(self) -> dict[str, list[Record]]:
        """Records of the training file by split; those of `heldout` only if it is divided."""
        records = self._read("train", self._given.train, self._known)
        if not self.is_divided:
            return {"train": records}
        train, heldout = divide(records, self._given, self.has_classes)
        if not heldout:
            share = f"examples.heldout={self._given.heldout} of {self._given.train}"
            raise UserError(f"{share} leaves no held-out record, as all {len(records):,} have one text; name a file")
        return {"train": train, "heldout": heldout}

    @functools.cached_property
    def _further(self) -> dict[str, list[Record]]:
        files = self._given.further_heldout
        return {name: self._read("further_heldout", path, self.classes) for name, path in files.items()}

    def _read(self, setting: str, path: str, classes: tuple[str, ...]) -> list[Record]:
        try:
            records = self._given.read(path)
        except UserError as error:
            can_share = setting == "heldout" and self._given.is_divisible and not storage.exists(path)
            share = ", or hold out a share of examples.train: examples.heldout=0.2" if can_share else ""
            raise type(error)(f"examples.{setting}: {error}{share}") from None
        return self._given.without_missing(records, path, classes) if self.has_classes else records

    def records(self, split: str) -> list[Record]:
        """Return the records for `train`, `heldout` or a name in `further_heldout`."""
        return getattr(self, split) if split in SPLITS else self._further[split]

    def repeated(self) -> int:
        """Return the number of held-out records with texts that also occur in the training file."""
        # Duplicates between the splits inflate the held-out score.
        return count_known(self.heldout, self.format, self.train, self.format)

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """Class names: the trained model's, or the training file's in `labels.ordered` order."""
        return self._known or labels.ordered(self.class_totals)

    @property
    def class_totals(self) -> Counter[str]:
        """Training records by class."""
        return self._given.class_counts(self.train)

    def name_of(self, split: str) -> str:
        """Return the file of a split; for a part of a file, with the name of the part."""
        if self.is_divided:
            return f"{self._given.train}, {'held out' if split == 'heldout' else 'training'}"
        return getattr(self._given, split)

    @property
    def counts_by_class(self) -> dict[str, dict[str, int]]:
        """{class: {split: records}}, the class with the fewest training records first; empty for numbers."""
        if not self.has_classes:
            return {}
        counts = {split: self.format.class_counts(self.records(split)) for split in SPLITS}
        rarest = sorted(self.classes, key=lambda name: (counts["train"][name], name))
        return {name: {split: counts[split][name] for split in SPLITS} for name in rarest}

    @property
    def class_lines(self) -> list[str]:
        """One line per file with class counts, rarest first, and warnings about names that look alike."""
        if not self.has_classes or len(self.classes) < 2:
            return []
        counts, lines = self.counts_by_class, []
        for split in SPLITS:
            each = shorten([f"{name} {of_class[split]:,}" for name, of_class in counts.items()], _CLASSES_SHOWN)
            lines.append(f"{self.name_of(split)}: {len(self.classes)} classes, the rarest first: {each}")
        # Not a space: class names such as "card lost" and "card stolen" share words too.
        mark = labels.mark_between(self.classes, len(self.classes), labels.MARKS.strip())
        if mark and self.format.kind == "labeled_text":
            remedy = "if so, set examples.kind=label_sets and objective.kind=multi_label"
            lines.append(f"warning: the classes look like several labels with {mark!r} between them; {remedy}")
        for group in labels.alike(self.classes):
            names = " and ".join(map(repr, group))
            what = "differ only in case, white space or forms of characters; write them in one way if they are one"
            lines.append(f"warning: the classes {names} {what}")
        return lines

    def unigram_counts(self, split: str) -> np.ndarray:
        """Return counts in a split, int64: by class index, or by token id for a format without classes."""
        if not self.has_classes:
            ids = itertools.chain.from_iterable(self.tokenizer.encode(self._texts(split)))
            return np.bincount(np.fromiter(ids, np.int64), minlength=self.tokenizer.vocab_size)
        counts = self.format.class_counts(self.records(split))
        return np.array([counts[name] for name in self.classes], np.int64)

    def tokens_per_byte(self, split: str) -> float:
        """Return the number of tokens for each byte of text in UTF-8; 0 if records have no columns of text."""
        if split not in self._tokens_per_byte:  # every evaluation asks, and the texts stay the same
            texts = self._texts(split)
            tokens = sum(map(len, self.tokenizer.encode(texts)))
            self._tokens_per_byte[split] = tokens / max(1, sum(len(text.encode()) for text in texts))
        return self._tokens_per_byte[split]

    def _texts(self, split: str) -> list[str]:
        return [text for record in self.records(split) for text in self.format.texts_of(record)]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash over tokenizer, training and held-out records: the data that a run depends on."""
        # Further held-out files are left out: scoring another file does not make another run.
        content = json.dumps([[_content(record) for record in part] for part in (self.train, self.heldout)])
        return hashlib.sha256((self.tokenizer.fingerprint + content).encode()).hexdigest()

    def examples(self, split: str, seq_len: int, classes: tuple[str, ...]) -> LabeledExamples:
        """Return a split's examples, encoded once per T."""
        key = split, seq_len, classes
        if key not in self._encoded:
            self._encoded[key] = self.format.encode(self.records(split), self.tokenizer, seq_len, classes)
        return self._encoded[key]

    def plan(self, spec: Spec, classes: tuple[str, ...]) -> LabeledPlan:
        """Pack a split's examples into rows; each group stays in one row.

        Raises:
          UserError: a group has more tokens than a row, or a label is unknown.
        """
        examples = self.examples(spec.split, spec.seq_len, classes)
        group = examples.group
        lengths = examples.lengths().reshape(-1, group).sum(axis=1)
        if lengths.max() > spec.seq_len:
            need = f"{group} texts that belong together have {lengths.max()} tokens"
            raise UserError(f"{need} and a row has {spec.seq_len}; raise stages.0.seq_len")
        # Pack groups first, then write each group as its examples, so that a group is never split between rows.
        groups_RN = mixed(lengths, spec.seq_len, max(1, spec.max_row_examples // group))
        rows_RN = np.where(groups_RN[..., None] < 0, -1, groups_RN[..., None] * group + np.arange(group))
        rows_RN = rows_RN.reshape(len(groups_RN), -1).astype(np.int32)
        if self.format.folds:  # the same number of slots in all folds, so that they share what is compiled
            unused = max(1, spec.max_row_examples // group) * group - rows_RN.shape[1]
            rows_RN = np.pad(rows_RN, ((0, 0), (0, unused)), constant_values=-1)
        tokens = int(lengths.sum())
        rows, slots = rows_RN.shape
        counts = Counts(rows, slots, len(examples), tokens, split_tokens=tokens, lost_tokens=0, repeated_tokens=0)
        of_records = marked(type(self.format), PLACE, OF_RECORDS)  # these have a fingerprint of their own
        settings = {name: v for name, v in dataclasses.asdict(self.format).items() if name not in of_records}
        identity = [self.fingerprint, settings, classes, spec.split, spec.seq_len, spec.max_row_examples]
        fingerprint = hashlib.sha256(json.dumps([*identity, _PACKING_VERSION], sort_keys=True).encode()).hexdigest()
        return LabeledPlan(fingerprint, examples, counts, rows_RN, spec.seed if spec.split == "train" else None)


class LabeledSources:
    """Labeled files for a run with several tasks.

    Args:
      sources: {task: its files}.
      tokenizer: the model's tokenizer.
    """

    def __init__(self, sources: Mapping[str, LabeledSource], tokenizer: Tokenizer):
        self.of, self.tokenizer = dict(sources), tokenizer

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash over all tasks' fingerprints."""
        content = json.dumps({task: source.fingerprint for task, source in self.of.items()})
        return hashlib.sha256(content.encode()).hexdigest()


def count_known(records: list[Record], format: LabeledFormat, train: list[Record], train_format: LabeledFormat) -> int:
    """Return how many records have a text that also occurs in the training records, in any case and white space.

    Args:
      records: records to count.
      format: the format that read them.
      train: training records.
      train_format: the format that read these; its columns may have other names.
    """
    known = {_key_of(record, train_format) for record in train}
    return sum(_key_of(record, format) in known for record in records)


def _key_of(record: Record, format: LabeledFormat) -> str:
    return text_key(format.texts_of(record)) or json.dumps(_content(record))


def _content(record: Record) -> list:
    """Return a record's fields without its location, so that moving a file does not change the fingerprint."""
    return sorted((key, value) for key, value in record.items() if key != WHERE)
