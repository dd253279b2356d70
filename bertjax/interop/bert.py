"""BERT in transformers: `BertModel`, `BertForMaskedLM`, `BertForPreTraining` and `BertConfig`.

(transformers 4.57, models/bert/modeling_bert.py and configuration_bert.py.) A left-to-right model is a
`BertLMHeadModel` with `is_decoder`. Its head has the same tensor names as `BertForMaskedLM`. Without a head it cannot
be converted: `BertModel` pools [CLS], which then sees only itself.
"""

import dataclasses

from bertjax.interop import names
from bertjax.interop.family import CLM, MLM, NSP, POOLER, Family, parts_in
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL, LEFT_TO_RIGHT
from bertjax.runtime.errors import UserError

# Keys of `BertConfig`, which most other families copied.
KEYS = {
    "vocab_size": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feedforward": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "embeddings.segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "init_stddev": "initializer_range",
}
# The same without a table of segments.
KEYS_WITHOUT_SEGMENTS = {ours: theirs for ours, theirs in KEYS.items() if ours != "embeddings.segments"}
# Names of classes, which most of them have too.
CLASSES = {frozenset({MLM}): "ForMaskedLM", frozenset({POOLER}): "Model", frozenset(): "Model"}
FIXED = {"position_embedding_type": "absolute"}

MASKED_LM = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")


class _Bert(Family):
    def encoder_config(self, config):
        encoder = super().encoder_config({**config, "is_decoder": False})
        return dataclasses.replace(encoder, direction=LEFT_TO_RIGHT if config.get("is_decoder") else BIDIRECTIONAL)

    def parts_of(self, encoder, present):
        parts = super().parts_of(encoder, present) - {CLM}
        if encoder.direction == BIDIRECTIONAL:
            return parts
        if parts != {MLM}:
            raise UserError(
                "config.json has is_decoder=True; bertjax converts such a model only as BertLMHeadModel, whose only "
                "head predicts the next token"
            )
        return frozenset({CLM})

    def refusals(self, encoder, pad_id):
        if encoder.direction == LEFT_TO_RIGHT:  # fine with a causal LM head, which `complaints` checks
            encoder = dataclasses.replace(encoder, direction=BIDIRECTIONAL)
        return super().refusals(encoder, pad_id)

    def complaints(self, encoder, flat, pad_id):
        lines = super().complaints(encoder, flat, pad_id)
        if encoder.direction == LEFT_TO_RIGHT and CLM not in parts_in(flat):
            why = f"reads so only as BertLMHeadModel; the model has no head {CLM!r}"
            lines.append(self.refusal("direction", encoder.direction, why))
        return lines

    def settings(self, encoder, architecture):
        reads_left = {"is_decoder": True} if encoder.direction == LEFT_TO_RIGHT else {}
        return super().settings(encoder, architecture) | reads_left


FAMILY = _Bert(
    title="BERT",
    model_type="bert",
    stem="Bert",
    table=(*names.embeddings("bert.embeddings"), *names.bert_layers("bert")),
    parts={
        POOLER: names.dense("bert.pooler.dense", "encoder/pooler"),
        MLM: names.masked_lm(*MASKED_LM),
        CLM: names.masked_lm(*MASKED_LM, head=CLM),
        NSP: names.dense("cls.seq_relationship", "heads/nsp/classifier"),
    },
    classes={frozenset({POOLER, MLM, NSP}): "ForPreTraining", frozenset({CLM}): "LMHeadModel"} | CLASSES,
    autos={"LMHeadModel": "AutoModelForCausalLM"},
    task_heads=task_heads(TaskHead("classifier", "bert.pooler.dense")),
    keys=KEYS | {"activation": "hidden_act"},
    defaults=EncoderConfig(vocab_size=30522),
    fixed=FIXED,
    decoder="cls.predictions.decoder",
)
