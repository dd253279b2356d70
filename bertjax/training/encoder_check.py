"""Check layers, embeddings and their growth on abstract shapes, so that errors show before a corpus is prepared."""

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.config.user_code import user_errors
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import first_positions
from bertjax.models.visibility import LayerInputs, Queries, Visibility
from bertjax.runtime.errors import UserError
from bertjax.training.param_paths import leaves_of

_ROWS, _TOKENS, _QUERIES = 2, 8, 3


def check_growth(stages: Sequence[dict]) -> None:
    """Raise UserError if stacks of layers cannot be repeated until they are as deep as in the next stage.

    A second encoder may grow by another factor than the first, such as ELECTRA's generator with a share of its layers.

    Args:
      stages: shapes of the params in each stage.
    """
    for index, (before, after) in enumerate(itertools.pairwise(stages), 1):
        for (path, leaf), target in zip(leaves_of(before).items(), jax.tree.leaves(after), strict=True):
            if leaf.shape != target.shape and target.shape[0] % leaf.shape[0]:
                raise UserError(
                    f"stages.{index} needs {target.shape[0]} layers of {path.partition('/layers/')[0]} after "
                    f"{leaf.shape[0]}, and new layers are copies of all; choose other stages.N.layers, or another "
                    "depth of this second encoder"
                )


def check_encoder(config: EncoderConfig) -> None:
    """Trace the layer and the embeddings of an architecture if they are a user's.

    Args:
      config: the architecture, with the dtype that the run computes in.

    Raises:
      UserError: the user's code raises an exception (the message has its file and line), or it returns states of
        another shape or dtype than the next layer reads.
    """
    zeros_BT, key = jnp.zeros((_ROWS, _TOKENS), jnp.int32), jax.random.key(0)
    if ":" in (kind := config.embeddings.kind):

        def embed(key: jax.Array) -> jax.Array:
            layer = config.embeddings.layer(config)
            return layer.init_with_output(key, zeros_BT, zeros_BT, zeros_BT, key, zeros_BT)[0]

        setting, width = f"model.embeddings.kind={kind!r}", config.embeddings.output_width(config)
        with user_errors(setting):
            _check_states(setting, config, jax.eval_shape(embed, key), (_ROWS, _TOKENS, width))
    if ":" in (kind := config.block.kind):

        def apply(key: jax.Array) -> list[jax.Array]:
            hidden_BTD = jnp.zeros((_ROWS, _TOKENS, config.width), config.execution.dtype)
            some = Queries(hidden_BTD[:, :_QUERIES], zeros_BT[:, :_QUERIES])  # as in the last layer
            layer, positions = config.block.layer(config), first_positions(config, key, zeros_BT)
            inputs = LayerInputs(hidden_BTD, Visibility(zeros_BT), positions=positions, number=jnp.int32(0))
            # With and without dropout, all tokens and some.
            others = (inputs._replace(key=key), inputs._replace(key=key, queries=some), inputs)
            return [layer.init_with_output(key, each)[0] for each in others]

        setting = f"model.block.kind={kind!r}"
        with user_errors(setting):
            # Python raises this error where the layer is called, not in the user's code.
            with user_errors(f"{setting} in a call with LayerInputs", "take one argument", is_theirs=True):
                inspect.signature(config.block.layer(config).__call__).bind(LayerInputs)
            config.block.products(config)
            for states, count in zip(jax.eval_shape(apply, key), (_TOKENS, _QUERIES, _TOKENS), strict=True):
                _check_states(setting, config, states, (_ROWS, count, config.width))


def _check_states(setting: str, config: EncoderConfig, states: Any, shape: tuple[int, ...]) -> None:
    expected, dtype = jax.ShapeDtypeStruct(shape, config.execution.dtype), getattr(states, "dtype", None)
    if (getattr(states, "shape", None), dtype) != (shape, expected.dtype):
        found = f"{dtype} {list(states.shape)}" if dtype else type(states).__name__
        raise UserError(
            f"{setting} returns {found} for {shape[1]} tokens or queries, and the next layer reads {expected.dtype} "
            f"{list(shape)}; return the states of the queries in config.execution.dtype"
        )
