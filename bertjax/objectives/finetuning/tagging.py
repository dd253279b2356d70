"""Word tagging, such as named-entity recognition (Devlin et al., 2019, section 5.3; arXiv 1810.04805).

Precision, recall and F1 of entities are counted as by `conlleval` (CoNLL-2000 and CoNLL-2003). Tags may follow any
scheme in `bertjax.data.labeled.labels`. Invalid tag sequences, which models do predict, are interpreted as in
`conlleval`. seqeval gives the same numbers in its default mode.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.labeled.tagged import NO_WORD
from bertjax.objectives.base import Arrays
from bertjax.objectives.finetuning.answers import TagAnswers, majority_accuracy
from bertjax.objectives.finetuning.base import TokenObjective
from bertjax.objectives.host import Output
from bertjax.objectives.losses import classification_term


@dataclasses.dataclass(frozen=True)
class Tagging(TagAnswers, TokenObjective):
    """Predicts each word's tag from its first piece. Terms: `tagging`.

    Attributes:
      classes: tag names; a run reads them from the training file.
    """

    classes: tuple[str, ...] = ()
    term: ClassVar[str] = "tagging"

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        return {"tags_BT": examples.tokens_to_rows(examples.ragged.token_labels["tag"], fill=NO_WORD)}

    def weights(self, batch: Arrays) -> Arrays:
        return {self.term: jnp.sum(_weights(batch))}

    def soft_weights(self, batch):
        return (batch["tags_BT"] != NO_WORD).astype(jnp.float32)

    def terms_of(self, logits, batch):
        weights_BT = _weights(batch)
        loss, correct = classification_term(logits, batch["tags_BT"], weights_BT)
        return {self.term: loss}, {"token_accuracy": (correct, jnp.sum(weights_BT))}

    def outputs(self, model, params, batch, taps=None):
        """Return `guesses`, the best tag's index at each token."""
        return {"guesses": Output(jnp.argmax(self.apply(model, params, batch, taps=taps), axis=-1), per="token")}

    def baselines(self, batch, token_counts):
        """Return the accuracy of always predicting the most frequent training tag."""
        return majority_accuracy(batch["tags_BT"][batch["tags_BT"] >= 0], token_counts)


def _weights(batch: Arrays):
    """Return 1 for tokens with a gold tag, else 0; float32 [B, T]. Teacher losses also use untagged words."""
    return (batch["tags_BT"] >= 0).astype(jnp.float32)
