"""BERT as transformers names it: the table of names, the keys of `config.json`, the classes that open a checkpoint.

Names and keys are those of transformers' `BertModel`, `BertForMaskedLM`, `BertForPreTraining` and `BertConfig`
(transformers 4.57, models/bert/modeling_bert.py and configuration_bert.py).
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from bertjax.errors import UserError
from bertjax.interop.names import Name, dense, norm
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead, PairHead

MODEL_TYPE = "bert"
ROOT = "bert."
_LAYER, _STACK = "bert.encoder.layer.{layer}", "encoder/layers"

_EMBEDDINGS = (
    Name("bert.embeddings.word_embeddings.weight", "encoder/embeddings/word"),
    Name("bert.embeddings.position_embeddings.weight", "encoder/embeddings/position"),
    Name("bert.embeddings.token_type_embeddings.weight", "encoder/embeddings/segment"),
    *norm("bert.embeddings.LayerNorm", "encoder/embeddings/norm"),
)
_LAYERS = (
    *dense(f"{_LAYER}.attention.self.query", f"{_STACK}/attention/query"),
    *dense(f"{_LAYER}.attention.self.key", f"{_STACK}/attention/key"),
    *dense(f"{_LAYER}.attention.self.value", f"{_STACK}/attention/value"),
    *dense(f"{_LAYER}.attention.output.dense", f"{_STACK}/attention/output"),
    *norm(f"{_LAYER}.attention.output.LayerNorm", f"{_STACK}/attention_norm"),
    *dense(f"{_LAYER}.intermediate.dense", f"{_STACK}/intermediate"),
    *dense(f"{_LAYER}.output.dense", f"{_STACK}/output"),
    *norm(f"{_LAYER}.output.LayerNorm", f"{_STACK}/output_norm"),
)
# What a checkpoint may lack as a whole.
POOLER, MLM, NSP = "pooler", "mlm", "nsp"
PARTS: dict[str, tuple[Name, ...]] = {
    POOLER: dense("bert.pooler.dense", "encoder/pooler"),
    MLM: (
        *dense("cls.predictions.transform.dense", "heads/mlm/transform"),
        *norm("cls.predictions.transform.LayerNorm", "heads/mlm/norm"),
        Name("cls.predictions.bias", "heads/mlm/word_bias"),
    ),
    NSP: dense("cls.seq_relationship", "heads/nsp/classifier"),
}
# The class of transformers for each set of parts.
ARCHITECTURES = {
    frozenset({POOLER, MLM, NSP}): "BertForPreTraining",
    frozenset({MLM}): "BertForMaskedLM",
    frozenset({POOLER}): "BertModel",
    frozenset(): "BertModel",
}
# Without a head of its own nothing stands before the encoder's names.
BARE = "BertModel"

# Written once more beside what they are tied to, by some versions of transformers.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_POSITION_IDS = "bert.embeddings.position_ids"
_KEYS = {
    "vocab_size": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feedforward": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "init_stddev": "initializer_range",
}
# Settings that change the function computed, each with the one value that this encoder computes; transformers takes it
# where the key is missing.
_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}


def names(parts: frozenset[str]) -> tuple[Name, ...]:
    """The table for an encoder with these parts."""
    return (*_EMBEDDINGS, *_LAYERS, *(name for part, own in PARTS.items() if part in parts for name in own))


def parts_of(present: Mapping[str, Any], field: str) -> frozenset[str]:
    """The parts of which anything is present.

    Args:
      present: by name.
      field: whose names they are, `theirs` or `ours`.
    """
    return frozenset(part for part, own in PARTS.items() if any(getattr(name, field) in present for name in own))


def shapes(encoder: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every param of encoder and heads by its flattened path, the vocabulary unpadded."""

    def init() -> dict:
        key, hidden_BTD = jax.random.key(0), jnp.zeros((1, 1, encoder.width))
        params = Encoder(encoder).init(key, jnp.zeros((1, 1), jnp.int32))["params"]
        mlm = MaskedLMHead(encoder).init(key, hidden_BTD, params["embeddings"]["word"])["params"]
        nsp = PairHead(encoder).init(key, hidden_BTD)["params"]
        return {"encoder": params, "heads": {"mlm": mlm, "nsp": nsp}}

    found = {path: leaf.shape for path, leaf in flatten_dict(jax.eval_shape(init), sep="/").items()}
    vocabulary = ("encoder/embeddings/word", "heads/mlm/word_bias")
    return found | {path: (encoder.vocab_size, *found[path][1:]) for path in vocabulary}


