"""Gradient-disentangled embedding sharing (He et al., 2021, DeBERTaV3, arXiv 2111.09543, section 3.3).

A generator and a discriminator pull the word embeddings that they share in two directions. So the discriminator reads

    E_discriminator = stop_gradient(E_generator) + E_delta,    E_delta = 0 at first:

its loss trains E_delta only, and still gains from what the generator learns. A run trains E_generator (the encoder's
table) and E_delta. The model that it runs with, and that is exported, has the sum in its encoder.
"""

from typing import Any

import jax
import jax.numpy as jnp

# Root of E_delta in trained params; a model's params have no such root.
ROOT = "delta"


def split(params: dict) -> dict:
    """Return trained params from those of a model whose generator has embeddings of its own; E_delta is 0."""
    generator = params["generator"]["encoder"]
    others = {name: leaf for name, leaf in generator["embeddings"].items() if name != "word"}
    delta = {"word": jnp.zeros_like(params["encoder"]["embeddings"]["word"])}
    return params | {
        "generator": {"encoder": generator | {"embeddings": others}},
        ROOT: {"encoder": {"embeddings": delta}},
    }


def merge(params: dict) -> dict:
    """Return the params that a model runs with from trained ones; params without `ROOT` stay as they are."""
    if ROOT not in params:
        return params
    encoder, generator, delta = params["encoder"], params["generator"]["encoder"], params[ROOT]["encoder"]
    word_VE = encoder["embeddings"]["word"]
    summed_VE = jax.lax.stop_gradient(word_VE) + delta["embeddings"]["word"]
    merged = params | {
        "encoder": _with_word(encoder, summed_VE),
        "generator": {"encoder": _with_word(generator, word_VE)},
    }
    return {name: tree for name, tree in merged.items() if name != ROOT}


def part(params: dict) -> dict:
    """Return trained params from those of an exported model: the inverse of `merge`, up to rounding.

    E_delta is 0 unless the generator has words of its own. If it shares all embeddings, it gets a copy of each table.
    """
    encoder, generator = params["encoder"], params.get("generator", {}).get("encoder", {})
    tables, own = encoder["embeddings"], generator.get("embeddings", {})
    shared_VE = own.get("word", tables["word"])
    if generator:
        params = params | {"generator": {"encoder": generator | {"embeddings": tables | own}}}
    return params | {
        "encoder": _with_word(encoder, shared_VE),
        ROOT: {"encoder": {"embeddings": {"word": tables["word"] - shared_VE}}},
    }


def _with_word(encoder: dict, word_VE: Any) -> dict:
    # A generator without tables of its own has no embeddings: flat params have no empty dicts.
    return encoder | {"embeddings": encoder.get("embeddings", {}) | {"word": word_VE}}
