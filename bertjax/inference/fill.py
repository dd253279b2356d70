"""Fill [MASK]: the most probable pieces from a masked-LM head, and the sentence with the best piece at each mask."""

import dataclasses
from typing import Any

import jax
import numpy as np

from bertjax.data.labeled.base import WHERE, Record
from bertjax.inference.masked import MaskedPipeline
from bertjax.inference.views import MaskedViews
from bertjax.objectives.outputs import Output
from bertjax.runtime.errors import UserError

# Masks predicted per view of a text; a text with more masks gets further views.
CAPACITY = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Fill(MaskedPipeline):
    """Fills every `[MASK]` in a text. Each is predicted while the others stay masked.

    Attributes:
      top: number of pieces to return per mask.
    """

    top: int = 5

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.top <= self.model.encoder.vocab_size:
            raise UserError(
                f"top={self.top} must be between 1 and {self.model.encoder.vocab_size}, the size of the vocabulary"
            )

    def encode(self, records: list[Record]) -> MaskedViews:
        mask_id = self.vocabulary.mask_id
        encoded = self.model.tokenizer.encode_masked([record["text"] for record in records])
        texts = self.add_special_tokens(records, encoded)
        positions = [np.flatnonzero(ids == mask_id) for ids in texts.ragged.token_lists()]
        for record, ids, masks in zip(records, encoded, positions, strict=True):
            if mask_id not in ids:
                raise UserError(f"{record[WHERE]} has no [MASK]; write [MASK], in capital letters, in place of a word")
            # A mask was cut off with the end of a long text. Without an error it would silently get no guess.
            if ids.count(mask_id) > len(masks):
                raise UserError(
                    f"{record[WHERE]} has a [MASK] after the first {self.seq_len} tokens, which are all that the model "
                    "reads; shorten it"
                )
        return MaskedViews.of(texts, positions, mask_id, CAPACITY)

    def outputs(self, params, batch):
        """`log_probabilities` and `pieces`, [B, K, G]: the G best ids at each position, best first."""
        # On the device: only G numbers per mask are copied to the host, not the vocabulary.
        best, ids = jax.lax.top_k(self.log_probabilities(params, batch), self.top)
        return {"log_probabilities": Output(best, per="row"), "pieces": Output(ids, per="row")}

    def predictions(self, outputs, examples: MaskedViews) -> list[dict[str, Any]]:
        """{`masks`: [{`piece`, `probability`}, ...] per [MASK], best first; `filled`: text with the best pieces}."""
        tokenizer, is_used_MK = self.model.tokenizer, examples.positions_MK >= 0
        guesses = zip(
            np.broadcast_to(examples.text_of[:, None], is_used_MK.shape)[is_used_MK],
            examples.positions_MK[is_used_MK],
            outputs["pieces"][is_used_MK],
            np.exp(outputs["log_probabilities"][is_used_MK]),
            strict=True,
        )
        filled = [ids.copy() for ids in examples.texts.ragged.token_lists()]
        masks: list[list[list[dict]]] = [[] for _ in filled]
        for text, position, ids_G, probabilities_G in guesses:
            filled[text][position] = ids_G[0]
            masks[text].append(
                [
                    {"piece": tokenizer.piece(int(token)), "probability": float(str(probability))}
                    for token, probability in zip(ids_G, probabilities_G, strict=True)
                ]
            )
        return [
            {"masks": guesses_of_text, "filled": tokenizer.decode(ids)}
            for guesses_of_text, ids in zip(masks, filled, strict=True)
        ]
