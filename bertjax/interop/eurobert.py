"""EuroBERT in transformers 5: `EuroBertModel`, `EuroBertForMaskedLM` and `EuroBertConfig`.

(transformers 5.24, models/eurobert/modeling_eurobert.py and configuration_eurobert.py.) The published folders name code
of the authors (`auto_map`) that computes the same. The classes are new in transformers 5.3.
"""

import dataclasses

from bertjax.interop import names
from bertjax.interop.family import MLM, Family
from bertjax.interop.rotary_settings import base_of
from bertjax.interop.task_heads import (
    CLASSIFICATION,
    CLS,
    LATE,
    MEAN,
    MULTI_LABEL,
    REGRESSION,
    SEQUENCE,
    TAGGING,
    TOKENS,
    TaskHead,
)
from bertjax.models.blocks.llama import LlamaBlock, WordEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.runtime.errors import UserError, quoted

_LAYER, _OURS = f"model.layers.{names.LAYER}", "encoder/layers"
# Keys that do not change the function, some of them of the authors' code only.
_HARMLESS = frozenset("auto_map pretraining_tp bos_token eos_token pad_token mask_token".split())


class EuroBert(Family):
    @property
    def root(self):
        return "model."

    @property
    def settings_read(self):
        return super().settings_read | _HARMLESS | {"head_dim", "rope_parameters", "rope_scaling"}

    def names(self, encoder, parts):
        # None of its dense layers below the heads has a bias, and RMS norms never have.
        heads = {f"heads/{part}" for part in parts & self.task_heads.keys()}
        return tuple(
            name
            for name in super().names(encoder, parts)
            if not name.ours.endswith("/bias") or name.ours.startswith(tuple(heads))
        )

    def encoder_config(self, config):
        # Of the two keys transformers 5 takes the older one first.
        key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        config = {**config, **base_of(config.get(key), "rope_theta", key)}
        # null, like a missing key, means one head of keys and values per head of queries, which is 0 in bertjax.
        encoder = super().encoder_config(config | {"num_key_value_heads": config.get("num_key_value_heads") or 0})
        if (channels := config.get("head_dim")) not in (None, encoder.head_channels):
            raise UserError(
                f"config.json has head_dim={quoted(channels)}; bertjax's {self.title} computes hidden_size / "
                f"num_attention_heads = {encoder.head_channels} only"
            )
        return encoder

    def settings(self, encoder, architecture):
        return super().settings(encoder, architecture) | {
            "num_key_value_heads": encoder.block.key_value_heads or encoder.heads,
            "head_dim": encoder.head_channels,
            "rope_parameters": {"rope_type": "default", "rope_theta": encoder.block.rotary_base},
        }

    def symbols(self, tokenizer):
        # The defaults are ids of EuroBERT's own tokenizer.
        ids = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id, "mask_token_id": tokenizer.mask_id}
        return super().symbols(tokenizer) | ids


def without_heads(encoder: EncoderConfig) -> EncoderConfig:
    """Return the architecture of an encoder without heads: NeoBERT's becomes EuroBERT's."""
    if not isinstance(encoder.block, LlamaBlock):
        return encoder
    return encoder.replace({"block.decoder_bias": False, "block.pooler": False})


@dataclasses.dataclass(frozen=True)
class _SequenceHead(TaskHead):
    """`bertjax.models.label_heads.HiddenLayerHead` under the names of transformers."""

    def names(self, term):
        return (
            *names.dense("dense", f"heads/{term}/transform"),
            *names.dense(self.logits, f"heads/{term}/classifier"),
        )


_SEQUENCE_HEAD = _SequenceHead(
    SEQUENCE,
    "classifier",
    pooling="classifier_pooling",
    poolings={"late": LATE, "bos": CLS, "mean": MEAN},
)
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
    classes={frozenset({MLM}): "ForMaskedLM", frozenset(): "Model"},
    task_heads=dict.fromkeys((CLASSIFICATION, MULTI_LABEL, REGRESSION), _SEQUENCE_HEAD)
    | {TAGGING: TaskHead(TOKENS, "classifier")},
    keys={
        "vocab_size": "vocab_size",
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "feedforward": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "dropout": "hidden_dropout",  # of the authors' code; transformers has none
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "rms_norm_eps",
        "init_stddev": "initializer_range",
        "block.key_value_heads": "num_key_value_heads",
        "block.rotary_base": "rope_theta",
    },
    defaults=EncoderConfig(
        vocab_size=128256,
        embeddings=WordEmbeddings(),
        block=LlamaBlock(),
        max_positions=8192,
        dropout=0.0,
        attention_dropout=0.0,
        norm_epsilon=1e-5,
    ),
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
    decoder_settings=frozenset({"tie_word_embeddings"}),
    tied={},
    masking_rate=0.5,
    has_flax=False,
    since="5.3",
)
