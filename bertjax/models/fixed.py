"""Attention heads by position: fixed ones (Raganato et al., 2020, arXiv 2002.10260), and learned ones that start so.

A fixed head attends by position only: it has values and its slice of the output projection, but no queries and keys. In
the table, token i attends to token j, and i, j < n are positions within an example of n tokens. Each pattern is
normalized to sum 1 over j. A token with nothing to attend to, such as the first one in `previous`, attends to itself.

| pattern | weight of token j |
|---|---|
| `current`, `previous`, `next` | 1 for j = i, i - 1, i + 1 |
| `left` | (j + 1)^3 for j <= i - 2 |
| `right` | (n - j)^3 for j >= i + 2 |
| `start` | (n - j)^3 |
| `end` | (j + 1)^3 |

All tokens of an example count, including [CLS] and [SEP]. Attention dropout does not apply to fixed maps.

With `init_neighbors`, learned heads of the first layers start at the tokens beside their own, and training is free to
change them. In a masked language model that starts at random, attention stays almost uniform for hundreds of steps, and
the loss falls fast once heads look at neighbors (docs/results/tiny.md). Trockman & Kolter (2023, "Mimetic
initialization of self-attention layers") start heads from what trained ones look like, too.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.models.layers import precision_of
from bertjax.models.visibility import Visibility
from bertjax.runtime.errors import UserError

FIXED_PATTERNS = ("current", "previous", "next", "left", "right", "start", "end")
# Distances at which learned heads start, in the first layers; further heads and layers start at random.
OFFSETS, LAYERS = (-1, 1, -2, 2), 2
# Returns context and probabilities, like `bertjax.models.attention.attend`.
Attend = Callable[..., tuple[jax.Array, jax.Array]]


def fixed_maps(patterns: Sequence[str], visibility: Visibility, columns_BQ: jax.Array | None = None) -> jax.Array:
    """Return float32 attention maps [B, P, Q, T]; tokens never attend to another example.

    Args:
      patterns: names from `FIXED_PATTERNS`.
      visibility: without window and ranks.
      columns_BQ: int, columns of the queries; all tokens by default.
    """
    examples_BT = visibility.examples_BT
    columns_T = jnp.arange(examples_BT.shape[1])
    same_BTT = visibility.mask_BQT()
    # Position within the example: the number of earlier columns with the same example.
    places_BT = jnp.sum(same_BTT & (columns_T < columns_T[:, None]), axis=-1)
    rising_B1T = ((places_BT + 1).astype(jnp.float32) ** 3)[:, None]
    falling_B1T = ((same_BTT.sum(axis=-1) - places_BT).astype(jnp.float32) ** 3)[:, None]
    if columns_BQ is None:
        columns_BQ = jnp.broadcast_to(columns_T, examples_BT.shape)
    offsets_BQT = columns_T - columns_BQ[..., None]
    weights = {
        "current": offsets_BQT == 0,
        "previous": offsets_BQT == -1,
        "next": offsets_BQT == 1,
        "left": (offsets_BQT <= -2) * rising_B1T,
        "right": (offsets_BQT >= 2) * falling_B1T,
        "start": falling_B1T,
        "end": rising_B1T,
    }
    same_BQT = visibility.mask_BQT(columns_BQ)

    def normalized(pattern: str) -> jax.Array:
        weights_BQT = weights[pattern] * same_BQT.astype(jnp.float32)
        sums_BQ1 = weights_BQT.sum(axis=-1, keepdims=True)
        alone_BQT = weights["current"].astype(jnp.float32)
        return jnp.where(sums_BQ1 > 0, weights_BQT / jnp.maximum(sums_BQ1, 1.0), alone_BQT)

    return jnp.stack([normalized(pattern) for pattern in patterns], axis=1)


def with_fixed_heads(
    attend: Attend, patterns: Sequence[str], visibility: Visibility, columns_BQ: jax.Array | None
) -> Attend:
    """Wrap `attend` so that the first heads of the values attend by fixed patterns.

    Args:
      attend: computes the learned heads.
      patterns, visibility, columns_BQ: as in `fixed_maps`.
    """

    def attend_all(query_BQHD, key_BTHD, value_BTHD, *others):
        fixed_BTPD, learned_BTHD = jnp.split(value_BTHD, [len(patterns)], axis=2)
        maps_BPQT = fixed_maps(patterns, visibility, columns_BQ).astype(value_BTHD.dtype)
        context_BQPD = jnp.einsum("bpqt,btpd->bqpd", maps_BPQT, fixed_BTPD, precision=precision_of(value_BTHD.dtype))
        context_BQHD, probabilities_BHQT = attend(query_BQHD, key_BTHD, learned_BTHD, *others)
        context_BQHD = jnp.concatenate([context_BQPD, context_BQHD], axis=2)
        return context_BQHD, jnp.concatenate([maps_BPQT, probabilities_BHQT], axis=1)

    return attend_all


def check_init_neighbors(encoder: Any) -> None:
    """Raise UserError if attention reads no table of positions, or one whose rows cannot all be orthogonal.

    Args:
      encoder: an `EncoderConfig`.
    """
    has_table = encoder.block.kind == "bert" and encoder.embeddings.has_position_table and not encoder.has_projection
    if not has_table or encoder.max_positions > encoder.width:
        raise UserError(
            "init_neighbors=True needs BERT's layers, and a table of at most as many positions as they have channels; "
            f"set it to False for model.block.kind={encoder.block.kind} with model.width={encoder.width}, "
            f"model.embeddings.width={encoder.embedded_width} and model.max_positions={encoder.max_positions}"
        )


def start_at_neighbors(encoder: Any, params: dict, key: jax.Array) -> dict:
    """Return params with orthogonal positions, and the heads' distances added to queries [L, D, D] and keys.

    K maps each position to a direction of its own, and Q maps it to the direction of the position at the head's
    distance, so that the two agree there alone.
    """
    tables, width, size = encoder.embeddings, encoder.width, encoder.head_channels
    keys = iter(jax.random.split(key, 1 + LAYERS * len(OFFSETS)))
    unit_PD = jax.nn.initializers.orthogonal()(next(keys), (encoder.max_positions, width))
    # As long as random rows are, so that normalization gives each of the summed tables its share of D squared. In the
    # first layer, the token at a head's distance gets about twice the attention of all others, whose logits are near 0.
    length, squared = encoder.init_stddev * width**0.5, width / (2 + bool(tables.segments) + bool(tables.task_types))
    scale = (math.log(2 * len(unit_PD)) * size**0.5 / squared) ** 0.5
    # With more positions than channels of a head, its directions are only nearly orthogonal.
    directions = jax.nn.initializers.orthogonal(scale * max(1.0, len(unit_PD) / size) ** 0.5)
    layers = params["encoder"]["layers"]
    attention = dict(layers["attention"])
    for layer in range(min(LAYERS, len(attention["query"]["kernel"]))):
        for head, offset in enumerate(OFFSETS[: encoder.learned_heads]):
            own_PC = directions(next(keys), (len(unit_PD), size))
            columns = slice(head * size, (head + 1) * size)
            # The place at the end of the table has the direction of the first one as its next: rows rarely reach it.
            for name, wanted_PC in (("query", jnp.roll(own_PC, -offset, axis=0)), ("key", own_PC)):
                kernel_LDD = attention[name]["kernel"].at[layer, :, columns].add(unit_PD.T @ wanted_PC)
                attention[name] = attention[name] | {"kernel": kernel_LDD}
    embeddings = params["encoder"]["embeddings"]
    position = embeddings["position"].at[tables.position_offset :].set(length * unit_PD)
    started = {"embeddings": embeddings | {"position": position}, "layers": layers | {"attention": attention}}
    return params | {"encoder": params["encoder"] | started}
