"""Words for [MASK]: the pieces that a masked-LM head finds likeliest, and the sentence that the best ones make."""

import dataclasses
from typing import Any

import jax
import numpy as np

from bertjax.data.labeled.base import WHERE, Record
from bertjax.errors import UserError
from bertjax.inference.masked import MaskedUse
from bertjax.inference.texts import Readings, framed, readings

# Masks that one reading of a text asks for; a text with more is read again.
CAPACITY = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Fill(MaskedUse):
    """Fills every `[MASK]` of a text. Each is guessed while the others stay masked, none in view of another's guess.

    Attributes:
      top: pieces that are told for each mask.
    """

    top: int = 5

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.top <= self.model.encoder.vocab_size:
            raise UserError(f"top={self.top} must lie between 1 and the {self.model.encoder.vocab_size} pieces")

    def encode(self, records: list[Record]) -> Readings:
        mask_id = self.vocabulary.mask_id
        encoded = self.model.tokenizer.encode_masked([record["text"] for record in records])
        texts = framed(records, encoded, self.vocabulary, self.seq_len)
        positions = [np.flatnonzero(ids == mask_id) for ids in texts.ragged.token_lists()]
        for record, ids, found in zip(records, encoded, positions, strict=True):
            if mask_id not in ids:
                raise UserError(f"{record[WHERE]} has no [MASK]; write [MASK] where a word is to be filled in")
            if ids.count(mask_id) > len(found):
                raise UserError(
                    f"{record[WHERE]} has a [MASK] beyond the {self.seq_len} tokens that the model reads; shorten it"
                )
        return readings(texts, positions, mask_id, CAPACITY)

    def outputs(self, params, batch):
        """`log_probabilities_BNKG` and `pieces_BNKG`, the best ids of each position, best first."""
        best, ids = jax.lax.top_k(self.log_probabilities(params, batch), self.top)
        return {"log_probabilities_BNKG": best[:, None], "pieces_BNKG": ids[:, None]}

    def predictions(self, outputs, examples: Readings, records) -> list[dict[str, Any]]:
        """{`masks`: for each [MASK], [{`piece`, `probability`}, ...], best first; `filled`: the text with the best}."""
        tokenizer, asked_MK = self.model.tokenizer, examples.positions_MK >= 0
        guesses = zip(
            np.broadcast_to(examples.text_of[:, None], asked_MK.shape)[asked_MK],
            examples.positions_MK[asked_MK],
            outputs["pieces_BNKG"][asked_MK],
            np.exp(outputs["log_probabilities_BNKG"][asked_MK]),
            strict=True,
        )
        masks: list[list[list[dict]]] = [[] for _ in records]
        filled = [ids.copy() for ids in examples.texts.ragged.token_lists()]
        for text, position, ids_G, probabilities_G in guesses:
            filled[text][position] = ids_G[0]
            masks[text].append(
                [
                    {"piece": tokenizer.piece(int(token)), "probability": float(str(probability))}
                    for token, probability in zip(ids_G, probabilities_G, strict=True)
                ]
            )
        return [{"masks": of, "filled": tokenizer.decode(ids)} for of, ids in zip(masks, filled, strict=True)]
