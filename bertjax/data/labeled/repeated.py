"""Texts that are their own pair, for sentence embeddings without labels (Gao et al., 2021, arXiv 2104.08821)."""

import dataclasses
from collections import Counter

from etils import epath

from bertjax.data.labeled.base import WHERE, LabeledExamples, Record
from bertjax.data.labeled.siamese import SiamesePairs
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.sources.base import OnBad, decoded
from bertjax.data.sources.lines import COMPRESSIONS, numbered_lines
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class RepeatedText(SiamesePairs):
    """Each text of the training file is two equal examples; the held-out file has pairs of texts with scores.

    The training file is a .txt with a text on each line, or a table whose column `text` is read. With an empty `label`,
    the held-out file is of the same form. Labels are those of `siamese_pairs`; training examples have the number 0.

    Attributes:
      text: the column of the texts, and of the first texts of the pairs.
      pair: the column of the second texts of the held-out pairs.
      label: the column of the scores of the held-out pairs; empty if there are none.
    """

    kind: str = dataclasses.field(init=False, default="repeated_text")
    label: str = "score"

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
        if path.removesuffix(next(filter(path.endswith, COMPRESSIONS), "")).endswith(".txt"):
            return _lines(path, self.text, on_bad)
        return LabeledText(text=self.text, label="", quoted=self.quoted).parse(path, on_bad)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter()

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        pairs = [{self.pair: record[self.text]} | record for record in records]
        return dataclasses.replace(super().encode(pairs, tokenizer, seq_len, classes), records=records)


def _lines(path: str, field: str, on_bad: OnBad) -> list[Record]:
    """Return a record of each line that is not blank."""
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
