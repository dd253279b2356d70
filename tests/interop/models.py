"""Small models of every shape that is converted."""

import itertools

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from bertjax.config import from_dict
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.export import Export
from bertjax.interop import bert
from bertjax.models import vocabulary
from tests import batches

SIZES = {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "max_positions": 20, "segments": 3}
PARTS = {
    "BertForPreTraining": frozenset({"pooler", "mlm", "nsp"}),
    "BertForMaskedLM": frozenset({"mlm"}),
    "BertModel": frozenset({"pooler"}),
}


def trained() -> Tokenizer:
    """WordPiece on words of the letters a to f."""
    words = map("".join, itertools.product("abc", "def", "abf", "cde"))
    return tokenizer.train([" ".join(words)] * 9, TokenizerConfig(kind="wordpiece", vocab_size=60))


def make(parts: frozenset[str], tokens: Tokenizer) -> Export:
    """An encoder with these parts, whose values all differ."""
    objective = "bert" if "nsp" in parts else "mlm"
    config = from_dict(
        {
            "model": SIZES | {"norm_epsilon": 1e-6, "dropout": 0.2, "vocab_size": tokens.vocab_size},
            "tasks": {objective: {"objective": {"kind": objective}}},
            "stages": [{"seq_len": 20}],
        }
    )
    encoder = config.encoder(tokens.vocab_size, "cpu")
    shapes = bert.shapes(encoder)
    wanted = {name.ours: jax.ShapeDtypeStruct(shapes[name.ours], np.float32) for name in bert.names(parts)}
    params = vocabulary.pad(batches.filled(unflatten_dict(wanted, sep="/")), encoder)
    return Export(config, encoder, params, tokens, {})
