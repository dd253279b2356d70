"""EuroBERT in transformers 5: `EuroBertModel`, `EuroBertForMaskedLM` and `EuroBertConfig`.

(transformers 5.24, models/eurobert/modeling_eurobert.py and configuration_eurobert.py.) The published folders name code
of the authors (`auto_map`) that computes the same. The classes are new in transformers 5.3.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax.interop import names
from bertjax.interop.bert import KEYS_WITHOUT_SEGMENTS
from bertjax.interop.family import MLM, OF_DECODER, Family
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import CLS, LATE, MEAN, ON_EXAMPLES, TAGGING, TOKENS, TaskHead
from bertjax.models.presets import PRESETS

_LAYER, _OURS = f"model.layers.{names.LAYER}", "encoder/layers"
# Keys that do not change the function, some of them of the authors' code only.
_HARMLESS = frozenset("auto_map pretraining_tp bos_token eos_token pad_token mask_token".split())


class EuroBert(Family):
    symbol_keys = {"bos": "cls", "eos": "sep", "mask": "mask"}

    def encoder_config(self, config):
        # Of the two keys transformers 5 takes the older one first.
        key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        config = {**config, **base_of(config.get(key), "rope_theta", key)}
        # null, like a missing key, means one head of keys and values per head of queries, which is 0 in bertjax.
        return super().encoder_config(config | {"num_key_value_heads": config.get("num_key_value_heads") or 0})

    def settings(self, encoder, architecture):
        return super().settings(encoder, architecture) | {
            "num_key_value_heads": encoder.block.key_value_heads or encoder.heads,
            "head_dim": encoder.head_channels,
            "rope_parameters": {"rope_type": "default", "rope_theta": encoder.block.rotary_base},
        }


@dataclasses.dataclass(frozen=True)
class _SequenceHead(TaskHead):
    """`bertjax.models.other_heads.HiddenLayerHead` under the names of transformers."""

    def names(self, term):
        return (
            *names.dense("dense", f"heads/{term}/transform"),
            *names.dense(self.logits, f"heads/{term}/classifier"),
        )


_POOLINGS = {"late": LATE, "bos": CLS, "mean": MEAN}
FAMILY = EuroBert(
    title="EuroBERT",
    model_type="eurobert",
    stem="EuroBert",
    table=(
        names.Name("model.embed_tokens.weight", "encoder/embeddings/word"),
        *names.dense(f"{_LAYER}.self_attn.q_proj", f"{_OURS}/attention/query"),
        *names.dense(f"{_LAYER}.self_attn.k_proj", f"{_OURS}/attention/key"),
        *names.dense(f"{_LAYER}.self_attn.v_proj", f"{_OURS}/attention/value"),
        *names.dense(f"{_LAYER}.self_attn.o_proj", f"{_OURS}/attention/output"),
        *names.norm(f"{_LAYER}.input_layernorm", f"{_OURS}/attention_norm"),
        *names.dense(f"{_LAYER}.mlp.gate_proj", f"{_OURS}/intermediate"),
        *names.dense(f"{_LAYER}.mlp.up_proj", f"{_OURS}/gate"),
        *names.dense(f"{_LAYER}.mlp.down_proj", f"{_OURS}/output"),
        *names.norm(f"{_LAYER}.post_attention_layernorm", f"{_OURS}/output_norm"),
        *names.norm("model.norm", "encoder/final_norm"),
    ),
    parts={MLM: (names.Name("lm_head.weight", "heads/mlm/word"),)},
    task_heads=dict.fromkeys(ON_EXAMPLES, _SequenceHead("classifier", pooling="classifier_pooling", poolings=_POOLINGS))
    | {TAGGING: TaskHead("classifier", suffix=TOKENS)},
    keys=KEYS_WITHOUT_SEGMENTS
    | {
        "dropout": "hidden_dropout",  # of the authors' code; transformers has none
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "rms_norm_eps",
        "block.key_value_heads": "num_key_value_heads",
        "block.rotary_base": "rope_theta",
    },
    defaults=PRESETS["eurobert_210m"].replace({"vocab_size": 128256, "block.rotary_base": 10000.0}),
    fixed={
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        OF_DECODER: False,
    },
    derived={"head_dim": "head_channels"},
    further=_HARMLESS | {"rope_parameters", "rope_scaling"},
    masking_rate=0.5,
    since="5.3",
)


_UNSCALED = {"rope_type": "default", "type": "default", "factor": 1.0, "partial_rotary_factor": 1.0}
# Only scaled types read it.
_UNREAD = "original_max_position_embeddings"


def table_of(parameters: Any, name: str = "rope_parameters") -> Mapping[str, Any]:
    """Return `rope_parameters`, or its entry for a kind of layer, as a mapping; null is an empty one.

    Args:
      parameters: the value.
      name: its key, for the message; `rope_scaling` in transformers 4.

    Raises:
      UserError: it is neither.
    """
    if not isinstance(parameters, Mapping | None):
        raise config_error(name, parameters, "it is not a table; download the file again")
    return parameters or {}


def base_of(parameters: Any, key: str, name: str = "rope_parameters") -> dict[str, float]:
    """Return {key: base} of `rope_parameters`, or of its entry for a kind of layer; empty if it has no base.

    Args:
      parameters, name: see `table_of`.
      key: name of the base in the result.

    Raises:
      UserError: rotations are scaled, or see `table_of`.
    """
    parameters = table_of(parameters, name)
    neutral = {name: parameters.get(name) for name in ("rope_theta", _UNREAD)} | _UNSCALED
    if scaled := {name: value for name, value in parameters.items() if value not in (None, neutral.get(name))}:
        raise config_error(name, scaled, "bertjax's rotary positions are not scaled")
    return {key: parameters["rope_theta"]} if "rope_theta" in parameters else {}
