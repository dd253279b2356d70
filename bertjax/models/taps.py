"""Taps: per-layer values to capture and masks to apply, passed as Flax variables of an encoder.

    variables = {"params": params, "taps": {"encoder": {"head_mask": head_mask_LH}}}
    logits, state = model.apply(variables, batch, method=objective.logits, mutable=["captured"])
    attention_LBHTT = state["captured"]["encoder"]["attention"]

The path is the encoder's: `encoder`, `generator/encoder`, or none for an `Encoder` on its own. No function signature in
between mentions taps, so they work with every objective.

`taps` holds masks, float arrays that scale activations:
- `head_mask` [L, H] scales each head's context; [L, H, B, N] does so for example n in row b.
- `feedforward_mask` [L, F] scales the intermediate activations; [L, F, B, N] does so for example n in row b.
- `layer_mask` [L] scales each layer's update: the output is mask * layer(x) + (1 - mask) * x, so 0 skips a layer.
- `context_offset` [L, B, T, H, D / H] is added to each head's context; its gradient at 0 is the context's gradient.

`captured` receives values from every layer, stacked on L: all of `NAMES` by default. To capture only some, pass
`"captured": {"encoder": dict.fromkeys(["hidden", "keys"])}` among the variables. With `dict.fromkeys(["hidden",
"keys"], (5, 11))`, only layers 5 and 11 (counted from 0) are captured, and L is 2. With `sharing_groups` above 1, only
all layers can be captured.
- `hidden` [L + 1, B, T, D]: the embeddings, then each layer's output.
- `attention` [L, B, H, T, T]: probabilities before dropout; needs `attention="plain"`.
- `queries`, `keys`, `values`, `context` [L, B, T, H, D / H]: queries and keys as multiplied, after rotary positions;
  context after `head_mask`, as the output projection reads it. Fixed heads have no queries and keys.
- `feedforward` [L, B, T, F]: intermediate activations after `feedforward_mask`; both mean a layer's last network.

If only some positions are read, the last layer runs only there: L is one less, and `last` holds the last layer's values
at its Q positions, the summaries followed by `read_BK` (T remains the axis of its keys and values). With `streams`,
the states are the T + K of both. LSTM layers have only `hidden` and `layer_mask`.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

TAPS, CAPTURED = "taps", "captured"
HEAD_MASK, FEEDFORWARD_MASK = MASKS = ("head_mask", "feedforward_mask")
LAYER_MASK, CONTEXT_OFFSET = "layer_mask", "context_offset"
HIDDEN, ATTENTION = "hidden", "attention"
NAMES = (HIDDEN, ATTENTION, "queries", "keys", "values", "context", "feedforward")
LAST = "last"


def masks_of(encoder: nn.Module) -> dict[str, jax.Array]:
    """Return the masks {name: [L, ...]} passed to an encoder.

    Raises:
      ValueError: a mask has an unknown name or a wrong shape.
    """
    if encoder.is_initializing():
        return {}
    masks, config = dict(encoder.variables.get(TAPS, {})), encoder.config
    # {name: (possible axes, the place of each axis whose length is known, and this length)}
    known = {
        HEAD_MASK: ("[L, H] or [L, H, B, N]", {0: config.layers, 1: config.heads}),
        FEEDFORWARD_MASK: ("[L, F] or [L, F, B, N]", {0: config.layers, 1: config.feedforward}),
        LAYER_MASK: ("[L]", {0: config.layers}),
        CONTEXT_OFFSET: ("[L, B, T, H, D / H]", {0: config.layers, 3: config.heads}),
    }
    for name, mask in masks.items():
        if name not in config.block.masks:
            raise ValueError(f"taps has no {name!r}; choose from {', '.join(config.block.masks)}")
        axes, lengths = known[name]
        has_axes = mask.ndim in [shape.count(",") + 1 for shape in axes.split(" or ")]
        if not has_axes or any(mask.shape[place] != length for place, length in lengths.items()):
            raise ValueError(f"{name} has shape {mask.shape}; pass {axes} with {list(lengths.values())} of them")
    return masks


def names_of(encoder: nn.Module) -> tuple[str, ...]:
    """Return the names of the values to capture.

    Raises:
      ValueError: a name is unknown.
    """
    # The caller asks for capture with mutable=["captured"]; without it, `capture` does nothing.
    if encoder.is_initializing() or not encoder.is_mutable_collection(CAPTURED):
        return ()
    known = encoder.config.block.captures
    names = tuple(encoder.variables.get(CAPTURED, {})) or known
    if unknown := sorted(set(names) - set(known) - {LAST}):
        raise ValueError(f"captured has no {', '.join(unknown)}; choose from {', '.join(known)}")
    return tuple(name for name in names if name != LAST)


def layer_variables(masks: Mapping[str, jax.Array]) -> dict:
    """Return one layer's `taps`, at the paths of the modules that read them."""
    variables: dict = {}
    if of_attention := {name: masks[name] for name in (HEAD_MASK, CONTEXT_OFFSET) if name in masks}:
        variables["attention"] = of_attention
    if FEEDFORWARD_MASK in masks:
        variables[FEEDFORWARD_MASK] = masks[FEEDFORWARD_MASK]
    return {TAPS: variables} if variables else {}


