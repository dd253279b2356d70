"""MPNet in transformers: `MPNetModel`, `MPNetForMaskedLM` and `MPNetConfig`.

(transformers 5.24, models/mpnet/modeling_mpnet.py and configuration_mpnet.py.) As in RoBERTa's classes, positions are
counted over tokens that are not padding. Here the padding is always id 1 and the first position row 2, whatever
`pad_token_id` is. The classes compute 32 buckets, whatever `relative_attention_num_buckets` is.
"""

import dataclasses
import json

from bertjax.data.tokenizer import Tokenizer, tokenizer_json
from bertjax.data.tokenizer.layout import layout_of, template
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.interop import names
from bertjax.interop.bert import CLASSES, KEYS_WITHOUT_SEGMENTS
from bertjax.interop.family import MLM, POOLER, Family
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models import vocabulary
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError

_PAD_ID = 1
_FIRST = _PAD_ID + 1  # the first position row


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

    def with_published_ids(self, export):
        """Return an MPNet with its padding at id 1: two ids are exchanged, in the tokenizer and in all tables.

        Tokenizers that bertjax trains have their padding at id 0. Other models are returned as they are, and MPNets
        whose tokenizer is another kind than WordPiece and BPE of bytes, which `tokenizer_complaint` refuses.
        """
        is_mpnet = export.encoder.block.kind == self.defaults.block.kind
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

    def to_ours(self, encoder, flat, pad_id):
        if pad_id != _PAD_ID:
            raise UserError(f"the tokenizer pads with {pad_id}, {self.title} with {_PAD_ID}; get both of one model")
        return encoder, flat


def _can_exchange(tokenizer: Tokenizer) -> bool:
    """Return whether ids of a tokenizer can be exchanged; subclasses keep theirs in other ways."""
    return type(tokenizer) is HuggingFaceTokenizer


FAMILY = _MPNet(
    title="MPNet",
    model_type="mpnet",
    stem="MPNet",
    table=(
        *names.embeddings("mpnet.embeddings", segments=False),
        names.Name("mpnet.encoder.relative_attention_bias.weight", "encoder/shared/bias"),
        *names.layers(
            f"mpnet.encoder.layer.{names.LAYER}",
            query="attention.attn.q",
            key="attention.attn.k",
            value="attention.attn.v",
            attended="attention.attn.o",
            attention_norm="attention.LayerNorm",
            intermediate="intermediate.dense",
            output="output.dense",
            output_norm="output.LayerNorm",
        ),
    ),
    parts={
        POOLER: names.dense("mpnet.pooler.dense", "encoder/pooler"),
        MLM: names.masked_lm("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    },
    classes=CLASSES,
    task_heads=task_heads(
        TaskHead("classifier.out_proj", "classifier.dense"), TaskHead("classifier", "mpnet.pooler.dense")
    ),
    keys=KEYS_WITHOUT_SEGMENTS,
    # Their class has another default epsilon than the published model, and rows for 510 positions.
    defaults=PRESETS["mpnet_base"].replace({"vocab_size": 30527, "norm_epsilon": 1e-12, "max_positions": 512}),
    fixed={"hidden_act": "gelu", "relative_attention_num_buckets": 32},  # the head uses gelu, whatever the key is
    decoder="lm_head.decoder",
    has_flax=False,
    finds_padding_by_id=True,  # it counts positions over the others
)
