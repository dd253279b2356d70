"""How likely a sentence is to a model that guesses masked tokens: its pseudo-log-likelihood.

Salazar et al. (2020), Masked Language Model Scoring, section 2 (arXiv 1910.14659): the sum, over the tokens of a
sentence, of the log probability of the token where it alone is masked. [CLS] and [SEP] are never masked.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from bertjax.data.labeled.base import Record
from bertjax.inference.masked import MaskedUse
from bertjax.inference.texts import Readings, framed, readings


@dataclasses.dataclass(frozen=True, eq=False)
class PseudoLogLikelihood(MaskedUse):
    """Scores sentences; one of n tokens is read n times."""

    def encode(self, records: list[Record]) -> Readings:
        encoded = self.model.tokenizer.encode([record["text"] for record in records])
        texts = framed(records, encoded, self.vocabulary, self.seq_len)
        return readings(
            texts, [np.arange(1, length - 1) for length in texts.lengths()], self.vocabulary.mask_id, capacity=1
        )

    def outputs(self, params, batch):
        """`log_probability_BN`: of the token that was masked, in nats."""
        log_probabilities_BV = self.log_probabilities(params, batch)[:, 0]
        labels_B1 = batch[f"{self.token_term}_labels_BK"]
        return {"log_probability_BN": jnp.take_along_axis(log_probabilities_BV, labels_B1, axis=1)}

    def predictions(self, outputs, examples: Readings, records) -> list[dict[str, Any]]:
        """{`pseudo_log_likelihood`: in nats, `tokens`: how many it is the sum over}."""
        count = len(records)
        sums = np.bincount(examples.text_of, outputs["log_probability_BN"].astype(np.float64), minlength=count)
        tokens = np.bincount(examples.text_of, minlength=count)
        return [
            {"pseudo_log_likelihood": float(total), "tokens": int(number)}
            for total, number in zip(sums, tokens, strict=True)
        ]
