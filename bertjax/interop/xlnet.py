"""XLNet in transformers: `XLNetModel`, `XLNetLMHeadModel` and `XLNetConfig`.

(transformers 4.57, models/xlnet/modeling_xlnet.py and configuration_xlnet.py.) Its attention kernels have separate axes
for heads and head channels; ours join them. It has a single dropout rate and no maximum length. `mem_len` and the other
memory settings do not affect a single call.
"""

import dataclasses

from bertjax.interop import names
from bertjax.interop.family import PLM, Family
from bertjax.interop.task_heads import QUESTIONS, TaskHead, task_heads
from bertjax.models.presets import PRESETS

_ATTENTION = f"transformer.layer.{names.LAYER}.rel_attn"
_OURS = "encoder/layers/attention"
_QUERY, _SPLIT = "transformer.mask_emb", {f"{_ATTENTION}.{kernel}" for kernel in "qkvor"}
_SPAN = f"{QUESTIONS}Simple"
# {key: (our value, default)}. transformers pools the last or the first token, whether or not [CLS] is there.
_SUMMARY = {"summary_type": ("first", "last"), "summary_use_proj": (True, True), "summary_activation": ("tanh", "tanh")}


class _XLNet(Family):
    def encoder_config(self, config):
        # 0 is no limit, as -1 is.
        return super().encoder_config({**config, "clamp_len": config.get("clamp_len") or -1})

    def refusals(self, encoder, pad_id):
        return super().refusals(dataclasses.replace(encoder, max_positions=self.defaults.max_positions), pad_id)

    def task_head(self, term, tokenizer):
        head, place = super().task_head(term, tokenizer), "last" if tokenizer.cls_last else "first"
        if "summary_type" not in head.settings:
            return head
        return dataclasses.replace(head, settings=head.settings | {"summary_type": (place, "last")})

    def names(self, encoder, parts):
        # [D, H, D / H] in transformers, [D, D] here: the same numbers in the same order.
        split = (encoder.width, encoder.heads, encoder.head_channels)
        shapes = dict.fromkeys(_SPLIT, split) | {_QUERY: (1, 1, encoder.width)}
        return tuple(name._replace(shape=shapes.get(name.theirs)) for name in super().names(encoder, parts))


FAMILY = _XLNet(
    title="XLNet",
    model_type="xlnet",
    stem="XLNet",
    table=(
        names.Name("transformer.word_embedding.weight", "encoder/embeddings/word"),
        names.Name(_QUERY, "encoder/embeddings/query"),
        names.Name(f"{_ATTENTION}.q", f"{_OURS}/query/kernel"),
        names.Name(f"{_ATTENTION}.k", f"{_OURS}/key/kernel"),
        names.Name(f"{_ATTENTION}.v", f"{_OURS}/value/kernel"),
        names.Name(f"{_ATTENTION}.o", f"{_OURS}/output/kernel", transposed=True),
        names.Name(f"{_ATTENTION}.r", f"{_OURS}/relative/distance/kernel"),
        names.Name(f"{_ATTENTION}.r_w_bias", f"{_OURS}/relative/content_bias"),
        names.Name(f"{_ATTENTION}.r_r_bias", f"{_OURS}/relative/distance_bias"),
        names.Name(f"{_ATTENTION}.r_s_bias", f"{_OURS}/relative/segment_bias"),
        names.Name(f"{_ATTENTION}.seg_embed", f"{_OURS}/relative/segment"),
        *names.norm(f"{_ATTENTION}.layer_norm", "encoder/layers/attention_norm"),
        *names.dense(f"transformer.layer.{names.LAYER}.ff.layer_1", "encoder/layers/intermediate"),
        *names.dense(f"transformer.layer.{names.LAYER}.ff.layer_2", "encoder/layers/output"),
        *names.norm(f"transformer.layer.{names.LAYER}.ff.layer_norm", "encoder/layers/output_norm"),
    ),
    parts={PLM: (names.Name("lm_loss.bias", "heads/plm/word_bias"),)},
    classes={frozenset({PLM}): "LMHeadModel"},
    # transformers lists XLNetLMHeadModel among the pretraining models.
    autos={"LMHeadModel": "AutoModelForPreTraining", _SPAN: f"AutoModel{QUESTIONS}"},
    task_heads=task_heads(TaskHead("logits_proj", "sequence_summary.summary", settings=_SUMMARY), questions=_SPAN),
    keys={
        "vocab_size": "vocab_size",
        "layers": "n_layer",
        "width": "d_model",
        "heads": "n_head",
        "feedforward": "d_inner",
        "activation": "ff_activation",
        "attention_dropout": "dropout",
        "dropout": "dropout",
        "norm_epsilon": "layer_norm_eps",
        "init_stddev": "initializer_range",
    },
    defaults=PRESETS["xlnet_large"].replace({"vocab_size": 32000}),
    derived={"d_head": "head_channels"},
    fixed={"attn_type": "bi", "bi_data": False, "same_length": False, "clamp_len": -1},
    decoder="lm_loss",
)
