"""Text pairs that are encoded separately, for sentence embeddings (Reimers & Gurevych, 2019, section 3)."""

import dataclasses

import numpy as np

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import truncate, whole_lengths
from bertjax.data.labeled.base import LabeledExamples, Record
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class SiamesePairs(LabeledText):
    """A table with one pair per row: two examples, `[CLS] text [SEP]` and `[CLS] pair [SEP]`, in one batch row.

    Labels: `side`, 0 for the first text and 1 for the second; `pair_label`, the pair's label on both examples, if there
    is a label column. An example takes at most half a row.

    Attributes:
      text, pair: columns with the two texts.
    """

    kind: str = dataclasses.field(init=False, default="siamese_pairs")
    text: str = "sentence1"
    pair: str = "sentence2"

    def __post_init__(self):
        super().__post_init__()
        if not self.pair:
            raise UserError("examples.pair is empty; name the column of the second text")

    @property
    def labels(self) -> tuple[str, ...]:
        return ("side", "pair_label") if self.label else ("side",)

    def longest(self, seq_len: int) -> int:
        return min(self.max_tokens or seq_len, seq_len // 2)

    def group_of(self, records: list[Record], classes: tuple[str, ...]) -> int:
        return 2

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
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
