"""ModernBERT in transformers: `ModernBertModel`, `ModernBertForMaskedLM` and `ModernBertConfig`; also Ettin and mmBERT.

(transformers 4.57 and 5.24, models/modernbert/modeling_modernbert.py and configuration_modernbert.py.) Its tensors join
queries, keys and values, and the two kernels that a gate multiplies. Its first layer has no norm before attention. Its
heads on labels have a layer of their own, which `ModernBertForMaskedLM` calls by the same name.

Folders are written with the keys of transformers 4, which 5 reads as well.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.interop import names
from bertjax.interop.bert import KEYS_WITHOUT_SEGMENTS
from bertjax.interop.family import ACTIVATIONS, MLM, Family, number
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.llama import base_of, table_of
from bertjax.interop.task_heads import CLS, MEAN, TaskHead, task_heads
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError, quoted

_LAYER, _OURS = f"model.layers.{names.LAYER}", "encoder/layers"
_FIRST_NORM = "model.layers.0.attn_norm"
# bertjax has biases in all of these or in none.
_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
# {kind of layer in transformers 5: key of its rotary base in transformers 4}
_BASES = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_WINDOW = 128  # tokens to both sides together
_PERIOD = "global_attn_every_n_layers"
# Keys that do not change the function, some of them of the authors' own code.
_HARMLESS = frozenset(
    "initializer_cutoff_factor mlp_dropout deterministic_flash_attn repad_logits_with_grad sparse_prediction "
    "sparse_pred_ignore_index layer_norm_eps position_embedding_type".split()
)
_READ = ("classifier_activation", "layer_types", "rope_parameters", "sliding_window")


class _ModernBert(Family):
    # Text Embeddings Inference requires whole numbers.
    symbol_keys = {"bos": "cls", "cls": "cls", "eos": "sep", "sep": "sep"}

    def encoder_config(self, config):
        config = _in_keys_of_transformers_4(config)
        biases = {key: config.get(key, False) for key in _BIASES}
        if len({*map(str, biases.values())}) > 1:
            listed = ", ".join(f"{key}={quoted(value)}" for key, value in biases.items())
            raise UserError(f"config.json has {listed}; bertjax's ModernBERT has all of these biases or none")
        encoder = super().encoder_config(config)
        if ACTIVATIONS.get(head := config.get("classifier_activation", "gelu")) != encoder.activation:
            raise config_error("classifier_activation", head, f"bertjax has {encoder.activation} in heads too")
        return encoder

    def settings(self, encoder, architecture):
        settings = super().settings(encoder, architecture)
        return settings | dict.fromkeys(_BIASES, encoder.block.has_biases) | {
            "local_attention": 2 * encoder.block.window or _WINDOW,
            "mlp_dropout": encoder.dropout,
            "classifier_dropout": encoder.dropout,
            "classifier_activation": settings["hidden_activation"],
            "classifier_pooling": MEAN,  # as published; a fine-tuned head has its own
            # transformers has defaults for these. Text Embeddings Inference and candle require them.
            "layer_norm_eps": encoder.norm_epsilon,
            "initializer_cutoff_factor": 2.0,
        }  # fmt: skip

    def canonical(self, tensors, encoder_only=False):
        named = super().canonical(tensors, encoder_only)
        if unknown := sorted(name for name in named if name.startswith(_FIRST_NORM)):
            raise UserError(f"the checkpoint has {unknown[0]}; ModernBERT has no norm before its first attention")
        # Layers are stacked, so the first one has a row of the norm too, which nothing reads.
        for kind, value in (("weight", np.ones_like), ("bias", np.zeros_like)):
            if (norm := named.get(f"model.embeddings.norm.{kind}")) is not None:
                named[f"{_FIRST_NORM}.{kind}"] = value(norm)
        return named

    def published(self, tensors):
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{_FIRST_NORM}.")}


def _in_keys_of_transformers_4(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the keys of transformers 4, and windows as bertjax counts them.

    Raises:
      UserError: global and local layers do not alternate in one period, their number differs from that of the layers,
        local layers see less than one token to either side or two numbers of them, or rotations are scaled or not
        given for kinds of layers.
    """
    settings, rotations = dict(config), table_of(config.get("rope_parameters"))
    if odd := {name: value for name, value in rotations.items() if name not in _BASES}:
        raise config_error("rope_parameters", odd, f"ModernBERT has them under {' and '.join(_BASES)}")
    for kind, key in _BASES.items():
        settings |= base_of(rotations.get(kind), key)
    if settings.get("local_rope_theta", 0) is None:  # local layers have the base of the global ones
        settings["local_rope_theta"] = settings.get("global_rope_theta", FAMILY.defaults.block.rotary_base)
    layers = number(config, "num_hidden_layers", FAMILY.defaults.layers)
    if (every := number(config, _PERIOD, FAMILY.defaults.block.global_every)) < 1:
        raise config_error(_PERIOD, every, "bertjax needs 1 or more, and 1 if all layers are global")
    if kinds := config.get("layer_types"):
        periods = [every, *range(1, len(kinds) + 1)]
        full, local = _BASES
        fitting = (
            every for every in periods if kinds == [local if place % every else full for place in range(len(kinds))]
        )
        if len(kinds) != layers or (every := next(fitting, None)) is None:
            raise config_error("layer_types", kinds, f"bertjax has {layers}, of which one in a period is global")
    # transformers lets a token see local_attention // 2 to either side.
    side = number(config, "local_attention", _WINDOW) // 2
    if min(every, layers) == 1:  # no layer is local
        every, side = 1, 0
    elif side < 1:
        raise config_error("local_attention", config["local_attention"], f"bertjax needs 2 or more, or {_PERIOD}=1")
    elif config.get("sliding_window") not in (None, side):
        why = f"local_attention gives {side} to either side; remove the wrong one"
        raise config_error("sliding_window", config["sliding_window"], why)
    return settings | {"local_attention": side, _PERIOD: every}


