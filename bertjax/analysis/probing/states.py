"""Hidden states after each layer, for words or texts, computed once and kept in a temporary file.

Probes read the states many times, in small slices. A memory-mapped file bounds memory use.
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
    """Open the units' states, float32 [units, L + 1, D], in a temporary file: embeddings first, then each layer.

    Args:
      encoder: the architecture.
      params: parameters with the root `encoder`.
      batches: core batches with all examples, rows packed or not; `example_ids_BN` are indices into `ragged`.
      ragged: the examples.
      unit_of: int64 [n], each token's unit, -1 for none. A unit's state is the mean over its tokens, which are all in
        one example: one token for a word, all tokens for a text.
      on_tokens: called with each batch's token count.
    """
    counts = np.bincount(unit_of[unit_of >= 0])
    shape = len(counts), encoder.layers + 1, encoder.width
    # The file has no name: the system deletes it even if the process is killed.
    with tempfile.TemporaryFile() as file:
        # A file of 0 bytes cannot be mapped.
        states = np.memmap(file, np.float32, "w+", shape=shape) if len(counts) else np.zeros(shape, np.float32)
        for batch in batches:
            rows, columns, sources = _cells(batch, ragged)
            wanted = unit_of[sources] >= 0
            if wanted.any():
                hidden_LBTD = np.asarray(hidden(encoder, params, batch))
                values = np.moveaxis(hidden_LBTD[:, rows[wanted], columns[wanted]], 0, 1)
                # `reduceat` adds consecutive rows, so tokens are sorted by unit.
                order = np.argsort(unit_of[sources[wanted]], kind="stable")
                units, starts = np.unique(unit_of[sources[wanted]][order], return_index=True)
                states[units] = np.add.reduceat(values[order], starts, axis=0) / counts[units, None, None]
            on_tokens(len(sources))
        yield states


@functools.partial(jax.jit, static_argnames="encoder")
def hidden(encoder: EncoderConfig, params: dict, batch: Arrays) -> jax.Array:
    """Return embeddings and states after each layer; float32 [L + 1, B, T, D]."""
    names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT")
    variables = {"params": params["encoder"], taps.CAPTURED: {"hidden": None}}
    encoded, state = Encoder(encoder).apply(variables, *(batch[name] for name in names), mutable=[taps.CAPTURED])
    return all_layers(state[taps.CAPTURED]["hidden"], encoded.hidden).astype(np.float32)


def _cells(batch: Arrays, ragged: Ragged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, column and index in `ragged.tokens` for each token of a batch."""
    rows, slots = np.nonzero(np.asarray(batch["example_ids_BN"]) >= 0)
    examples = np.asarray(batch["example_ids_BN"])[rows, slots]
    lengths = ragged.lengths[examples]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # The batch stores the column of [CLS]. It is an example's first token or, in XLNet's layout, its last.
    starts = np.asarray(batch["summary_positions_BN"])[rows, slots] - ragged.cls_index[examples]
    columns = np.repeat(starts, lengths) + within
    return np.repeat(rows, lengths), columns, np.repeat(ragged.offsets[examples], lengths) + within
