"""The pseudo-log-likelihood of a sentence under a masked language model.

Salazar et al. (2020), Masked Language Model Scoring, section 2 (arXiv 1910.14659): the sum, over the tokens of a
sentence, of the log probability of the token if only that token is masked. [CLS] and [SEP] are never masked.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from bertjax.data.labeled.base import Record
from bertjax.inference.masked import MaskedPipeline
from bertjax.inference.views import MaskedViews
from bertjax.objectives.outputs import Output


@dataclasses.dataclass(frozen=True, eq=False)
class PseudoLogLikelihood(MaskedPipeline):
    """Scores sentences; a sentence of n tokens is computed n times."""

    def encode(self, records: list[Record]) -> MaskedViews:
        encoded = self.model.tokenizer.encode([record["text"] for record in records])
        texts = self.add_special_tokens(records, encoded)
        positions = [np.arange(1, length - 1) for length in texts.lengths()]
        return MaskedViews.of(texts, positions, self.vocabulary.mask_id, capacity=1)

    def outputs(self, params, batch):
        """`log_probability` of the masked token, in nats."""
        log_probabilities_BV = self.log_probabilities(params, batch)[:, 0]
        labels_B1 = batch[f"{self.objective.term}_labels_BK"]
        return {"log_probability": Output(jnp.take_along_axis(log_probabilities_BV, labels_B1, axis=1), per="example")}

    def predictions(self, outputs, examples: MaskedViews) -> list[dict[str, Any]]:
        """{`pseudo_log_likelihood`: in nats, `tokens`: the number of tokens that it is the sum over}."""
        count = len(examples.texts)
        sums = np.bincount(examples.text_of, outputs["log_probability"].astype(np.float64), minlength=count)
        tokens = np.bincount(examples.text_of, minlength=count)
        return [
            {"pseudo_log_likelihood": float(total), "tokens": int(number)}
            for total, number in zip(sums, tokens, strict=True)
        ]
