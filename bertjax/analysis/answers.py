"""Predictions for one sentence: a class, a number, or the token at a [MASK]."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis import attribution
from bertjax.analysis.attribution import Attribution
from bertjax.analysis.subject import Subject, captured
from bertjax.models import replacing
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays
from bertjax.objectives.finetuning.base import MIX, ExampleObjective
from bertjax.objectives.finetuning.multi_label import MultiLabel
from bertjax.objectives.finetuning.regression import Regression
from bertjax.objectives.pretraining.mlm import MaskedLM


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """Predicts answers for rows of one example each.

    Attributes:
      subject: a model for which `missing` is empty.
    """

    subject: Subject

    @staticmethod
    def missing(subject: Subject) -> str:
        """Return why a model cannot answer single sentences, as the end of a sentence; empty if it can."""
        objective = subject.objective
        if isinstance(objective, MultiLabel):
            return "predicts classes that do not exclude each other"
        if isinstance(objective, ExampleObjective):
            if objective.traits.group > 1:  # the choices of a question: a softmax over the examples of a row
                return "compares several texts, so that one sentence has no answer"
            return "has a head that reads all layers" if objective.reads == MIX else ""
        if not isinstance(objective, MaskedLM):
            return "has no head for masked tokens, classes of sentences or numbers"
        # ELECTRA's generator is a second encoder, and XLNet predicts from a second stream. Neither can be attributed to
        # the embeddings of this encoder.
        if "generator" in subject.export.params or subject.encoder.block.has_query_stream:
            return "predicts masked tokens by a second encoder or stream"
        return ""

    @property
    def is_masked_lm(self) -> bool:
        """Whether the answer is the token at a [MASK]."""
        return isinstance(self.subject.objective, MaskedLM)

    @property
    def is_number(self) -> bool:
        """Whether the answer is a number."""
        return isinstance(self.subject.objective, Regression)

    @functools.cached_property
    def _model(self) -> Model:
        return self.subject.objective.model(self.subject.encoder)

    def name_of(self, answer: int) -> str:
        """Return an answer as text: a piece or a class name."""
        if self.is_masked_lm:
            return self.subject.tokenizer.piece(answer)
        return str(self.subject.objective.classes[answer])

    def features(self, columns_B: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of the head beyond the core batch.

        Args:
          columns_B: int, column of the [MASK] in each row; ignored by models that are not masked LMs.
        """
        if not self.is_masked_lm:
            return {}
        return {f"{self.subject.objective.term}_positions_BK": columns_B.astype(np.int32)[:, None]}

    def logits(self, params: dict, batch: Arrays) -> jax.Array:
        """Device: return the logits per row, float32 [B, answers]."""
        objective = self.subject.objective
        method = objective.mlm_logits if self.is_masked_lm else None
        return objective.apply(self._model, params, batch, method=method)[:, 0]

    @functools.cached_property
    def predict(self) -> attribution.Predict:
        """(embeddings, params, batch, answers [B]) -> log-probability of the answer, or the number; [B, 1]."""

        def predict(inputs_BTE: jax.Array, params: dict, batch: Arrays, answer_B: jax.Array) -> jax.Array:
            # Gradients are taken with respect to the embeddings: token ids have none.
            with replacing.with_embeddings(inputs_BTE):
                logits = self.logits(params, batch)
            if self.is_number:
                return logits
            return jnp.take_along_axis(jax.nn.log_softmax(logits), answer_B[:, None], axis=1)

        return predict

    @functools.cached_property
    def by_layer(self) -> Any:
        """(params, batch) -> logits of a head that reads the embeddings or an earlier layer, [L + 1, B, answers].

        The head was trained on the last layer ("logit lens"). A bad answer from an earlier layer does not show that the
        layer lacks the information.
        """

        @jax.jit
        def by_layer(params: dict, batch: Arrays) -> jax.Array:
            hidden_LBTD = captured(self.subject.encoder, params, batch, ("hidden",))["hidden"]

            def at(hidden_BTD: jax.Array) -> jax.Array:
                with replacing.with_hidden(hidden_BTD):
                    return self.logits(params, batch)

            # `map` instead of `vmap`: the logits of all layers at once would take L + 1 times the memory.
            return jax.lax.map(at, hidden_LBTD)

        return by_layer

    @functools.cached_property
    def _embedded(self) -> Any:
        return jax.jit(functools.partial(attribution.embedded, self.subject.encoder))

    def attribute(self, batch: dict[str, np.ndarray], answer_B: np.ndarray) -> Attribution:
        """Return integrated gradients of the answers; `bertjax.analysis.attribution` describes the baseline.

        Args:
          batch: the core batch with `features`.
          answer_B: int, the answers whose log-probability is attributed; ignored if the prediction is a number.
        """
        params, vocabulary = self.subject.params, self.subject.vocabulary
        # Special tokens are the same in the baseline, so their attribution is exactly 0.
        is_kept_BT = vocabulary.is_special[batch["tokens_BT"]]
        baseline = batch | {"tokens_BT": np.where(is_kept_BT, batch["tokens_BT"], vocabulary.mask_id).astype(np.int32)}
        inputs_BTE, baseline_BTE = (self._embedded(params, each) for each in (batch, baseline))
        arguments = params, batch, answer_B.astype(np.int32)
        return attribution.integrated_gradients(
            self.predict, inputs_BTE, baseline_BTE, batch["examples_BT"], 1, *arguments
        )
