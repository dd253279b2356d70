"""Replaces each [MASK] by a likely word drawn at random, for data augmentation (Jiao et al., 2020, algorithm 1)."""

import dataclasses

import numpy as np

from bertjax.data.labeled.base import Record
from bertjax.data.text.augmentation import Augmentation
from bertjax.inference.fill import CAPACITY, Fill
from bertjax.inference.views import MaskedViews


@dataclasses.dataclass(frozen=True, eq=False)
class Refill(Fill):
    """Fills every `[MASK]` with one of the `top` pieces that start a word. A long text is cut to T tokens.

    Attributes:
      augmentation: draws the piece; records carry their `number`.
    """

    augmentation: Augmentation = Augmentation()

    def encode(self, records: list[Record]) -> MaskedViews:
        encoded = self.model.tokenizer.encode_masked([record["text"] for record in records])
        texts = self.add_special_tokens(records, encoded)
        positions = [np.flatnonzero(ids == self.vocabulary.mask_id) for ids in texts.ragged.token_lists()]
        return MaskedViews.of(texts, positions, self.vocabulary.mask_id, CAPACITY)

    def predictions(self, outputs, examples: MaskedViews) -> list[dict]:
        """Return {`filled`: the text}; a [MASK] without a candidate takes the best piece."""
        is_used_MK = examples.positions_MK >= 0
        texts = np.broadcast_to(examples.text_of[:, None], is_used_MK.shape)[is_used_MK]
        filled = [ids.copy() for ids in examples.texts.ragged.token_lists()]
        is_word_V = ~(self.vocabulary.continues_word | self.vocabulary.is_special)
        for text, position, ids_G in zip(texts, examples.positions_MK[is_used_MK], outputs["pieces"][is_used_MK]):
            # A piece such as ##ing cannot replace a whole word.
            words = ids_G[is_word_V[ids_G]]
            number = examples.texts.records[text]["number"]
            chosen = self.augmentation.candidate(number, int(position), len(words)) if len(words) else 0
            filled[text][position] = words[chosen] if len(words) else ids_G[0]
        return [{"filled": self.model.tokenizer.decode(ids)} for ids in filled]
