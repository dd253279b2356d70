"""Labels of sentences and sentence pairs (one class, several classes, a number), and of words.

Devlin et al., 2019, section 4.1 (classification and STS-B's regression) and 5.3 (named entities), arXiv 1810.04805.
Precision, recall and F1 of entities are counted as by `conlleval` (CoNLL-2000 and CoNLL-2003), as seqeval does in its
default mode. Tags may follow any scheme in `bertjax.data.labeled.labels`. Invalid tag sequences, which models do
predict, are interpreted as in `conlleval`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.labeled.tagged import NO_WORD
from bertjax.objectives.base import Arrays
from bertjax.objectives.finetuning.answers import ClassAnswers, NumberAnswers, SetAnswers, TagAnswers, majority_accuracy
from bertjax.objectives.finetuning.base import OF_HEAD, ExampleObjective, TokenObjective
from bertjax.objectives.host import Output, Traits
from bertjax.objectives.losses import classification_term, squared_error
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.setting import TRAINING_ONLY, setting

METRICS = ("accuracy", "f1", "matthews")


@dataclasses.dataclass(frozen=True)
class Classification(ClassAnswers, ExampleObjective):
    """Predicts one of several classes. Terms: `classification`.

    Attributes:
      classes: class names in order; empty takes them from the training file.
      metric: metric that selects the best checkpoint and compares seeds: `accuracy`, `f1` or `matthews`.
      label_smoothing: target probability that is spread evenly over all classes (Szegedy et al., 2016, arXiv
        1512.00567, section 7). Evaluation losses include it too.
      balanced: whether every class has the same total loss weight. A run turns it into `class_weights`.
      class_weights: loss weight per class, in the order of `classes`; 1 for all if empty.
      temperature: number that divides the logits of predictions (`calibration`). None: each evaluation in a run fits
        it on the held-out examples, reports it as `temperature`, and the export keeps the last one.
      precision: share of right predictions among those that are accepted; evaluations choose `threshold` for it. None
        accepts all predictions.
      threshold: predictions with a probability above this, at `temperature`, are accepted. None: see `precision`.
    """

    classes: tuple[str, ...] = ()
    metric: str = setting("accuracy", choices=METRICS, metadata=TRAINING_ONLY)
    label_smoothing: float = setting(0.0, least=0, below=1)
    balanced: bool = False
    class_weights: tuple[float, ...] = setting((), above=0)
    temperature: float | None = setting(None, above=0)
    precision: float | None = setting(None, least=0, most=1)
    threshold: float | None = setting(None, least=0, most=1)
    term: ClassVar[str] = "classification"

    def __post_init__(self):
        super().__post_init__()
        if self.class_weights and self.classes and len(self.class_weights) != len(self.classes):
            raise UserError(
                f"objective.class_weights has {len(self.class_weights)} weights for {len(self.classes)} classes "
                f"({shorten(self.classes)}); give one for each, in this order"
            )

    def weighted(self, counts: Mapping[str, int]) -> Self:
        """Return a copy with class weights filled in if `balanced` is set and they are not.

        Weights follow scikit-learn's `class_weight="balanced"`: their mean over training examples is 1.

        Args:
          counts: {class: number of training examples}.
        """
        if not self.balanced or self.class_weights:
            return self
        # n / (C n_c), so that the classes sum to the same weight n / C.
        weights = tuple(sum(counts.values()) / (len(counts) * counts[name]) for name in self.classes)
        return dataclasses.replace(self, class_weights=weights)

    @property
    def best_metric(self) -> str:
        return self.metric

    def features(self, examples, draw):
        features = super().features(examples, draw)
        if self.class_weights:
            of_class = np.array(self.class_weights, np.float32)[examples.ragged.labels["label"]]
            features["class_weights_BN"] = examples.examples_to_rows(of_class) * (features["weights_BN"] > 0)
        return features

    def weights(self, batch):
        return {self.term: jnp.sum(batch.get("class_weights_BN", batch["weights_BN"]))}

    def terms_of(self, logits, batch):
        counts_BN = batch["weights_BN"]
        weights_BN = batch.get("class_weights_BN", counts_BN)
        loss, _ = classification_term(logits, batch["labels_BN"], weights_BN)
        if self.label_smoothing:
            # (1 - s) * cross-entropy of the label + s * mean cross-entropy over all classes
            of_all_classes = jax.nn.logsumexp(logits, axis=-1) - jnp.mean(logits, axis=-1)
            loss += self.label_smoothing * (jnp.sum(weights_BN * of_all_classes) - loss)
        # Accuracy counts examples and ignores class weights.
        _, correct = classification_term(logits, batch["labels_BN"], counts_BN)
        return {self.term: loss}, {"accuracy": (correct, counts_BN.sum())}

    def outputs(self, model, params, batch, taps=None):
        """Return `probabilities` over the classes, at temperature 1: a teacher and an ensemble read these."""
        return {"probabilities": Output(jax.nn.softmax(self.apply(model, params, batch, taps=taps)), per="example")}

    def baselines(self, batch, token_counts):
        """Return the accuracy of always predicting the most frequent training class."""
        return majority_accuracy(batch["labels_BN"][batch["weights_BN"] > 0], token_counts)


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


# `CrossEncoder` in sentence-transformers applies a sigmoid if there is one label; converted models need it too.
ACTIVATIONS = {"identity": lambda logits: logits, "sigmoid": jax.nn.sigmoid}


@dataclasses.dataclass(frozen=True)
class Regression(NumberAnswers, ExampleObjective):
    """Predicts a number with squared error. Terms: `regression`.

    Attributes:
      activation: function from logit to number: `identity`, or `sigmoid` for numbers between 0 and 1.
    """

    activation: str = setting("identity", kw_only=True, metadata=OF_HEAD, choices=ACTIVATIONS)
    term: ClassVar[str] = "regression"
    num_outputs: ClassVar[int] = 1

    @property
    def reach(self) -> tuple[float, float]:
        """The lowest and the highest number that the activation gives."""
        return (0.0, 1.0) if self.activation == "sigmoid" else (-math.inf, math.inf)

    def terms_of(self, logits, batch):
        numbers_BN = ACTIVATIONS[self.activation](logits[..., 0])
        return {self.term: squared_error(numbers_BN, batch["labels_BN"], batch["weights_BN"])}, {}

    def outputs(self, model, params, batch, taps=None):
        """Return `number`."""
        logits = self.apply(model, params, batch, taps=taps)
        return {"number": Output(ACTIVATIONS[self.activation](logits[..., 0]), per="example")}


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
