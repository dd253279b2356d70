"""BERT as transformers names it: `BertModel`, `BertForMaskedLM`, `BertForPreTraining` and `BertConfig`.

(transformers 4.57, models/bert/modeling_bert.py and configuration_bert.py.)
"""

from bertjax.interop import names
from bertjax.interop.family import MLM, NSP, POOLER, Family
from bertjax.models.config import EncoderConfig

# Keys of BERT, and of families whose settings were copied from BERT's.
KEYS = {
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
FIXED = {"position_embedding_type": "absolute"}

FAMILY = Family(
    title="BERT",
    model_type="bert",
    stem="Bert",
    table=(*names.embeddings("bert.embeddings"), *names.bert_layers("bert")),
    parts={
        POOLER: names.dense("bert.pooler.dense", "encoder/pooler"),
        MLM: names.masked_lm(
            "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
        ),
        NSP: names.dense("cls.seq_relationship", "heads/nsp/classifier"),
    },
    classes={
        frozenset({POOLER, MLM, NSP}): "ForPreTraining",
        frozenset({MLM}): "ForMaskedLM",
        frozenset({POOLER}): "Model",
        frozenset(): "Model",
    },
    keys=KEYS | {"activation": "hidden_act"},
    defaults=EncoderConfig(vocab_size=30522),
    fixed=FIXED,
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
