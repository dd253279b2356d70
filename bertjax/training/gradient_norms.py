"""Gradient norms by layer, which show where a gradient vanishes (Mosbach et al., 2021, arXiv 2006.04884)."""

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.models.model import Model
from bertjax.training.param_paths import leaves_of


def gradient_norms(gradient: dict, model: Model) -> dict[str, jax.Array]:
    """Return {`grad_norm/<group>`: norm}, where a group is the embeddings, a layer, the pooler, a head, and so on.

    Parameters that several layers share count for the last of these layers.

    Args:
      gradient: a gradient, shaped like the params.
      model: the model, whose encoders have their own depths.
    """
    encoders = {"encoder": model.config, "generator/encoder": model.generator}
    squares: dict[str, Any] = collections.defaultdict(float)
    for path, leaf in leaves_of(gradient).items():
        if stack := re.match(r"((.*?encoder)/layers)/", path):
            rows = jnp.sum(jnp.square(leaf), axis=tuple(range(1, leaf.ndim)))
            # With shared layers a stack has fewer rows than layers: row r serves L / rows consecutive layers.
            encoder = encoders.get(stack[2])
            shared = max(encoder.layers // len(rows), 1) if encoder else 1
            for row in range(len(rows)):
                squares[f"{stack[1]}/{(row + 1) * shared - 1}"] += rows[row]
        else:
            squares["/".join(path.split("/")[:2])] += jnp.sum(jnp.square(leaf))
    # Squares add up and norms do not, so the root comes last.
    return {f"grad_norm/{group}": jnp.sqrt(square) for group, square in squares.items()}
