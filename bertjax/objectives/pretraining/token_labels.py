"""Masked language modeling plus a yes-or-no question about every token (ERNIE 2.0, arXiv 1907.12412)."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Self

import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import mask
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.models.model import HeadSpec
from bertjax.models.other_heads import DetectionHead
from bertjax.objectives.host import Traits
from bertjax.objectives.losses import binary_term
from bertjax.objectives.pretraining.mlm import MaskedLM, majority
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class TokenLabels:
    """A binary label for every token, masked or not, predicted from its hidden state.

    Attributes:
      term: name of the term.
      labels_of: host function from examples to int [n]: 1 for yes, 0 for no, -1 for tokens without a label.
    """

    term: str
    labels_of: Callable[[PlacedExamples], np.ndarray]
    reads_all_tokens: ClassVar[bool] = True

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(DetectionHead)

    def logits(self, model, encoded):
        """Return logits_BT; above 0 means yes."""
        return model.head(self.term, encoded.hidden)

    def features(self, examples):
        labels_BT = examples.tokens_to_rows(self.labels_of(examples), fill=-1)
        return {f"{self.term}_labels_BT": labels_BT.astype(np.int32)}

    def weight(self, batch):
        return jnp.sum(batch[f"{self.term}_labels_BT"] >= 0).astype(jnp.float32)

    def terms(self, logits, batch):
        labels_BT = batch[f"{self.term}_labels_BT"]
        loss, metrics = binary_term(self.term, logits[self.term], labels_BT == 1, labels_BT >= 0)
        return {self.term: loss}, metrics

    def baselines(self, batch):
        return majority(self.term, batch[f"{self.term}_labels_BT"][batch[f"{self.term}_labels_BT"] >= 0], 2)


@dataclasses.dataclass(frozen=True)
class TokenDocumentRelation(MaskedLM):
    """Masked tokens, and which tokens occur again elsewhere in the document ("Word-aware Pre-training Tasks").

    Such tokens are common words and topic words. Terms: `mlm`, `elsewhere`.
    """

    traits: ClassVar[Traits] = dataclasses.replace(MaskedLM.traits, labels=("elsewhere",))
    parts = (TokenLabels("elsewhere", lambda examples: examples.ragged.token_labels["elsewhere"]),)


@dataclasses.dataclass(frozen=True)
class CapitalPrediction(MaskedLM):
    """Masked tokens, and which words are capitalized ("Word-aware Pre-training Tasks"). Terms: `mlm`, `capital`.

    The encoder reads lower-cased text and predicts masked tokens in lower case: a piece with capitals is replaced by
    its lower-case counterpart, if the vocabulary has both. Only such pieces have a `capital` label, and only if they
    are whole words: words of several pieces are often split differently in lower case, which would give the answer
    away. Masked tokens have the label too.

    Attributes:
      case_pairs: int32 [P, 2], ids of a piece with capitals and of its lower-case counterpart; set by `bind`.
    """

    case_pairs: ClassVar[np.ndarray | None] = None

    @property
    def parts(self):
        return (TokenLabels("capital", self._labels),)

    def bind(self, store: TokenStore | None) -> Self:
        """Return the objective with the tokenizer's case pairs; without a store, with none.

        Raises:
          UserError: the tokenizer has no pairs, usually because it lower-cases everything.
        """
        pairs = np.zeros((0, 2), np.int32) if store is None else case_pairs(store.tokenizer)
        if store is not None and not len(pairs):
            raise UserError(
                "objective.kind=capitals learns which pieces are written with capitals, and the tokenizer has none "
                "that it also has in lower case; take one that keeps capitals: data.tokenizer.model=FOLDER"
            )
        return super().bind(store).copy_with(case_pairs=pairs)

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        if self.case_pairs is None:
            raise TypeError("CapitalPrediction has no pairs of pieces before `bind`")
        masked = mask(examples, draw, self.masking)
        # Lower-case ids with one lookup table; ids without a counterpart map to themselves.
        lower = np.arange(examples.vocabulary.size, dtype=np.int32)
        lower[self.case_pairs[:, 0]] = self.case_pairs[:, 1]
        ragged = dataclasses.replace(examples.ragged, tokens=lower[examples.ragged.tokens])
        features = self.masked_features(
            dataclasses.replace(examples, ragged=ragged), lower[masked.tokens], masked.chosen
        )
        for part in self.parts:  # labels come from the original text
            features |= part.features(examples)
        return features

    def _labels(self, examples: PlacedExamples) -> np.ndarray:
        labels = np.full(examples.vocabulary.size, -1, np.int32)
        labels[self.case_pairs] = [1, 0]
        continues = examples.vocabulary.continues_word[examples.ragged.tokens]
        # A piece is a whole word if neither it nor the next piece continues a word.
        is_word = ~continues & ~np.append(continues[1:], False)
        return np.where(is_word, labels[examples.ragged.tokens], -1)


def case_pairs(tokenizer: Tokenizer) -> np.ndarray:
    """Return (id, id in lower case) of each piece whose lower case is another piece; int32 [P, 2]."""
    tokens = (token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids)
    # Byte pieces that do not decode to text also have a spelling, but its lower case stands for other bytes.
    ids = {tokenizer.piece(token): token for token in tokens if "\ufffd" not in tokenizer.decode([token])}
    # Skip pieces that are lower case already, or whose lower case is not in the vocabulary.
    pairs = [(token, ids[piece.lower()]) for piece, token in ids.items() if ids.get(piece.lower(), token) != token]
    return np.array(pairs, np.int32).reshape(-1, 2)
