"""MobileBERT in transformers: `MobileBertModel`, `MobileBertForMaskedLM`, `MobileBertForPreTraining`.

(transformers 4.57, models/mobilebert/modeling_mobilebert.py and configuration_mobilebert.py.) In a padded row, the
trigram at the last token reads the padding token's embedding in transformers and zeros in bertjax. Exported folders
therefore have zeros in that row, as PyTorch keeps it in training (`padding_idx`). The table is tied, so the padding
token's own logit changes too. `classifier_activation` decides whether a pooler has its dense layer.
"""

import numpy as np

from bertjax.interop import names
from bertjax.interop.bert import KEYS, MASKED_LM
from bertjax.interop.family import MLM, NSP, POOLER, Family
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.blocks.mobilebert import QUERIES_KEYS
from bertjax.models.presets import PRESETS

_WORD = "encoder/embeddings/word"
_LAYER, _OURS = f"mobilebert.encoder.layer.{names.LAYER}", "encoder/layers"
# {(use_bottleneck_attention, key_query_shared_bottleneck): our `block.bottlenecked`}
_BOTTLENECKED = {(False, True): "queries_keys", (True, False): "all", (False, False): "none"}
# PyTorch's default. The classes ignore `layer_norm_eps` in two layer norms: after the embeddings and after the last
# feed-forward network. NoNorm has no epsilon.
_EPSILON = 1e-5
_POOLER = {"classifier_activation": (True, True)}


class _MobileBert(Family):
    def names(self, encoder, parts):
        own = []
        for number in range(encoder.block.feedforwards - 1):
            theirs, ours = f"{_LAYER}.ffn.{number}", f"{_OURS}/feedforward_{number + 1}"
            own += names.dense(f"{theirs}.intermediate.dense", f"{ours}/intermediate")
            own += names.dense(f"{theirs}.output.dense", f"{ours}/output")
            own += names.norm(f"{theirs}.output.LayerNorm", f"{ours}/output_norm")
        return (*super().names(encoder, parts), *own)

    def refusals(self, encoder, pad_id):
        # Every way to feed the bottlenecks has its two keys, so none of them is a difference.
        if encoder.block.kind != self.defaults.block.kind:
            return super().refusals(encoder, pad_id)
        own, block = {"block.bottlenecked": QUERIES_KEYS}, encoder.block
        lines = super().refusals(encoder.replace(own), pad_id)
        if block.bottlenecked == "none" and block.inner_width != encoder.width:
            why = f"reads {block.inner_width} channels, not {encoder.width}; train it with {QUERIES_KEYS}"
            lines.append(self.refusal("block.bottlenecked", "none", why))
        if block.normalization == "layer_norm" and encoder.norm_epsilon != _EPSILON:
            why = f"has {_EPSILON} in two of its layer norms; train it with {_EPSILON}"
            lines.append(self.refusal("norm_epsilon", encoder.norm_epsilon, why))
        if encoder.embedded_width == encoder.width:
            lines.append(self.refusal("embeddings.width", encoder.width, "has narrower ones; set another width"))
        return lines

    def encoder_config(self, config):
        reads = (config.get("use_bottleneck_attention", False), config.get("key_query_shared_bottleneck", True))
        if reads not in _BOTTLENECKED:
            why = f"key_query_shared_bottleneck={reads[1]!r} excludes it"
            raise config_error("use_bottleneck_attention", reads[0], why)
        return super().encoder_config(config).replace({"block.bottlenecked": _BOTTLENECKED[reads]})

    def settings(self, encoder, architecture):
        reads = next(reads for reads, ours in _BOTTLENECKED.items() if ours == encoder.block.bottlenecked)
        bottlenecks = {"use_bottleneck_attention": reads[0], "key_query_shared_bottleneck": reads[1]}
        return super().settings(encoder, architecture) | bottlenecks

    def to_theirs(self, encoder, flat, pad_id):
        word_VE = np.array(flat[_WORD])  # a copy: the model of the caller keeps its row
        word_VE[pad_id] = 0.0
        return encoder, flat | {_WORD: word_VE}

    def notes(self, flat, pad_id):
        if not flat[_WORD][pad_id].any():
            return []
        return [
            "the embedding of the padding token is not zero: transformers reads it beside the last token of a padded "
            "row, and bertjax reads zeros; it becomes zeros in a folder of transformers"
        ]


def _bottleneck(theirs: str, ours: str) -> tuple[names.Name, ...]:
    """Return the names of one bottleneck projection and its norm."""
    return (
        *names.dense(f"{_LAYER}.{theirs}.dense", f"{_OURS}/bottleneck/{ours}"),
        *names.norm(f"{_LAYER}.{theirs}.LayerNorm", f"{_OURS}/bottleneck/{ours}_norm"),
    )


FAMILY = _MobileBert(
    title="MobileBERT",
    model_type="mobilebert",
    stem="MobileBert",
    table=(
        *names.embeddings("mobilebert.embeddings"),
        *names.dense("mobilebert.embeddings.embedding_transformation", "encoder/embeddings/projection"),
        *names.bert_layers("mobilebert"),
        *_bottleneck("bottleneck.input", "input"),
        *_bottleneck("bottleneck.attention", "attention"),
        *_bottleneck("output.bottleneck", "output"),
    ),
    parts={
        POOLER: names.dense("mobilebert.pooler.dense", "encoder/pooler"),
        MLM: (
            *names.masked_lm(*MASKED_LM),
            names.Name("cls.predictions.dense.weight", "heads/mlm/word_rest", transposed=True),
        ),
        NSP: names.dense("cls.seq_relationship", "heads/nsp/classifier"),
    },
    classes={frozenset({POOLER, MLM, NSP}): "ForPreTraining"},
    task_heads=task_heads(TaskHead("classifier", "mobilebert.pooler.dense", settings=_POOLER)),
    keys=KEYS
    | {
        "activation": "hidden_act",
        "embeddings.width": "embedding_size",
        "block.inner_width": "intra_bottleneck_size",
        "block.feedforwards": "num_feedforward_networks",
        "block.normalization": "normalization_type",
    },
    defaults=PRESETS["mobilebert"].replace({"vocab_size": 30522}),
    fixed={"use_bottleneck": True, "trigram_input": True},
    further=frozenset({"use_bottleneck_attention", "key_query_shared_bottleneck"}),
    decoder="cls.predictions.decoder",
    finds_padding_by_id=True,  # its embedding is zero
)
