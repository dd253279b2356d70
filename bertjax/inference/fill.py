"""Fill [MASK]: the most probable pieces from a masked-LM head, or likely words drawn at random (`Refill`)."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from bertjax.data.framing import special_tokens
from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.text.augmentation import Augmentation
from bertjax.inference.masked import MaskedPipeline, MaskedViews
from bertjax.objectives.host import Output
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
            raise UserError(f"top={self.top} must be between 1 and the vocabulary's {self.model.encoder.vocab_size}")

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
                    f"{record[WHERE]} has a [MASK] after {self.seq_len} tokens, all that the model reads; shorten it"
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


@dataclasses.dataclass(frozen=True, eq=False)
class Refill(Fill):
    """Fills every `[MASK]` of a text with one of the `top` pieces that start a word. The rest stays as it is written.

    A text that is longer than T is read in windows around its masks.

    Attributes:
      augmentation: draws the piece; records carry their `number`.
    """

    augmentation: Augmentation = Augmentation()

    def encode(self, records: list[Record]) -> MaskedViews:
        """Return the windows of the texts; each carries the `index` of its record and where it starts."""
        windows, encoded, positions = [], [], []
        texts = self.model.tokenizer.encode_masked([record["text"] for record in records])
        room = self.seq_len - special_tokens(1)
        for index, (record, ids) in enumerate(zip(records, texts, strict=True)):
            for start, masks in _windows(np.flatnonzero(np.equal(ids, self.vocabulary.mask_id)), len(ids), room):
                windows.append(dict(record) | {"index": index, "start": start})
                encoded.append(ids[start : start + room])
                positions.append(masks - start)
        examples = self.add_special_tokens(windows, encoded)
        if not self.vocabulary.cls_last:
            positions = [places + 1 for places in positions]  # after [CLS]
        return MaskedViews.of(examples, positions, self.vocabulary.mask_id, CAPACITY)

    def predictions(self, outputs, examples: MaskedViews) -> list[dict]:
        """Return {`filled`: the text}; a [MASK] without a candidate takes the best piece."""
        is_used_MK, tokenizer = examples.positions_MK >= 0, self.model.tokenizer
        windows = np.broadcast_to(examples.text_of[:, None], is_used_MK.shape)[is_used_MK]
        is_word_V = ~(self.vocabulary.continues_word | self.vocabulary.is_special)
        chosen: dict[int, list[str]] = {}
        for window, position, ids_G in zip(windows, examples.positions_MK[is_used_MK], outputs["pieces"][is_used_MK]):
            record = examples.texts.records[window]
            # A piece such as ##ing cannot replace a word. SentencePiece's space starts one, but has no text.
            words = [text for piece in ids_G[is_word_V[ids_G]] if (text := tokenizer.decode([piece]).strip())]
            words = words or [tokenizer.decode([ids_G[0]]).strip()]
            best = self.augmentation.candidate(record["number"], record["start"] + int(position), len(words))
            chosen.setdefault(record["index"], []).append(words[best])
        texts = {record["index"]: record["text"] for record in examples.texts.records}
        return [{"filled": _filled(text, tokenizer.mask_symbol, chosen[index])} for index, text in texts.items()]


def _windows(masks: np.ndarray, length: int, room: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the start of each window of `room` tokens, and the masks in it (int64, of the whole text), all once.

    The first mask of a window has a quarter of it before; the last one has as much behind, if the text goes on.
    """
    while len(masks):
        start = int(np.clip(masks[0] - room // 4, 0, max(0, length - room)))
        stop = start + room if start + room >= length else start + room - room // 4
        inside = max(1, int(np.searchsorted(masks, stop)))
        yield start, masks[:inside]
        masks = masks[inside:]


def _filled(text: str, symbol: re.Pattern[str], pieces: list[str]) -> str:
    """Return a text with the pieces in place of its [MASK]s, in order."""
    left = iter(pieces)
    return symbol.sub(lambda _: next(left), text)
