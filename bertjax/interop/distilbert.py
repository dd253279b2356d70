"""DistilBERT in transformers: `DistilBertModel`, `DistilBertForMaskedLM` and `DistilBertConfig`.

(transformers 4.57, models/distilbert/modeling_distilbert.py and configuration_distilbert.py.) It has neither segments
nor a pooler, and its layer-norm epsilon is hard-coded. `sinusoidal_pos_embds` affects only how positions are
initialized: the checkpoint contains the table either way.
"""

from bertjax.interop import names
from bertjax.interop.bert import KEYS
from bertjax.interop.family import MLM, Family
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import EncoderConfig

FAMILY = Family(
    title="DistilBERT",
    model_type="distilbert",
    stem="DistilBert",
    table=(
        *names.embeddings("distilbert.embeddings", segments=False),
        *names.layers(
            f"distilbert.transformer.layer.{names.LAYER}",
            query="attention.q_lin",
            key="attention.k_lin",
            value="attention.v_lin",
            attended="attention.out_lin",
            attention_norm="sa_layer_norm",
            intermediate="ffn.lin1",
            output="ffn.lin2",
            output_norm="output_layer_norm",
        ),
    ),
    parts={MLM: names.masked_lm("vocab_transform", "vocab_layer_norm", "vocab_projector.bias")},
    classes={frozenset({MLM}): "ForMaskedLM", frozenset(): "Model"},
    # There is no pooler, but `pre_classifier` computes the same: a dense layer on [CLS], here with a ReLU.
    task_heads=task_heads(TaskHead("classifier", "pre_classifier")),
    keys={name: KEYS[name] for name in ("vocab_size", "max_positions", "init_stddev")}
    | {
        "layers": "n_layers",
        "width": "dim",
        "heads": "n_heads",
        "feedforward": "hidden_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
    },
    defaults=EncoderConfig(vocab_size=30522, layers=6, embeddings=BertEmbeddings(segments=0), pooler_activation="relu"),
    fixed={},
    decoder="vocab_projector",
)