def encoder_config(config: Mapping[str, Any]) -> EncoderConfig:
    """The encoder that a `config.json` describes; keys that are missing have transformers' defaults.

    Raises:
      UserError: it is no BERT, or computes something that bertjax's encoder does not.
    """
    if (kind := config.get("model_type")) != MODEL_TYPE:
        raise UserError(f"config.json has model_type={kind!r}; bertjax converts {MODEL_TYPE!r} alone so far")
    for key, fixed in _FIXED.items():
        if (found := config.get(key) or fixed) != fixed:
            raise UserError(f"config.json has {key}={found!r}; bertjax's BERT computes {fixed!r} alone")
    defaults = EncoderConfig(vocab_size=30522)  # of BertConfig
    settings = {ours: config.get(theirs, getattr(defaults, ours)) for ours, theirs in _KEYS.items()}
    for ours, value in settings.items():
        wanted = type(getattr(defaults, ours))
        if isinstance(value, bool) or not isinstance(value, (int, wanted)):
            kind = "whole number" if wanted is int else "number"
            raise UserError(f"config.json has {_KEYS[ours]}={value!r}, which is no {kind}; get the file again")
        settings[ours] = wanted(value)
    return dataclasses.replace(defaults, **settings)


def check(encoder: EncoderConfig) -> None:
    """Raises UserError where the encoder is a relative of BERT, which transformers' class would compute otherwise."""
    for field in dataclasses.fields(EncoderConfig):
        found = getattr(encoder, field.name)
        if field.name not in _KEYS and field.name != "execution" and found != field.default:
            raise UserError(
                f"the model has model.{field.name}={found!r}, which transformers' BERT has no key for; bertjax writes "
                "Hugging Face's files and ONNX for BERT alone so far"
            )
    if not encoder.segments:
        raise UserError("the model has model.segments=0, and transformers' BERT has a segment table; train it with 1")


def settings(encoder: EncoderConfig, architecture: str, pad_id: int) -> dict[str, Any]:
    """The `config.json` of an encoder."""
    sizes = {theirs: getattr(encoder, ours) for ours, theirs in _KEYS.items()}
    fixed = {key: _FIXED[key] for key in ("hidden_act", "position_embedding_type")}
    return {"architectures": [architecture], "model_type": MODEL_TYPE, **sizes, **fixed, "pad_token_id": pad_id}


def canonical(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors under the names of the table, copies and buffers checked and left out.

    Raises:
      UserError: an untied decoder, or positions that are not 0, 1, 2, ...
    """
    bare = not any(name.startswith(ROOT) for name in tensors)
    found = {}
    for name, tensor in tensors.items():
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        found[f"{ROOT}{name}" if bare and not name.startswith("cls.") else name] = tensor
    for copy, original in _TIED.items():
        if copy in found and not np.array_equal(found.pop(copy), found.get(original)):
            raise UserError(f"the checkpoint's {copy} is not its {original}; bertjax's decoder is tied to it")
    if _POSITION_IDS in found:
        ids = found.pop(_POSITION_IDS)
        if not np.array_equal(ids.reshape(-1), np.arange(ids.size)):
            raise UserError(f"the checkpoint's {_POSITION_IDS} does not count from 0; bertjax's positions do")
    return found
