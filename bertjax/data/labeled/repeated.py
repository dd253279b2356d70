"""Texts paired with themselves, for unsupervised sentence embeddings (SimCSE, Gao et al., 2021, arXiv 2104.08821)."""

import dataclasses
from collections import Counter
from typing import ClassVar

from etils import epath

from bertjax.data.labeled import json_objects
from bertjax.data.labeled.base import WHERE, LabeledExamples, Record
from bertjax.data.labeled.siamese import SiamesePairs
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.sources.base import OnBad, decoded
from bertjax.data.sources.lines import numbered_lines
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class RepeatedText(SiamesePairs):
    """Duplicates each training text into two equal examples; the held-out file has scored pairs.

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
            raise UserError(
                f"examples.train and examples.heldout are both {self.train}, and the held-out file has pairs with "
                "scores; name another file, or set examples.label='' to evaluate the loss on texts"
            )

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        if self.label and path != self.train:
            return super().parse(path, on_bad)
        if json_objects.kind_of(path) == ".txt":
            return _lines(path, self.text, on_bad)
        return LabeledText(text=self.text, label="", quoted=self.quoted).parse(path, on_bad)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter()

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        # A training record has no second text, so it becomes its own pair. Held-out pairs keep theirs.
        pairs = [{self.pair: record[self.text]} | record for record in records]
        return dataclasses.replace(super().encode(pairs, tokenizer, seq_len, classes), records=records)


def _lines(path: str, field: str, on_bad: OnBad) -> list[Record]:
    """Return one record per non-blank line."""
    records = []
    for number, line in numbered_lines(epath.Path(path)):
        try:
            text = decoded(line, f"{path}:{number}").strip()
        except UserError as error:
            on_bad(error)
            continue
        if text:
            records.append({field: text, WHERE: f"{path}:{number}"})
    if not records:
        raise UserError(f"{path} has no lines of text; give a file with at least one")
    return records
