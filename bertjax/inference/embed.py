"""Texts as vectors: the mean of a text's last hidden states, [CLS] and [SEP] included.

This is the MEAN strategy of Sentence-BERT (Reimers & Gurevych, 2019, section 3, arXiv 1908.10084).
"""

import dataclasses
from typing import Any

from bertjax.data.labeled.base import LabeledExamples, Record
from bertjax.inference.base import Pipeline
from bertjax.models.encoder import Encoder
from bertjax.models.pooling import l2_normalize, mean_of_examples
from bertjax.objectives.outputs import Output


@dataclasses.dataclass(frozen=True, eq=False)
class Embed(Pipeline):
    """One vector per text.

    Attributes:
      normalize: whether vectors have length 1, so that their dot products are cosines.
    """

    normalize: bool = False

    def encode(self, records: list[Record]) -> LabeledExamples:
        encoded = self.model.tokenizer.encode([record["text"] for record in records])
        return self.add_special_tokens(records, encoded)

    def outputs(self, params, batch):
        """`embedding`, float32 [B, 1, D]."""
        names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT")
        encoder = Encoder(self.model.encoder)
        hidden_BTD = encoder.apply({"params": params["encoder"]}, *(batch[name] for name in names)).hidden
        embedding_BND = mean_of_examples(hidden_BTD, batch["examples_BT"], slots=1)
        return {"embedding": Output(l2_normalize(embedding_BND) if self.normalize else embedding_BND, per="example")}

    def predictions(self, outputs, examples) -> list[dict[str, Any]]:
        """{`embedding`: D numbers, each the shortest decimal with the same float32 value}."""
        return [{"embedding": [float(str(number)) for number in row]} for row in outputs["embedding"]]