_SEQUENCE = TaskHead(
    "classifier", own="head.dense", norm="head.norm", pooling="classifier_pooling", poolings={CLS: CLS, MEAN: MEAN}
)
_HEADS = task_heads(_SEQUENCE)
FAMILY = _ModernBert(
    title="ModernBERT",
    model_type="modernbert",
    stem="ModernBert",
    table=(
        names.Name("model.embeddings.tok_embeddings.weight", "encoder/embeddings/word"),
        *names.norm("model.embeddings.norm", "encoder/embeddings/norm"),
        *names.joined(f"{_LAYER}.attn.Wqkv", *(f"{_OURS}/attention/{part}" for part in ("query", "key", "value"))),
        *names.dense(f"{_LAYER}.attn.Wo", f"{_OURS}/attention/output"),
        *names.norm(f"{_LAYER}.attn_norm", f"{_OURS}/attention_norm"),
        *names.joined(f"{_LAYER}.mlp.Wi", f"{_OURS}/intermediate", f"{_OURS}/gate"),
        *names.dense(f"{_LAYER}.mlp.Wo", f"{_OURS}/output"),
        *names.norm(f"{_LAYER}.mlp_norm", f"{_OURS}/output_norm"),
        *names.norm("model.final_norm", "encoder/final_norm"),
    ),
    parts={MLM: names.masked_lm("head.dense", "head.norm", "decoder.bias")},
    # Every class has `ModernBertPredictionHead` and `classifier`, those on tokens too.
    task_heads={term: dataclasses.replace(_SEQUENCE, suffix=head.suffix) for term, head in _HEADS.items()},
    keys=KEYS_WITHOUT_SEGMENTS
    | {
        "activation": "hidden_activation",
        "dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "norm_eps",
        "block.rotary_base": "global_rope_theta",
        "block.local_rotary_base": "local_rope_theta",
        "block.window": "local_attention",
        "block.global_every": _PERIOD,
        "block.biases": "norm_bias",
    },
    defaults=PRESETS["modernbert_base"].replace({"vocab_size": 50368}),
    fixed={"decoder_bias": True},
    further=_HARMLESS.union(_BIASES, _READ),
    decoder="decoder",
    masking_rate=0.3,
    since="4.48",
)