def capture(module: nn.Module, name: str, value: jax.Array) -> None:
    """Store a value of a layer if capturing is on."""
    if module.is_mutable_collection(CAPTURED) and not module.is_initializing():
        module.put_variable(CAPTURED, name, value)


def scale_layer(output: jax.Array, replaced: jax.Array, masks: Mapping[str, jax.Array]) -> jax.Array:
    """Return mask * output + (1 - mask) * replaced states, if there is a `layer_mask`."""
    if LAYER_MASK not in masks:
        return output
    mask = masks[LAYER_MASK].astype(output.dtype)
    return mask * output + (1 - mask) * replaced


def scale_heads(
    module: nn.Module, context_BQHD: jax.Array, examples_BT: jax.Array, columns_BQ: jax.Array | None
) -> jax.Array:
    """Add `context_offset` to each head's context and multiply by `head_mask`, if passed.

    Args:
      examples_BT: int, 1-based index of each token's example; a mask per example leaves padding (0) unscaled.
      columns_BQ: int, columns of the queries; None for all tokens.
    """
    if module.has_variable(TAPS, CONTEXT_OFFSET):
        offset_BQHD = module.get_variable(TAPS, CONTEXT_OFFSET).astype(context_BQHD.dtype)
        if columns_BQ is not None:
            offset_BQHD = jnp.take_along_axis(offset_BQHD, columns_BQ[..., None, None], axis=1)
        context_BQHD = context_BQHD + offset_BQHD
    if not module.has_variable(TAPS, HEAD_MASK):
        return context_BQHD
    mask = module.get_variable(TAPS, HEAD_MASK).astype(context_BQHD.dtype)
    if mask.ndim == 1:
        return context_BQHD * mask[:, None]
    examples_BQ = examples_BT if columns_BQ is None else jnp.take_along_axis(examples_BT, columns_BQ, axis=1)
    mask_BNH = jnp.moveaxis(mask, 0, -1)
    # Examples count from 1; entry 0 is padding, with mask 1.
    with_padding = jnp.concatenate([jnp.ones_like(mask_BNH[:, :1]), mask_BNH], axis=1)
    return context_BQHD * jnp.take_along_axis(with_padding, examples_BQ[..., None], axis=1)[..., None]


def scale_feedforward(
    module: nn.Module, expanded_BQF: jax.Array, examples_BT: jax.Array, columns_BQ: jax.Array | None
) -> jax.Array:
    """Multiply intermediate activations by `feedforward_mask`, if passed; arguments as above."""
    if not module.has_variable(TAPS, FEEDFORWARD_MASK):
        return expanded_BQF
    mask = module.get_variable(TAPS, FEEDFORWARD_MASK).astype(expanded_BQF.dtype)
    if mask.ndim == 1:
        return expanded_BQF * mask
    examples_BQ = examples_BT if columns_BQ is None else jnp.take_along_axis(examples_BT, columns_BQ, axis=1)
    # A one-hot matmul instead of a gather, whose gradient would be a scatter over [B, Q, F].
    is_member_BQN = (examples_BQ[..., None] == 1 + jnp.arange(mask.shape[-1])).astype(mask.dtype)
    scale_BQF = jnp.einsum("bqn,fbn->bqf", is_member_BQN, mask, precision=jax.lax.Precision.HIGHEST)
    return expanded_BQF * (scale_BQF + (examples_BQ == 0).astype(mask.dtype)[..., None])
