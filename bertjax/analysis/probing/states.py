"""States of words or texts after each layer, computed once and kept in a temporary file.

Probes read the states of the same words many times, in small slices. A memory-mapped file holds them, so that memory
does not grow with their number.
"""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from bertjax.data.examples import Ragged
from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.mixing import all_layers
from bertjax.objectives.base import Arrays


@contextlib.contextmanager
def computed(
    encoder: EncoderConfig,
    params: dict,
    batches: Iterable[Arrays],
    ragged: Ragged,
    unit_of: np.ndarray,
    on_tokens: Callable[[int], object] = lambda tokens: None,
) -> Iterator[np.ndarray]:
    """Open the states of units, float32 [units, L + 1, D] in a temporary file: the embeddings, then each layer's.

    Args:
      encoder: the architecture.
      params: parameters with the root `encoder`.
      batches: core batches of all examples, rows packed or not; `example_ids_BN` are indices into `ragged`.
      ragged: the examples.
      unit_of: int64 [n], the unit of each token of the examples, -1 for none. The state of a unit is the mean of its
        tokens, which are of one example: one token for a word, all for a text.
      on_tokens: called with the number of tokens of each batch.
    """
    counts = np.bincount(unit_of[unit_of >= 0])
    shape = len(counts), encoder.layers + 1, encoder.width
    with tempfile.TemporaryFile() as file:
        states = np.memmap(file, np.float32, "w+", shape=shape) if len(counts) else np.zeros(shape, np.float32)
        for batch in batches:
            rows, columns, sources = _cells(batch, ragged)
            wanted = unit_of[sources] >= 0
            if wanted.any():
                hidden_LBTD = np.asarray(hidden(encoder, params, batch))
                values = np.moveaxis(hidden_LBTD[:, rows[wanted], columns[wanted]], 0, 1)
                order = np.argsort(unit_of[sources[wanted]], kind="stable")
                units, starts = np.unique(unit_of[sources[wanted]][order], return_index=True)
                states[units] = np.add.reduceat(values[order], starts, axis=0) / counts[units, None, None]
            on_tokens(len(sources))
        yield states


@functools.partial(jax.jit, static_argnames="encoder")
def hidden(encoder: EncoderConfig, params: dict, batch: Arrays) -> jax.Array:
    """Return the embeddings and the states after each layer; float32 [L + 1, B, T, D]."""
    names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT")
    variables = {"params": params["encoder"], taps.CAPTURED: {"hidden": None}}
    encoded, state = Encoder(encoder).apply(variables, *(batch[name] for name in names), mutable=[taps.CAPTURED])
    return all_layers(state[taps.CAPTURED]["hidden"], encoded.hidden).astype(np.float32)


def _cells(batch: Arrays, ragged: Ragged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, column and index in `ragged.tokens` of each token of a batch."""
    rows, slots = np.nonzero(np.asarray(batch["example_ids_BN"]) >= 0)
    examples = np.asarray(batch["example_ids_BN"])[rows, slots]
    lengths = ragged.lengths[examples]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # The batch has the column of [CLS], which is the first token of an example or, in XLNet's layout, the last one.
    starts = np.asarray(batch["summary_positions_BN"])[rows, slots] - ragged.cls_index[examples]
    columns = np.repeat(starts, lengths) + within
    return np.repeat(rows, lengths), columns, np.repeat(ragged.offsets[examples], lengths) + within
