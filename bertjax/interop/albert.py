"""ALBERT in transformers: `AlbertModel`, `AlbertForMaskedLM`, `AlbertForPreTraining` and `AlbertConfig`.

(transformers 4.57, models/albert/modeling_albert.py and configuration_albert.py.) All layers in a group share their
weights, so `{layer}` in the table is a group number. The dropout before the sentence-order head
(`classifier_dropout_prob`) affects only training; bertjax has none.
"""

from bertjax.interop import names
from bertjax.interop.bert import CLASSES, FIXED, KEYS
from bertjax.interop.family import MLM, POOLER, SOP, Family
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import EncoderConfig


class _Albert(Family):
    def refusals(self, encoder, pad_id):
        lines = super().refusals(encoder, pad_id)
        # bertjax projects embeddings only if the widths differ; AlbertTransformer always has the projection.
        if encoder.embedded_width == encoder.width:
            lines.append(self.refusal("embeddings.width", encoder.width, "projects them; set another width"))
        return lines


FAMILY = _Albert(
    title="ALBERT",
    model_type="albert",
    stem="Albert",
    table=(
        *names.embeddings("albert.embeddings"),
        *names.dense("albert.encoder.embedding_hidden_mapping_in", "encoder/projection"),
        *names.layers(
            f"albert.encoder.albert_layer_groups.{names.LAYER}.albert_layers.0",
            query="attention.query",
            key="attention.key",
            value="attention.value",
            attended="attention.dense",
            attention_norm="attention.LayerNorm",
            intermediate="ffn",
            output="ffn_output",
            output_norm="full_layer_layer_norm",
        ),
    ),
    parts={
        POOLER: names.dense("albert.pooler", "encoder/pooler"),
        MLM: names.masked_lm("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        SOP: names.dense("sop_classifier.classifier", "heads/sop/classifier"),
    },
    classes={frozenset({POOLER, MLM, SOP}): "ForPreTraining"} | CLASSES,
    task_heads=task_heads(TaskHead("classifier", "albert.pooler")),
    keys=KEYS
    | {"activation": "hidden_act", "embeddings.width": "embedding_size", "sharing_groups": "num_hidden_groups"},
    defaults=EncoderConfig(
        vocab_size=30000,
        width=4096,
        heads=64,
        feedforward=16384,
        activation="gelu_tanh",
        sharing="all",
        embeddings=BertEmbeddings(128),
        dropout=0.0,
        attention_dropout=0.0,
    ),
    fixed=FIXED | {"inner_group_num": 1},
    decoder="predictions.decoder",
)
