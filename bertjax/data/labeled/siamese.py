"""Text pairs that are encoded separately, for sentence embeddings: two texts, or one text twice."""

import dataclasses
from collections import Counter
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import truncate, whole_lengths
from bertjax.data.labeled import json_objects, tables
from bertjax.data.labeled.base import Classes, LabeledExamples, Record
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.sources.base import OnBad
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import OF_INPUT, setting


@dataclasses.dataclass(frozen=True)
class SiamesePairs(LabeledText):
    """A table with one pair per row: two examples, `[CLS] text [SEP]` and `[CLS] pair [SEP]`, in one batch row.

    (Reimers & Gurevych, 2019, section 3.)

    Labels: `side`, 0 for the first text and 1 for the second; `pair_label`, the pair's label on both examples, if there
    is a label column. An example takes at most half a row.

    Attributes:
      text, pair: columns with the two texts.
    """

    kind: str = dataclasses.field(init=False, default="siamese_pairs")
    text: str = setting("sentence1", filled="name the column of the text", metadata=OF_INPUT)
    pair: str = setting("sentence2", filled="name the column of the second text", metadata=OF_INPUT)

    @property
    def labels(self) -> tuple[str, ...]:
        return ("side", "pair_label") if self.label else ("side",)

    def longest(self, seq_len: int) -> int:
        return min(self.max_tokens or seq_len, seq_len // 2)

    def group_of(self, records: list[Record], classes: tuple[str, ...]) -> int:
        return 2

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        # Examples alternate: the text and the pair of each record.
        texts = [record[column] for record in records for column in self.inputs]
        encoded = tokenizer.encode(texts)
        segments, _, notes = truncate(encoded, None, self.longest(seq_len))
        labels = {"side": np.tile(np.arange(2, dtype=np.int32), len(records))}
        if self.label:
            labels["pair_label"] = np.repeat(self.label_numbers(records, classes), 2)
        return LabeledExamples(
            ragged=add_special_tokens(segments, None, Vocabulary.of(tokenizer), labels),
            records=records,
            record_of=np.repeat(np.arange(len(records)), 2),
            group=2,
            notes=notes,
            whole_lengths=whole_lengths(encoded, None),
        )


@dataclasses.dataclass(frozen=True)
class RepeatedText(SiamesePairs):
    """Duplicates each training text into two equal examples; the held-out file has scored pairs.

    This is unsupervised SimCSE (Gao et al., 2021, arXiv 2104.08821).

    The training file is a .txt with one text per line, or a table with the column `text`. If `label` is empty, the
    held-out file has the same form. Labels are as in `siamese_pairs`; training examples get 0.

    Attributes:
      text: column with the texts, and with the first text of held-out pairs.
      pair: column with the second text of held-out pairs.
      label: column with the scores of held-out pairs; empty if there are none.
    """

    kind: str = dataclasses.field(init=False, default="repeated_text")
    label: str = "score"
    is_divisible: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.label and self.train and self.train == self.heldout:
            remedy = "name a file of pairs with scores, or set examples.label='' to evaluate the loss on texts"
            raise UserError(f"examples.train and examples.heldout are both {self.train}; {remedy}")

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        if self.label and path != self.train:
            return super().parse(path, on_bad)
        if json_objects.kind_of(path) == ".txt":
            return tables.read_lines(path, self.text, on_bad)
        return LabeledText(text=self.text, label="", quoted=self.quoted).parse(path, on_bad)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter()

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        # A training record has no second text, so it becomes its own pair. Held-out pairs keep theirs.
        pairs = [{self.pair: record[self.text]} | record for record in records]
        return dataclasses.replace(super().encode(pairs, tokenizer, seq_len, classes), records=records)
