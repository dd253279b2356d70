"""A tag for every word, as in named-entity recognition (Devlin et al., 2019, section 5.3; arXiv 1810.04805)."""

import dataclasses
import re
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.data.labeled.tagged import words_of
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.finetuning.base import shown
from bertjax.objectives.finetuning.tokens import TokenModule, by_record
from bertjax.objectives.losses import classification_term

OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class Tagging(Objective):
    """Predicts the tag of each word from its first piece. Terms: `tagging`.

    Where the tags are those of entities (O, B-PER, I-PER, ...), precision, recall and F1 are those of whole entities,
    in all classes together, as CoNLL-2003 counts them (`conlleval`); of other tags only the accuracy is told.

    Attributes:
      classes: see `Objective`.
    """

    classes: tuple[str, ...] = ()
    labels: ClassVar[tuple[str, ...]] = ("tag", "word")
    term: ClassVar[str] = "tagging"

    @property
    def best_metric(self) -> str:
        return "f1" if self._entities else "token_accuracy"

    @property
    def _entities(self) -> bool:
        return all(name == OUTSIDE or re.match("[BIES]-", name) for name in self.classes)

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return TokenModule(encoder, self.term, len(self.classes))

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        return {"tags_BT": examples.tokens_to_rows(examples.ragged.token_labels["tag"], fill=-1)}

    def weights(self, batch: Arrays) -> Arrays:
        return {self.term: jnp.sum(_weights(batch))}

    def terms(self, module, params, frozen, batch, key, train):
        logits_BTC = module.apply({"params": params}, batch, key if train else None)
        weights_BT = _weights(batch)
        loss, right = classification_term(logits_BTC, batch["tags_BT"], weights_BT)
        return {self.term: loss}, {"token_accuracy": (right, jnp.sum(weights_BT))}

    def outputs(self, module, params, batch):
        """`guesses_BT`, the number of the best class of each token."""
        return {"guesses_BT": jnp.argmax(module.apply({"params": params}, batch), axis=-1)}

    def baselines(self, batch, token_counts):
        """Always guessing the most frequent tag of the training file."""
        tags = batch["tags_BT"][batch["tags_BT"] >= 0]
        return {"majority_accuracy": (float(np.sum(tags == np.argmax(token_counts))), len(tags))}

    def score(self, outputs, examples, records):
        if not self._entities:
            return {}
        from seqeval.metrics import f1_score, precision_score, recall_score

        tagged = self._tagged(outputs, examples, records)
        pair = [record["tags"] for record, _ in tagged], [guesses for _, guesses in tagged]
        scores = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
        return {name: float(score(*pair, zero_division=0)) for name, score in scores.items()}

    def predictions(self, outputs, examples, records):
        """Each record with its `words` and `prediction`, a tag for each of them."""
        tagged = self._tagged(outputs, examples, records)
        return [shown(record) | {"words": words_of(record), "prediction": guesses} for record, guesses in tagged]

    def _tagged(self, outputs, examples: Ragged, records: list[Record]) -> list[tuple[Record, list[str]]]:
        """Each record with the tag of every word; not those of which `eval.rows` left a window out."""
        tagged = []
        for record, windows in by_record(examples, records):
            guesses = [-1] * len(words_of(record))
            for window in windows:
                tokens = slice(*examples.offsets[window : window + 2])
                for word, guess in zip(examples.token_labels["word"][tokens], outputs["guesses_BT"][tokens]):
                    if word >= 0:
                        guesses[word] = int(guess)
            if min(guesses) >= 0:
                tagged.append((record, [self.classes[guess] for guess in guesses]))
        return tagged


def _weights(batch: Arrays):
    """1 where a tag is to be predicted; float32 [B, T]."""
    return (batch["tags_BT"] >= 0).astype(jnp.float32)
