"""BERT, ALBERT, ELECTRA and DistilBERT in transformers: `BertModel`, `BertForMaskedLM`, `BertConfig` and so on.

(transformers 4.57, models/{bert,albert,electra,distilbert}/modeling_*.py and configuration_*.py.)
- A left-to-right BERT is a `BertLMHeadModel` with `is_decoder`. Its head has the same tensor names as
  `BertForMaskedLM`. Without a head it cannot be converted: `BertModel` pools [CLS], which then sees only itself.
- All layers in a group of ALBERT share their weights, so `{layer}` in its table is a group number. The dropout before
  the sentence-order head (`classifier_dropout_prob`) affects only training; bertjax has none.
- ELECTRA's classes have no pooler. In transformers a generator is a separate model. Ours shares the discriminator's
  embeddings and is not exported.
- DistilBERT has neither segments nor a pooler, and its layer-norm epsilon is hard-coded. `sinusoidal_pos_embds` affects
  only how positions are initialized: the checkpoint contains the table either way.
"""

import dataclasses

from bertjax.interop import names
from bertjax.interop.family import CLM, MLM, NSP, POOLER, RTD, SOP, Family, parts_in
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL, LEFT_TO_RIGHT
from bertjax.models.presets import PRESETS
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


BERT = _Bert(
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
    classes={frozenset({POOLER, MLM, NSP}): "ForPreTraining", frozenset({CLM}): "LMHeadModel"},
    autos={"LMHeadModel": "AutoModelForCausalLM"},
    task_heads=task_heads(TaskHead("classifier", "bert.pooler.dense")),
    keys=KEYS | {"activation": "hidden_act"},
    defaults=EncoderConfig(vocab_size=30522),
    fixed=FIXED,
    decoder="cls.predictions.decoder",
)


class _Albert(Family):
    def refusals(self, encoder, pad_id):
        lines = super().refusals(encoder, pad_id)
        # bertjax projects embeddings only if the widths differ; AlbertTransformer always has the projection.
        if encoder.embedded_width == encoder.width:
            lines.append(self.refusal("embeddings.width", encoder.width, "projects them; set another width"))
        return lines


ALBERT = _Albert(
    title="ALBERT",
    model_type="albert",
    stem="Albert",
    table=(
        *names.embeddings("albert.embeddings"),
        *names.dense("albert.encoder.embedding_hidden_mapping_in", "encoder/projection"),
        *names.layers(
            f"albert.encoder.albert_layer_groups.{names.LAYER}.albert_layers.0",
            "attention.query attention.key attention.value attention.dense attention.LayerNorm",
            "ffn ffn_output full_layer_layer_norm",
        ),
    ),
    parts={
        POOLER: names.dense("albert.pooler", "encoder/pooler"),
        MLM: names.masked_lm("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        SOP: names.dense("sop_classifier.classifier", "heads/sop/classifier"),
    },
    classes={frozenset({POOLER, MLM, SOP}): "ForPreTraining"},
    task_heads=task_heads(TaskHead("classifier", "albert.pooler")),
    keys=KEYS
    | {"activation": "hidden_act", "embeddings.width": "embedding_size", "sharing_groups": "num_hidden_groups"},
    defaults=PRESETS["albert_xxlarge"].replace({"vocab_size": 30000, "dropout": 0.0, "attention_dropout": 0.0}),
    fixed=FIXED | {"inner_group_num": 1},
    decoder="predictions.decoder",
)


_SUMMARY = {"summary_type": ("first",) * 2, "summary_use_proj": (True,) * 2, "summary_activation": ("gelu",) * 2}


class _Electra(Family):
    # Our generator shares the embeddings. Its MLM head reads a narrower encoder than that of the exported model.
    of_replaced_tokens = frozenset({"generator", MLM})
    note_on_generator = "generator and its head not exported: only pretraining needs them"


ELECTRA = _Electra(
    title="ELECTRA",
    model_type="electra",
    stem="Electra",
    table=(
        *names.embeddings("electra.embeddings"),
        *names.dense("electra.embeddings_project", "encoder/projection"),
        *names.bert_layers("electra"),
    ),
    parts={
        RTD: (
            *names.dense("discriminator_predictions.dense", "heads/rtd/transform"),
            *names.dense("discriminator_predictions.dense_prediction", "heads/rtd/classifier"),
        )
    },
    classes={frozenset({RTD}): "ForPreTraining"},
    task_heads=task_heads(
        TaskHead("classifier.out_proj", "classifier.dense"),
        TaskHead("classifier", "sequence_summary.summary", settings=_SUMMARY),
    ),
    keys=KEYS | {"activation": "hidden_act", "embeddings.width": "embedding_size"},
    defaults=PRESETS["electra_small"].replace({"vocab_size": 30522}),
    fixed=FIXED,
)


DISTILBERT = Family(
    title="DistilBERT",
    model_type="distilbert",
    stem="DistilBert",
    table=(
        *names.embeddings("distilbert.embeddings", segments=False),
        *names.layers(
            f"distilbert.transformer.layer.{names.LAYER}",
            "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm",
            "ffn.lin1 ffn.lin2 output_layer_norm",
        ),
    ),
    parts={MLM: names.masked_lm("vocab_transform", "vocab_layer_norm", "vocab_projector.bias")},
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
