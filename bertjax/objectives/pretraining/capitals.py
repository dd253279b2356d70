"""ERNIE 2.0's capitalization prediction beside masked language modeling (Sun et al. 2020, arXiv 1907.12412)."""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.objectives.pretraining.token_facts import TokenFacts


@dataclasses.dataclass(frozen=True)
class CapitalPrediction(TokenFacts):
    """Masked tokens, and which are written with capitals ("Word-aware Pre-training Tasks"). Terms: `mlm`, `capital`.

    The text is shown in lower case: a piece with capitals is replaced by the same piece without them, where the
    vocabulary has both. Of such pieces, with capitals and without, it is asked, where they are whole words: a word of
    several pieces is often cut otherwise in lower case, which would tell. `bind` reads which pieces they are.
    """

    term: ClassVar[str] = "capital"

    def bind(self, store: TokenStore | None) -> "BoundCapitalPrediction":
        """With the pairs of pieces; without a store, with none.

        Raises:
          UserError: the tokenizer has no pairs, most often because it makes everything lower case.
        """
        pairs = np.zeros((0, 2), np.int32) if store is None else cases(store.tokenizer)
        if store is not None and not len(pairs):
            raise UserError(
                "objective.kind=capitals learns which pieces are written with capitals, and the tokenizer has none "
                "that it has in lower case, too; train one that keeps capitals (data.tokenizer.lowercase=False)"
            )
        return BoundCapitalPrediction(self.masking.bind(store), pairs=pairs)

    def facts(self, examples):
        raise TypeError("CapitalPrediction has no pairs of pieces before `bind`")


@dataclasses.dataclass(frozen=True)
class BoundCapitalPrediction(CapitalPrediction):
    """`CapitalPrediction` with its pairs of pieces.

    Attributes:
      pairs: int32 [P, 2], the ids of a piece with capitals and of the same piece in lower case.
    """

    pairs: np.ndarray = dataclasses.field(kw_only=True, compare=False)

    def features_of(self, examples, draw, masked):
        lower = np.arange(examples.vocabulary.size, dtype=np.int32)
        lower[self.pairs[:, 0]] = self.pairs[:, 1]
        return super().features_of(examples, draw, dataclasses.replace(masked, tokens=lower[masked.tokens]))

    def facts(self, examples):
        facts = np.full(examples.vocabulary.size, -1, np.int32)
        facts[self.pairs] = [1, 0]
        continues = examples.vocabulary.continues_word[examples.ragged.tokens]
        is_word = ~continues & ~np.append(continues[1:], False)
        return np.where(is_word, facts[examples.ragged.tokens], -1)


def cases(tokenizer: Tokenizer) -> np.ndarray:
    """Of each piece whose lower case is another piece of the vocabulary, its id and that one's; int32 [P, 2]."""
    tokens = (token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids)
    # A piece of bytes that are no text has a spelling, too, whose lower case stands for other bytes.
    ids = {tokenizer.piece(token): token for token in tokens if "\ufffd" not in tokenizer.decode([token])}
    pairs = [(token, ids[piece.lower()]) for piece, token in ids.items() if ids.get(piece.lower(), token) != token]
    return np.array(pairs, np.int32).reshape(-1, 2)
