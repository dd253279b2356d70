"""Multiple choice: select the text that fits a context (Devlin et al., 2019, section 4.4; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.finetuning.answers import majority_accuracy, record_scores, without_location
from bertjax.objectives.finetuning.base import ExampleObjective
from bertjax.objectives.host import Output, Traits
from bertjax.objectives.losses import classification_term


@dataclasses.dataclass(frozen=True)
class MultipleChoice(ExampleObjective):
    """Scores C choices with a linear head on each pooled [CLS], and a softmax over choices. Terms: `multiple_choice`.

    A record's choices are C neighboring examples in a row; N = C x G.

    Attributes:
      classes: the C choice indices, see `Objective`.
    """

    classes: tuple[str, ...] = ()
    term: ClassVar[str] = "multiple_choice"
    num_outputs: ClassVar[int] = 1
    best_metric: ClassVar[str] = "accuracy"

    @property
    def choices(self) -> int:
        """C; 1 until the training file is read."""
        return max(1, len(self.classes))

    @property
    def traits(self) -> Traits:
        return Traits(labels=("choice",), group=self.choices)

    def logits(self, model, batch, key=None):
        """Return one score per choice, float32 [B, G, C]."""
        scores_BN1 = super().logits(model, batch, key)
        return scores_BN1.reshape(len(scores_BN1), -1, self.choices)

    def weights(self, batch):
        return {self.term: jnp.sum(batch["weights_BN"][:, :: self.choices])}

    def soft_weights(self, batch):
        return batch["weights_BN"][:, :: self.choices]

    def terms_of(self, logits, batch):
        # All choices of a record carry its weight and its label; take those of the first.
        weights_BG = batch["weights_BN"][:, :: self.choices]
        loss, correct = classification_term(logits, batch["labels_BN"][:, :: self.choices], weights_BG)
        return {self.term: loss}, {"accuracy": (correct, weights_BG.sum())}

    def outputs(self, model, params, batch, taps=None):
        """Return `probability`, the softmax over each record's choices."""
        probabilities_BGC = jax.nn.softmax(self.apply(model, params, batch, taps=taps))
        return {"probability": Output(probabilities_BGC.reshape(len(probabilities_BGC), -1), per="example")}

    def baselines(self, batch, token_counts):
        """Return the accuracy of always choosing the index that is most often correct in the training file."""
        labels = batch["labels_BN"][:, :: self.choices][batch["weights_BN"][:, :: self.choices] > 0]
        # `classes` holds the indices as text; put their counts into numerical order.
        order = np.array([int(name) for name in self.classes])
        return majority_accuracy(labels, token_counts[np.argsort(order)])

    def scores(self, outputs, examples, records):
        choices = outputs["probability"].reshape(-1, self.choices).argmax(axis=-1)
        return {
            "accuracy": record_scores(records[:: self.choices], choices == examples.labels["choice"][:: self.choices])
        }

    def predictions(self, outputs, examples, records):
        """Return records with `prediction`, a choice index, and `probabilities`, in the order of the choices."""
        probabilities_MC = outputs["probability"].reshape(-1, self.choices)
        return [
            without_location(record)
            | {
                "prediction": int(probabilities_C.argmax()),
                "probabilities": [round(float(probability), 6) for probability in probabilities_C],
            }
            for record, probabilities_C in zip(records[:: self.choices], probabilities_MC, strict=True)
        ]
