"""RoBERTa and MPNet in transformers: `RobertaModel`, `RobertaForMaskedLM`, `RobertaConfig`, `MPNetModel` and so on.

(transformers 4.57, models/roberta/modeling_roberta.py and configuration_roberta.py; 5.24, the same in models/mpnet.)
Their classes count positions over non-padding tokens.

RoBERTa's start at row `pad_token_id + 1`. So our `embeddings.position_offset` is the padding id plus one: 2 with
RoBERTa's own tokenizer, 1 with bertjax's. Rows that no token reads are not written. The segment table has one row,
which is zero in the published models: that is our encoder without segments.

MPNet's padding is always id 1 and its first position row 2, whatever `pad_token_id` is. Its classes compute 32 buckets,
whatever `relative_attention_num_buckets` is.
"""

import dataclasses
import json
from collections.abc import Mapping

import numpy as np

from bertjax.config.export import Export
from bertjax.data.tokenizer import Tokenizer, tokenizer_json
from bertjax.data.tokenizer.layout import layout_of, template
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.interop import names
from bertjax.interop.bert import FIXED, KEYS, KEYS_WITHOUT_SEGMENTS
from bertjax.interop.family import MLM, POOLER, Family
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError

_POSITION, _SEGMENT = "encoder/embeddings/position", "encoder/embeddings/segment"
_PAD_ID = 1  # of MPNet
_FIRST = _PAD_ID + 1  # its first position row
_MASKED_LM = names.masked_lm("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")


def _parts(model: str) -> dict[str, tuple[names.Name, ...]]:
    return {POOLER: names.dense(f"{model}.pooler.dense", "encoder/pooler"), MLM: _MASKED_LM}


def _heads(model: str) -> Mapping[str, TaskHead]:
    return task_heads(
        TaskHead("classifier.out_proj", "classifier.dense"), TaskHead("classifier", f"{model}.pooler.dense")
    )


class _Roberta(Family):
    def refusals(self, encoder, pad_id):
        theirs = {"embeddings.segments": encoder.embeddings.segments or 1, "embeddings.position_offset": 0}
        has_tables = encoder.embeddings.kind == self.defaults.embeddings.kind
        lines = super().refusals(encoder.replace(theirs if has_tables else {}), pad_id)
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


ROBERTA = _Roberta(
    title="RoBERTa",
    model_type="roberta",
    stem="Roberta",
    table=(*names.embeddings("roberta.embeddings"), *names.bert_layers("roberta")),
    parts=_parts("roberta"),
    task_heads=_heads("roberta"),
    keys=KEYS,
    defaults=EncoderConfig(vocab_size=50265),
    fixed=FIXED | {"hidden_act": "gelu"},  # the head always uses gelu, whatever the key is
    decoder="lm_head.decoder",
    finds_padding_by_id=True,  # it counts positions over the others
)
# The same architecture under other class names, with other tokenizers. They are written back as RoBERTa.
XLM_R = dataclasses.replace(ROBERTA, title="XLM-R", model_type="xlm-roberta", stem="XLMRoberta")
CAMEMBERT = dataclasses.replace(ROBERTA, title="CamemBERT", model_type="camembert", stem="Camembert")


class _MPNet(Family):
    def encoder_config(self, config):
        encoder = super().encoder_config(config)
        if (rows := encoder.max_positions) <= _FIRST:
            raise config_error("max_position_embeddings", rows, f"{self.title} leaves {_FIRST} unused; get it again")
        return dataclasses.replace(encoder, max_positions=rows - _FIRST)

    def settings(self, encoder, architecture):
        return super().settings(encoder, architecture) | {"max_position_embeddings": encoder.max_positions + _FIRST}

    def tokenizer_complaint(self, tokenizer):
        complaint = super().tokenizer_complaint(tokenizer)
        if complaint or tokenizer.pad_id == _PAD_ID or _can_exchange(tokenizer):
            return complaint
        return (
            f"the tokenizer has {tokenizer.pad_id} as the id of its padding, and transformers' {self.title} takes id "
            f"{_PAD_ID} for it; train a tokenizer of data.tokenizer.kind=wordpiece or byte_bpe, in which ids are "
            "exchanged for export"
        )

    def to_ours(self, encoder, flat, pad_id):
        if pad_id != _PAD_ID:
            raise UserError(f"the tokenizer pads with {pad_id}, {self.title} with {_PAD_ID}; get both of one model")
        return encoder, flat


def _can_exchange(tokenizer: Tokenizer) -> bool:
    """Return whether ids of a tokenizer can be exchanged; subclasses keep theirs in other ways."""
    return type(tokenizer) is HuggingFaceTokenizer


def with_published_ids(export: Export) -> Export:
    """Return an MPNet with its padding at id 1: two ids are exchanged, in the tokenizer and in all tables.

    Tokenizers that bertjax trains have their padding at id 0. Other models are returned as they are, and MPNets
    whose tokenizer is another kind than WordPiece and BPE of bytes, which `tokenizer_complaint` refuses.
    """
    is_mpnet = export.encoder.block.kind == MPNET.defaults.block.kind
    if not is_mpnet or not _can_exchange(export.tokenizer) or (own := export.tokenizer.pad_id) == _PAD_ID:
        return export
    tokenizer, pair = export.tokenizer, {own: _PAD_ID, _PAD_ID: own}
    description = dict(tokenizer.description)
    vocab = {piece: pair.get(number, number) for piece, number in description["model"]["vocab"].items()}
    added = [token | {"id": pair.get(token["id"], token["id"])} for token in description.get("added_tokens") or []]
    description["model"] = description["model"] | {"vocab": dict(sorted(vocab.items(), key=lambda entry: entry[1]))}
    description["added_tokens"] = sorted(added, key=lambda token: token["id"])
    if layout := layout_of(description.get("post_processor")):
        cls, sep = ((piece, vocab[piece]) for piece in (layout.cls, layout.sep))
        description["post_processor"] = template(cls, sep, layout.segment, layout.cls_last, layout.separators)
    content = json.dumps(description, ensure_ascii=False).encode()
    return export._replace(
        tokenizer=tokenizer_json.from_json(content, "the tokenizer"),
        params=vocabulary.exchanged(export.params, own, _PAD_ID),
    )


MPNET = _MPNet(
    title="MPNet",
    model_type="mpnet",
    stem="MPNet",
    table=(
        *names.embeddings("mpnet.embeddings", segments=False),
        names.Name("mpnet.encoder.relative_attention_bias.weight", "encoder/shared/bias"),
        *names.bert_layers(
            "mpnet", "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm"
        ),
    ),
    parts=_parts("mpnet"),
    task_heads=_heads("mpnet"),
    keys=KEYS_WITHOUT_SEGMENTS,
    # Their class has another default epsilon than the published model, and rows for 510 positions.
    defaults=PRESETS["mpnet_base"].replace({"vocab_size": 30527, "norm_epsilon": 1e-12, "max_positions": 512}),
    fixed={"hidden_act": "gelu", "relative_attention_num_buckets": 32},  # the head uses gelu, whatever the key is
    decoder="lm_head.decoder",
    finds_padding_by_id=True,  # it counts positions over the others
)
