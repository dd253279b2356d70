"""Replaces each [MASK] by a likely word drawn at random, for data augmentation (Jiao et al., 2020, algorithm 1)."""

import dataclasses
import re
from collections.abc import Iterator

import numpy as np

from bertjax.data.framing import special_tokens
from bertjax.data.labeled.base import Record
from bertjax.data.text.augmentation import Augmentation
from bertjax.inference.fill import CAPACITY, Fill
from bertjax.inference.views import MaskedViews


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
