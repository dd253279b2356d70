"""Blocks, one layer type per file: settings, Flax module and checks. BERT's own block is `bertjax.models.bert`."""

from bertjax.config.registry import Union
from bertjax.models.blocks.base import Block

__all__ = ["BLOCKS", "KINDS", "Block"]

KINDS = {
    "bert": "bertjax.models.bert:BertBlock",
    "modern": "bertjax.models.blocks.modern:ModernBlock",
    "xlnet": "bertjax.models.blocks.xlnet:XLNetBlock",
    "mpnet": "bertjax.models.blocks.mpnet:MPNetBlock",
    "mobilebert": "bertjax.models.blocks.mobilebert:MobileBertBlock",
    "llama": "bertjax.models.blocks.llama:LlamaBlock",
    "deberta": "bertjax.models.blocks.deberta:DebertaBlock",
    "lstm": "bertjax.models.blocks.lstm:LSTMBlock",
}

BLOCKS = Union("model.block", Block, default="bert", kinds=KINDS)
