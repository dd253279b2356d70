"""DeBERTa-v3 in transformers: `DebertaV2Model`, `DebertaV2ForMaskedLM` and `DebertaV2Config`.

(transformers 4.57 and 5.24, models/deberta_v2/modeling_deberta_v2.py and configuration_deberta_v2.py.) The published
DeBERTa-v2 also has a convolution, and the first DeBERTa projects distances in another way. Both are refused.

transformers has two heads for masked tokens. Folders are written with the published one (`lm_predictions`, setting
`legacy=false`). The other one (`cls`), which the class has by default, computes the same function and is read as well.
Published files also hold tensors that no class reads: their head on replaced tokens, and tables of the generator.
"""

import re

from bertjax.interop import names
from bertjax.interop.bert import KEYS_WITHOUT_SEGMENTS
from bertjax.interop.family import MLM, POOLER, RTD, Family, Fixed
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.presets import PRESETS

_HEAD, _LEGACY_HEAD = "lm_predictions.lm_head", "cls.predictions"
# Names of the other head, but for its decoder, which is tied.
_LEGACY = re.compile(rf"^{re.escape(_LEGACY_HEAD)}\.(?!decoder\.)(transform\.)?")
_BUCKETS, _LARGEST, _LONGEST = "position_buckets", "max_relative_positions", "max_position_embeddings"
_TERMS = "pos_att_type"
# Keys that do not change the function: dropout in heads, and a convolution's that is not there.
_HARMLESS = frozenset("legacy pooler_dropout cls_dropout conv_act conv_groups".split())
_POOLER = {"pooler_hidden_act": ("gelu", "gelu")}


class _Deberta(Family):
    unread = r"^mask_predictions\.|embeddings\.position_embeddings\.|embeddings\.word_embeddings\._weight$"
    of_replaced_tokens = frozenset({RTD, MLM, POOLER, "generator"})
    note_on_generator = "generator and heads not exported: transformers has no class with them"

    def encoder_config(self, config):
        terms = config.get(_TERMS) or ()
        if sorted(terms.lower().split("|") if isinstance(terms, str) else terms) != ["c2p", "p2c"]:
            raise config_error(_TERMS, terms, f"bertjax's {self.title} computes 'p2c|c2p' only")
        if (buckets := config.get(_BUCKETS, -1)) == -1:
            raise config_error(_BUCKETS, buckets, f"bertjax's {self.title} has distances in buckets only")
        # -1, their default, means the longest example.
        largest = config.get(_LARGEST, -1)
        if not isinstance(largest, int) or largest < 1:
            largest = config.get(_LONGEST, self.defaults.max_positions)
        return super().encoder_config({**config, _LARGEST: largest})

    def settings(self, encoder, architecture):
        settings = super().settings(encoder, architecture)
        # The decoder is always tied. With the setting, transformers 4 would tie the dense layer before it instead.
        return settings | {_TERMS: ["p2c", "c2p"], "legacy": False, "tie_word_embeddings": False}

    def canonical(self, tensors, encoder_only=False):
        renamed = {_LEGACY.sub(f"{_HEAD}.", name): tensor for name, tensor in tensors.items()}
        return super().canonical(renamed, encoder_only)


FAMILY = _Deberta(
    title="DeBERTa-v3",
    model_type="deberta-v2",
    stem="DebertaV2",
    table=(
        names.Name("deberta.embeddings.word_embeddings.weight", "encoder/embeddings/word"),
        *names.norm("deberta.embeddings.LayerNorm", "encoder/embeddings/norm"),
        names.Name("deberta.encoder.rel_embeddings.weight", "encoder/shared/embedding"),
        *names.norm("deberta.encoder.LayerNorm", "encoder/shared/norm"),
        *names.bert_layers(
            "deberta",
            "attention.self.query_proj attention.self.key_proj attention.self.value_proj attention.output.dense "
            "attention.output.LayerNorm",
        ),
    ),
    parts={MLM: names.masked_lm(f"{_HEAD}.dense", f"{_HEAD}.LayerNorm", f"{_HEAD}.bias")},
    task_heads=task_heads(TaskHead("classifier", "pooler.dense", settings=_POOLER)),
    keys=KEYS_WITHOUT_SEGMENTS
    | {"activation": "hidden_act", "block.buckets": _BUCKETS, "block.max_distance": _LARGEST},
    defaults=PRESETS["deberta_v3_large"].replace(
        {"vocab_size": 128100, "width": 1536, "heads": 24, "feedforward": 6144}
    ),
    fixed={
        "type_vocab_size": 0,
        "conv_kernel_size": 0,
        "relative_attention": Fixed(True, absent=False),
        "position_biased_input": Fixed(False, absent=True),
        "share_att_key": Fixed(True, absent=False),
        "norm_rel_ebd": Fixed("layer_norm", absent="none"),
    },
    derived={"embedding_size": "width", "pooler_hidden_size": "width", "attention_head_size": "head_channels"},
    further=_HARMLESS | {_TERMS},
    decoder=f"{_LEGACY_HEAD}.decoder",
    since="4.48",
)
