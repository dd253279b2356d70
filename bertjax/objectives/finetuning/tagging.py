"""Word tagging, such as named-entity recognition (Devlin et al., 2019, section 5.3; arXiv 1810.04805).

Precision, recall and F1 of entities are counted as by `conlleval` (CoNLL-2000 and CoNLL-2003). Tags may follow any
scheme in `bertjax.data.labeled.labels`. Invalid tag sequences, which models do predict, are interpreted as in
`conlleval`. seqeval gives the same numbers in its default mode.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled import tagged
from bertjax.data.labeled.labels import entities
from bertjax.data.labeled.tagged import NO_WORD
from bertjax.objectives.base import Arrays, Traits
from bertjax.objectives.finetuning.base import TokenObjective, majority_accuracy, without_location
from bertjax.objectives.losses import classification_term
from bertjax.objectives.outputs import Output


def scores(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], classes: Iterable[str] = ()
) -> dict[str, float]:
    """Return micro-averaged `precision`, `recall` and `f1` over whole entities; 0 if there is nothing to count.

    Args:
      gold: correct tags per sentence.
      predicted: predicted tags per sentence.
      classes: all tags, from which the scheme is inferred; by default all tags in `gold` and `predicted`.
    """
    gold, predicted = list(gold), list(predicted)
    canonical = label_names.canonical_of(classes or {tag for tags in (*gold, *predicted) for tag in tags}) or str
    correct = num_gold = num_predicted = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        of_gold, of_predicted = (entities(list(map(canonical, tags))) for tags in (gold_tags, predicted_tags))
        correct += len(of_gold & of_predicted)
        num_gold += len(of_gold)
        num_predicted += len(of_predicted)
    return {
        "precision": correct / max(1, num_predicted),
        "recall": correct / max(1, num_gold),
        "f1": 2 * correct / max(1, num_gold + num_predicted),
    }


@dataclasses.dataclass(frozen=True)
class Tagging(TokenObjective):
    """Predicts each word's tag from its first piece. Terms: `tagging`.

    If tags mark entities (O, B-PER, I-PER, ...; see `bertjax.data.labeled.labels`), precision, recall and F1 count
    whole entities over all types together, as in CoNLL-2003 (`conlleval`). Other tags are scored only by accuracy.

    Attributes:
      classes: tag names; a run reads them from the training file.
    """

    classes: tuple[str, ...] = ()
    traits: ClassVar[Traits] = Traits(labels=("tag", "word"))
    term: ClassVar[str] = "tagging"

    @property
    def best_metric(self) -> str:
        return "f1" if self.marks_entities else "token_accuracy"

    @property
    def marks_entities(self) -> bool:
        """Whether the tags follow an entity scheme."""
        return label_names.canonical_of(self.classes) is not None

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

    def score(self, outputs, examples, records):
        if not self.marks_entities:
            return {}
        pairs = tagged.predicted(outputs["guesses"], examples, records, self.classes)
        return scores([record["tags"] for record, _ in pairs], [tags for _, tags in pairs], self.classes)

    def scores(self, outputs, examples, records):
        pairs = tagged.predicted(outputs["guesses"], examples, records, self.classes)
        right = ((record, sum(map(str.__eq__, tags, record["tags"]))) for record, tags in pairs)
        return {"token_accuracy": [(record, float(count), float(len(record["tags"]))) for record, count in right]}

    def predictions(self, outputs, examples, records):
        """Return records with `words` and `prediction`, one tag per word, see `tagged.answer_of`."""
        predicted = tagged.predicted(outputs["guesses"], examples, records, self.classes)
        return [without_location(record) | tagged.answer_of(record, tags, self.classes) for record, tags in predicted]


def _weights(batch: Arrays):
    """Return 1 for tokens with a gold tag, else 0; float32 [B, T]. Teacher losses also use untagged words."""
    return (batch["tags_BT"] >= 0).astype(jnp.float32)
