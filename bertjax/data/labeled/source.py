"""The records, examples and rows of labeled files, in memory: what a fine-tuning run has in place of a token store."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import numpy as np

from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record
from bertjax.data.packing import assign, pack
from bertjax.data.plan import Counts, Spec
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# The fingerprint of a plan has the first name of a kind and no later settings, so that runs made before still resume.
# What such a setting changes is in the records, which have a fingerprint of their own.
_HASHED_KINDS = {"labeled_text": "labelled_text"}
_NOT_HASHED = ("on_bad_record", "conllu")
_HASHED_ALWAYS = {"questions": {"on_bad_answer": "stop"}}


@dataclasses.dataclass(frozen=True)
class LabeledPlan:
    """The rows of one split, as `bertjax.data.plan.Plan` has them, in memory.

    Attributes:
      fingerprint: hex, a hash of everything that determines the rows.
      examples: the examples of the rows.
      counts: the numbers of rows, examples and tokens.
      rows_RN: the examples of each row, -1 for empty slots; int32.
    """

    fingerprint: str
    examples: LabeledExamples
    counts: Counts
    rows_RN: np.ndarray


class LabeledSource:
    """The files of a labeled format, read once.

    Args:
      format: the format, with the paths of its files.
      tokenizer: the tokenizer of the model.
    """

    def __init__(self, format: LabeledFormat, tokenizer: Tokenizer):
        self.format, self.tokenizer = format, tokenizer

    @functools.cached_property
    def train(self) -> list[Record]:
        """The records of the training file."""
        records = self.format.read(self.format.train)
        return records[: self.format.limit or len(records)]

    @functools.cached_property
    def heldout(self) -> list[Record]:
        """The records of the held-out file."""
        return self.format.read(self.format.heldout)

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels of the training file, sorted."""
        return tuple(sorted(self.format.class_counts(self.train)))

    def unigram_counts(self, split: str) -> np.ndarray:
        """Return the number of times a split has each class, in the order of the classes; int64."""
        records = self.train if split == "train" else self.heldout
        counts = self.format.class_counts(records)
        return np.array([counts[name] for name in self.classes], np.int64)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the records and the tokenizer."""
        content = json.dumps([[_content(record) for record in part] for part in (self.train, self.heldout)])
        return hashlib.sha256((self.tokenizer.fingerprint + content).encode()).hexdigest()

    def examples(self, split: str, seq_len: int, classes: tuple[str, ...]) -> LabeledExamples:
        """Return the examples of `train` or `heldout`, encoded once for each T."""
        key = split, seq_len, classes
        if key not in self._encoded:
            records = self.train if split == "train" else self.heldout
            self._encoded[key] = self.format.encode(records, self.tokenizer, seq_len, classes)
        return self._encoded[key]

    @functools.cached_property
    def _encoded(self) -> dict[tuple, LabeledExamples]:
        return {}

    @property
    def _hashed_settings(self) -> dict[str, Any]:
        settings = dataclasses.asdict(dataclasses.replace(self.format, train="", heldout=""))
        settings = {name: value for name, value in settings.items() if name not in _NOT_HASHED}
        kind = settings["kind"]
        return settings | {"kind": _HASHED_KINDS.get(kind, kind)} | _HASHED_ALWAYS.get(kind, {})

    def plan(self, spec: Spec, classes: tuple[str, ...]) -> LabeledPlan:
        """Pack the examples of a split into rows; the examples of a group share a row."""
        examples = self.examples(spec.split, spec.seq_len, classes)
        group = examples.group
        lengths = examples.lengths().reshape(-1, group).sum(axis=1)
        if lengths.max() > spec.seq_len:
            raise UserError(
                f"{group} texts that belong together have {lengths.max()} tokens and a row has {spec.seq_len}; "
                "raise stages.0.seq_len"
            )
        patterns = pack(np.bincount(lengths, minlength=spec.seq_len + 1), max(1, spec.max_row_examples // group))
        groups_RN = assign(lengths, patterns, max(pattern.examples for pattern in patterns))
        rows_RN = np.where(groups_RN[..., None] < 0, -1, groups_RN[..., None] * group + np.arange(group))
        rows_RN = rows_RN.reshape(len(groups_RN), -1).astype(np.int32)
        tokens = int(lengths.sum())
        counts = Counts(*rows_RN.shape, len(examples), tokens, split_tokens=tokens, lost_tokens=0, repeated_tokens=0)
        identity = [self.fingerprint, self._hashed_settings, classes, spec.split, spec.seq_len, spec.max_row_examples]
        fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return LabeledPlan(fingerprint, examples, counts, rows_RN)


def _content(record: Record) -> list:
    """Return the fields of a record without its place, so that moving a file changes no fingerprint."""
    return sorted((key, value) for key, value in record.items() if key != WHERE)
