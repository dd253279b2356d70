"""Test rows for ONNX files: random texts and pairs, tokenized and laid out as `bertjax predict` does."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bertjax.config.export import Export
from bertjax.data.batch import core, place
from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import special_tokens, truncate

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# (tokens per text, for each of B texts; row length T). The first batch has padding, and one text that is cut.
_SHAPES = (((3, 30, 9), 24), ((5,), 7))
# Tokens of a third batch, if the model reads as many. Longer rows would need seconds.
_LONGEST = 512


class Rows(NamedTuple):
    """The same rows as inputs of an ONNX file and as a bertjax batch.

    Attributes:
      inputs: {input name: int64 [B, T]}.
      batch: the core batch, one example per row, padded on the right.
    """

    inputs: dict[str, np.ndarray]
    batch: dict[str, np.ndarray]


def inputs_of(export: Export) -> tuple[str, ...]:
    """Return the input names; an encoder without segments has no `token_type_ids`."""
    return INPUTS if export.encoder.embeddings.segments else INPUTS[:-1]


def rows(export: Export) -> Iterator[Rows]:
    """Yield rows of random texts and pairs, also padded on the left if [CLS] comes last, as XLNet's tokenizer pads.

    Texts are random tokens, decoded and tokenized again, so no special symbol and no layout is assumed.
    """
    draw, tokenizer = np.random.default_rng(0), export.tokenizer
    # Special symbols are left out: in a text their spelling is ordinary text, which would be cut into other tokens.
    ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))

    def texts(lengths: tuple[int, ...]) -> list[list[int]]:
        return tokenizer.encode([tokenizer.decode(draw.choice(ordinary, length).tolist()) for length in lengths])

    most = export.lengths.example
    for lengths, longest in (*_SHAPES, ((_LONGEST, _LONGEST // 2), _LONGEST)):
        seq_len = min(longest, most)
        for is_pair in (False, True) if seq_len > special_tokens(2, tokenizer.pair_separators) else (False,):
            batch = _batch(export, texts(lengths), texts(lengths[::-1]) if is_pair else None, seq_len)
            yield Rows(_inputs(export, batch), batch)
            if tokenizer.cls_last:
                yield Rows(_padded_left(_inputs(export, batch)), batch)


def _batch(
    export: Export, first: list[list[int]], second: list[list[int]] | None, seq_len: int
) -> dict[str, np.ndarray]:
    vocabulary = Vocabulary.of(export.tokenizer)
    first, second, _ = truncate(first, second, seq_len, vocabulary.pair_separators)
    ragged = add_special_tokens(first, second, vocabulary, labels={})
    batch = core(place(ragged, np.arange(len(first))[:, None], int(ragged.lengths.max()), vocabulary))
    if export.encoder.embeddings.segments == 1:  # as the exported tokenizer gives them
        batch["segments_BT"] = np.zeros_like(batch["segments_BT"])
    return batch


def _inputs(export: Export, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    every = (batch["tokens_BT"], batch["examples_BT"] > 0, batch["segments_BT"])
    named = dict(zip(INPUTS, every, strict=True))
    return {name: named[name].astype(np.int64) for name in inputs_of(export)}


def _padded_left(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    padding_B = inputs["attention_mask"].shape[1] - inputs["attention_mask"].sum(axis=1)
    return {
        name: np.stack([np.roll(row, padding) for row, padding in zip(values, padding_B, strict=True)])
        for name, values in inputs.items()
    }
