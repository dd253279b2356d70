"""Texts as vectors: the mean of a text's last hidden states, its [CLS] and [SEP] included.

That is Sentence-BERT's MEAN strategy (Reimers & Gurevych, 2019, section 3, arXiv 1908.10084).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from bertjax.data.labelled.base import Record
from bertjax.inference.base import Use
from bertjax.inference.texts import TextExamples, framed
from bertjax.models.encoder import Encoder


@dataclasses.dataclass(frozen=True, eq=False)
class Embed(Use):
    """One vector for each text.

    Attributes:
      normalize: whether vectors have the length 1, so that their products are cosines.
    """

    normalize: bool = False

    def encode(self, records: list[Record]) -> TextExamples:
        encoded = self.model.tokenizer.encode([record["text"] for record in records])
        return framed(encoded, self.vocabulary, self.seq_len)

    def outputs(self, params, batch):
        """`embedding_BND`, float32."""
        names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT")
        encoder = Encoder(self.model.encoder)
        hidden_BTD = encoder.apply({"params": params["encoder"]}, *(batch[name] for name in names)).hidden
        is_token_BT = (batch["examples_BT"] > 0).astype(jnp.float32)
        sums_BD = jnp.einsum("btd,bt->bd", hidden_BTD, is_token_BT, preferred_element_type=jnp.float32)
        means_BD = sums_BD / jnp.maximum(is_token_BT.sum(axis=1, keepdims=True), 1.0)  # an empty row has no token
        if self.normalize:
            means_BD /= jnp.maximum(jnp.linalg.norm(means_BD, axis=1, keepdims=True), jnp.finfo(jnp.float32).tiny)
        return {"embedding_BND": means_BD[:, None]}

    def predictions(self, outputs, examples, records) -> list[dict[str, Any]]:
        """{`embedding`: D numbers, the shortest decimals that are the same in float32}."""
        return [{"embedding": [float(str(number)) for number in row]} for row in outputs["embedding_BND"]]
