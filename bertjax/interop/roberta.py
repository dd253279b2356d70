"""RoBERTa in transformers: `RobertaModel`, `RobertaForMaskedLM` and `RobertaConfig`.

(transformers 4.57, models/roberta/modeling_roberta.py and configuration_roberta.py.) Its classes count positions over
non-padding tokens, starting at row `pad_token_id + 1`. So our `embeddings.position_offset` is the padding id plus one:
2 with RoBERTa's own tokenizer, 1 with bertjax's. Rows that no token reads are not written. The segment table has one
row, which is zero in the published models: that is our encoder without segments.
"""

import dataclasses

import numpy as np

from bertjax.interop import names
from bertjax.interop.bert import CLASSES, FIXED, KEYS
from bertjax.interop.family import MLM, POOLER, Family
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.config import EncoderConfig

_POSITION, _SEGMENT = "encoder/embeddings/position", "encoder/embeddings/segment"


class _Roberta(Family):
    def refusals(self, encoder, pad_id):
        theirs = {"embeddings.segments": encoder.embeddings.segments or 1}
        has_tables = encoder.embeddings.kind == self.defaults.embeddings.kind
        lines = super().refusals(_without_offset(encoder).replace(theirs if has_tables else {}), pad_id)
        if (offset := encoder.embeddings.position_offset) <= pad_id:
            why = f"counts positions from row {pad_id + 1} on"
            lines.append(self.refusal("embeddings.position_offset", offset, why))
        return lines

    def encoder_config(self, config):
        encoder = super().encoder_config(config)
        if not encoder.embeddings.segments:
            raise config_error("type_vocab_size", 0, f"transformers' {self.title} needs at least one row")
        pad_id, rows = config.get("pad_token_id", 1), encoder.max_positions
        if type(pad_id) is not int or not 0 <= pad_id < rows - 1:
            raise config_error("pad_token_id", pad_id, f"{self.title} counts its {rows} rows after it; get it again")
        return encoder.replace({"embeddings.position_offset": pad_id + 1, "max_positions": rows - pad_id - 1})

    def settings(self, encoder, architecture):
        rows = encoder.max_positions + encoder.embeddings.position_offset
        return super().settings(encoder, architecture) | {"max_position_embeddings": rows}

    def to_theirs(self, encoder, flat, pad_id):
        # No token reads rows before our offset. Theirs starts at row pad_id + 1, so the surplus is dropped.
        flat = flat | {_POSITION: flat[_POSITION][encoder.embeddings.position_offset - pad_id - 1 :]}
        if not encoder.embeddings.segments:
            flat[_SEGMENT] = np.zeros((1, encoder.width), np.float32)
        theirs = {"embeddings.position_offset": pad_id + 1, "embeddings.segments": encoder.embeddings.segments or 1}
        return encoder.replace(theirs), flat

    def to_ours(self, encoder, flat, pad_id):
        if (first := encoder.embeddings.position_offset) != pad_id + 1:
            raise config_error("pad_token_id", first - 1, f"the tokenizer has {pad_id}; get the files of one model")
        # Any byte counts, -0.0 included, so that the way back restores every bit.
        if encoder.embeddings.segments > 1 or any(flat[_SEGMENT].tobytes()):
            return encoder, flat
        kept = {path: leaf for path, leaf in flat.items() if path != _SEGMENT}
        return encoder.replace({"embeddings.segments": 0}), kept


def _without_offset(encoder: EncoderConfig) -> EncoderConfig:
    """Return an encoder that reads its position table, if it has one, from the first row."""
    return encoder.replace({"embeddings.position_offset": 0}) if encoder.embeddings.position_offset else encoder


FAMILY = _Roberta(
    title="RoBERTa",
    model_type="roberta",
    stem="Roberta",
    table=(*names.embeddings("roberta.embeddings"), *names.bert_layers("roberta")),
    parts={
        POOLER: names.dense("roberta.pooler.dense", "encoder/pooler"),
        MLM: names.masked_lm("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    },
    classes=CLASSES,
    task_heads=task_heads(
        TaskHead("classifier.out_proj", "classifier.dense"), TaskHead("classifier", "roberta.pooler.dense")
    ),
    keys=KEYS,
    defaults=EncoderConfig(vocab_size=50265),
    prefix="roberta.",
    fixed=FIXED | {"hidden_act": "gelu"},  # the head always uses gelu, whatever the key is
    decoder="lm_head.decoder",
    finds_padding_by_id=True,  # it counts positions over the others
)
# The same architecture under other class names, with other tokenizers. They are written back as RoBERTa.
XLM_R = dataclasses.replace(FAMILY, title="XLM-R", model_type="xlm-roberta", stem="XLMRoberta")
CAMEMBERT = dataclasses.replace(FAMILY, title="CamemBERT", model_type="camembert", stem="Camembert")
