"""Fill [MASK]: the most probable pieces from a masked-LM head, or likely words drawn at random (`Refill`)."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.data.batch import PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.framing import special_tokens
from bertjax.data.labeled.base import WHERE, LabeledExamples, Record
from bertjax.data.text.augmentation import Augmentation
from bertjax.inference.base import Pipeline
from bertjax.objectives.host import Output
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class MaskedViews:
    """`Examples`: views of texts, each with [MASK] at up to K positions whose tokens are predicted.

    A text may have any number of views. The labels are `positions` (int64 [M, K], 0 for unused places), `originals`
    (int32 [M, K], the masked tokens) and `is_used` (bool [M, K]).

    Attributes:
      texts: the texts before masking.
      mask_id: id of [MASK].
      text_of: int64 [M], index of each view's text.
      positions_MK: int64, -1 for unused places, which come last.
    """

    texts: LabeledExamples
    mask_id: int
    text_of: np.ndarray
    positions_MK: np.ndarray

    @classmethod
    def of(cls, texts: LabeledExamples, positions: Sequence[np.ndarray], mask_id: int, capacity: int) -> "MaskedViews":
        """Split each text's positions into views with at most K = `capacity` positions."""
        text_of, rows = [], []
        for text, all_of_text in enumerate(positions):
            for first in range(0, len(all_of_text), capacity):
                part = all_of_text[first : first + capacity]
                text_of.append(text)
                # Unused places are -1: position 0 is a real token.
                rows.append(np.pad(part, (0, capacity - len(part)), constant_values=-1))
        positions_MK = np.array(rows, np.int64).reshape(-1, capacity)
        return cls(texts, mask_id, np.array(text_of, np.int64), positions_MK)

    @property
    def notes(self) -> dict[str, int]:
        """The notes of the texts."""
        return self.texts.notes

    def __len__(self) -> int:
        return len(self.text_of)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Token counts for views `start` to `stop` (default: the end); int32."""
        return self.texts.lengths()[self.text_of[start:stop]]

    def take(self, indices: np.ndarray) -> Ragged:
        """The views at `indices` (int64 [M]), in that order."""
        ragged, positions_MK = self.texts.take(self.text_of[indices]), self.positions_MK[indices]
        # Views are built only when a batch needs them: a text of n tokens has n views, n times its memory.
        cells_MK = ragged.offsets[:-1, None] + np.maximum(positions_MK, 0)
        tokens, originals_MK = ragged.tokens.copy(), ragged.tokens[cells_MK]
        is_used_MK = positions_MK >= 0
        tokens[cells_MK[is_used_MK]] = self.mask_id
        return dataclasses.replace(
            ragged,
            tokens=tokens,
            labels={"positions": np.maximum(positions_MK, 0), "originals": originals_MK, "is_used": is_used_MK},
            ids=np.asarray(indices, np.int64),
        )


def masked_lm(model: Export) -> MaskedLM | None:
    """Return the masked-LM objective of the first task with such a head; None if the model has none.

    A head named `mlm` on the encoder is enough. The configuration is read only for ELECTRA and permutation models.
    """
    heads = model.params.get("heads", {})
    names = heads.get(MaskedLM.head, {}).keys()
    has_decoder = "word" in names  # a table of its own, as in `DecoderHead`
    if (has_decoder or names >= {"transform", "norm", "word_bias"}) and "generator" not in model.params:
        return MaskedLM()
    objectives = (task.objective for task in config_of(model).tasks.values()) if heads else ()
    return next((mlm for mlm in objectives if isinstance(mlm, MaskedLM) and mlm.head in heads), None)


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedPipeline(Pipeline):
    """A pipeline with a masked-LM head; its examples are `MaskedViews`."""

    def __post_init__(self):
        if masked_lm(self.model) is None:
            raise UserError(
                "the model has no masked-LM head, which [MASK] and pseudo-log-likelihoods need; use --do=embed, or "
                "name a model that has one"
            )

    def features(self, placed: PlacedExamples) -> dict[str, np.ndarray]:
        """`<term>_{positions,labels,weights}_BK`, like the objective's features; unused places have weight 0."""
        labels, term = placed.ragged.labels, self.objective.term
        values = {"positions": labels["positions"], "labels": labels["originals"], "weights": labels["is_used"]}
        return {f"{term}_{name}_BK": _to_rows(placed, values_MK) for name, values_MK in values.items()}

    @functools.cached_property
    def objective(self) -> MaskedLM:
        return cast(MaskedLM, masked_lm(self.model))  # `__post_init__` refuses a model without one

    def log_probabilities(self, params: dict, batch: dict[str, jax.Array]) -> jax.Array:
        """Device: return log probabilities in nats, float32 [B, K, V]; V without vocabulary padding."""
        model = self.objective.model(self.model.encoder)
        return jax.nn.log_softmax(self.objective.apply(model, params, batch, method=self.objective.mlm_logits))


def _to_rows(placed: PlacedExamples, values_MK: np.ndarray) -> np.ndarray:
    dtype = np.float32 if values_MK.dtype == bool else np.int32
    values_BK = np.zeros((placed.shape[0], values_MK.shape[1]), dtype)
    values_BK[placed.rows] = values_MK
    return values_BK


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
