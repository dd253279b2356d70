"""Multi-label classification: an independent yes or no per class, for sentences and sentence pairs."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.finetuning.answers import SetAnswers
from bertjax.objectives.finetuning.base import ExampleObjective
from bertjax.objectives.host import Output, Traits
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class MultiLabel(SetAnswers, ExampleObjective):
    """Predicts for each class whether it applies, by binary cross-entropy. Terms: `multi_label`, the mean over classes.

    Attributes:
      classes: class names in order; empty takes them from the training file.
      threshold: predict a class if its probability is above this.
    """

    classes: tuple[str, ...] = ()
    threshold: float = setting(0.5, above=0, below=1)
    traits: ClassVar[Traits] = Traits(labels=("label_set",))
    term: ClassVar[str] = "multi_label"

    def soft_logits(self, logits, batch):
        """Return yes and no logits per class, [B, N, C, 2]."""
        # sigmoid(z) = softmax([z, 0])[0], so teacher losses can treat every class as a two-way softmax.
        return jnp.stack([logits, jnp.zeros_like(logits)], axis=-1)

    def soft_weights(self, batch):
        weights_BN1 = super().soft_weights(batch)[..., None]
        return jnp.repeat(weights_BN1, self.num_outputs, axis=-1)

    def terms_of(self, logits, batch):
        labels_BNC, weights_BN = batch["labels_BN"], batch["weights_BN"]
        # Binary cross-entropy from logits, in the form that does not overflow.
        losses_BNC = jax.nn.softplus(logits) - labels_BNC * logits
        guesses_BNC = (jax.nn.sigmoid(logits) > self.threshold).astype(jnp.float32)
        # F1 = 2 TP / (predicted + actual), summed over all batches before dividing.
        both = jnp.sum(weights_BN[..., None] * guesses_BNC * labels_BNC)
        either = jnp.sum(weights_BN[..., None] * (guesses_BNC + labels_BNC))
        exact_BN = jnp.all(guesses_BNC == labels_BNC, axis=-1)
        return {self.term: jnp.sum(weights_BN * jnp.mean(losses_BNC, axis=-1))}, {
            "f1": (2.0 * both, either),
            "exact_match": (jnp.sum(weights_BN * exact_BN), jnp.sum(weights_BN)),
        }

    def outputs(self, model, params, batch, taps=None):
        """Return `probabilities`, one per class, each between 0 and 1."""
        return {"probabilities": Output(jax.nn.sigmoid(self.apply(model, params, batch, taps=taps)), per="example")}

    def baselines(self, batch, token_counts):
        """Return the best constant answer: one class for all examples, or no class (`exact_match` only)."""
        labels_MC = batch["labels_BN"][batch["weights_BN"] > 0]
        examples, sizes_M = len(labels_MC), labels_MC.sum(axis=-1)
        exact_C = (labels_MC * (sizes_M == 1)[:, None]).sum(axis=0)
        return {
            "f1_majority": (2.0 * labels_MC.sum(axis=0), examples + float(sizes_M.sum())),
            "exact_match_majority": (np.append(exact_C, np.sum(sizes_M == 0)), examples),
        }
