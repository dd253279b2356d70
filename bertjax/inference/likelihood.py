"""Sentence log-likelihoods: pseudo-log-likelihood under a masked language model, log-likelihood under a causal one.

Salazar et al. (2020), Masked Language Model Scoring, section 2 (arXiv 1910.14659): mask one token at a time and add up
the log probabilities of the masked tokens. A causal model gives the log probability of each token given the tokens
before it (their "LM score"), in one pass. [CLS] and [SEP] are never masked or predicted.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.data.batch import Draw
from bertjax.data.framing import Ids, special_tokens
from bertjax.data.labeled.base import WHERE, LabeledExamples, Record
from bertjax.inference.base import Pipeline
from bertjax.inference.fill import MaskedPipeline, MaskedViews
from bertjax.models.directions import LEFT_TO_RIGHT
from bertjax.objectives.host import Output
from bertjax.objectives.pretraining.causal import CausalLM, NextToken
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime.errors import UserError, cut_text


@dataclasses.dataclass(frozen=True, eq=False)
class PseudoLogLikelihood(MaskedPipeline):
    """Scores sentences with a masked LM; a sentence with n tokens is computed n times."""

    score: ClassVar[str] = "pseudo_log_likelihood"

    def encode(self, records: list[Record]) -> MaskedViews:
        texts = self.add_special_tokens(records, _encoded(self.model, records))
        positions = [texts.ragged.text_index + np.arange(length - special_tokens(1)) for length in texts.lengths()]
        # One view per token: masking several at once would hide context from each.
        return MaskedViews.of(texts, positions, self.vocabulary.mask_id, capacity=1)

    def outputs(self, params, batch):
        """`log_probability` of the masked token, in nats."""
        log_probabilities_BV = self.log_probabilities(params, batch)[:, 0]
        labels_B1 = batch[f"{self.objective.term}_labels_BK"]
        return {"log_probability": Output(jnp.take_along_axis(log_probabilities_BV, labels_B1, axis=1), per="example")}

    def predictions(self, outputs, examples: MaskedViews) -> list[dict[str, Any]]:
        """{`pseudo_log_likelihood`: in nats, `tokens`: how many tokens it sums over}."""
        count = len(examples.texts)
        # `bincount` with weights adds up the views of each text, in float64.
        sums = np.bincount(examples.text_of, outputs["log_probability"].astype(np.float64), minlength=count)
        tokens = np.bincount(examples.text_of, minlength=count)
        return [
            {"pseudo_log_likelihood": float(total), "tokens": int(number)}
            for total, number in zip(sums, tokens, strict=True)
        ]


def _encoded(model: Export, records: list[Record]) -> Ids:
    """Return the tokens of each text.

    Raises:
      UserError: a text has none, such as a zero-width space. A sum over nothing is 0, the best of all scores.
    """
    encoded = model.tokenizer.encode([record["text"] for record in records])
    for record, ids in zip(records, encoded, strict=True):
        if not len(ids):
            text = cut_text(record["text"], 40)
            raise UserError(f"{record[WHERE]}: the tokenizer removes all of {text!r}; correct it or leave it out")
    return encoded


def is_causal(model: Export) -> bool:
    """Return whether a model predicts the next token from those before it, by its direction or in one of its tasks.

    The head alone does not tell: it is also that of `masked_next_token`.
    """
    if CausalLM.term not in model.params.get("heads", {}):
        return False
    objectives = (unwrapped(task.objective) for task in config_of(model).tasks.values())
    return model.encoder.direction == LEFT_TO_RIGHT or any(isinstance(each, CausalLM) for each in objectives)


@dataclasses.dataclass(frozen=True, eq=False)
class LogLikelihood(Pipeline):
    """Scores sentences with a causal model; a sentence is computed once."""

    score: ClassVar[str] = "log_likelihood"

    def __post_init__(self):
        if not is_causal(self.model):
            raise UserError(
                "the model has no head that predicts the next token, which log-likelihoods need; train it with "
                "objective.kind=causal, or ask for pseudo-log-likelihoods"
            )

    @property
    def objective(self) -> CausalLM:
        return NextToken()  # also for an encoder that reads both sides in its other tasks

    def encode(self, records: list[Record]) -> LabeledExamples:
        return self.add_special_tokens(records, _encoded(self.model, records))

    def features(self, placed):
        # The features of a causal objective are the shifted labels; the draw has no effect on them.
        return self.objective.features(placed, Draw(0, np.zeros(len(placed.rows), np.int64)))

    def outputs(self, params, batch):
        """`log_likelihood` in nats, and `tokens`, the number of tokens it sums over."""
        model = self.objective.model(self.model.encoder)

        def of_row(row):  # one row at a time: all logits would be B T V numbers
            one = {name: array[None] for name, array in row.items()}
            labels_K, weights_K = one["clm_labels_BK"][0], one["clm_weights_BK"][0]
            log_probabilities_KV = jax.nn.log_softmax(self.objective.apply(model, params, one)[0])
            return jnp.sum(jnp.take_along_axis(log_probabilities_KV, labels_K[:, None], axis=1)[:, 0] * weights_K)

        per_row = {
            "log_likelihood": jax.lax.map(of_row, dict(batch)),
            "tokens": jnp.sum(batch["clm_weights_BK"], axis=1),
        }
        return {name: Output(values_B[:, None], per="example") for name, values_B in per_row.items()}

    def predictions(self, outputs, examples: LabeledExamples) -> list[dict[str, Any]]:
        """{`log_likelihood`: in nats, `tokens`: how many tokens it sums over}."""
        return [
            {"log_likelihood": float(total), "tokens": int(number)}
            for total, number in zip(outputs["log_likelihood"], outputs["tokens"], strict=True)
        ]
