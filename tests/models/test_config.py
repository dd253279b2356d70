"""The encoder configuration: errors, the padded vocabulary, and presets."""

import pytest

from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks.lstm import LSTMBlock
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.blocks.modern import ModernBlock
from bertjax.models.blocks.xlnet import XLNetEmbeddings
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"width": 100, "heads": 12}, "model.width=100 is not divisible by model.heads=12"),
        (
            {"dropout": 0.9985},
            r"model.dropout=0.9985 would drop everything, .* lower it to 0.99 or less",
        ),
    ],
)
def test_invalid_architectures(fields, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        EncoderConfig(**fields)


@pytest.mark.parametrize(
    "block, embeddings, message",
    [
        *[
            (block, embeddings, f"model.block.kind={block.kind} reads .*; set model.embeddings.positions=learned")
            for block in (BertBlock(), MobileBertBlock(inner_width=96))
            for embeddings in (BertEmbeddings(positions="none"), MobileBertEmbeddings(positions="none"))
        ],
        *[
            (block, XLNetEmbeddings(), f"model.embeddings.kind=xlnet .*, not {block.kind}; set model.embeddings.kind=")
            for block in (BertBlock(), MobileBertBlock(inner_width=96), ModernBlock(), LSTMBlock())
        ],
    ],
)
def test_every_encoder_reads_token_order_and_segments(block, embeddings, message):
    with pytest.raises(UserError, match=f"^{message}"):
        EncoderConfig(block=block, embeddings=embeddings)


@pytest.mark.parametrize("field", ["dtype", "remat"])
def test_invalid_executions(field):
    with pytest.raises(UserError, match=f"^{field}='float8' is unknown; choose one of "):
        Execution(**{field: "float8"})


@pytest.mark.parametrize("vocab_size, padded", [(1, 128), (128, 128), (129, 256), (8000, 8064), (30_522, 30_592)])
def test_the_vocabulary_is_padded_to_a_multiple_of_128(vocab_size, padded):
    assert EncoderConfig(vocab_size=vocab_size).padded_vocab_size == padded


def test_presets_are_the_published_sizes():
    """(layers, width, heads, feed-forward): Devlin et al. (2019), section 3; Turc et al. (2019), table 1; Liu et al.
    (2019), table 9; Lan et al. (2020), section 3.1 and table 1; Clark et al. (2020), table 6;
    Sun et al. (2020), MobileBERT, table 1; Warner et al. (2024); ours."""
    assert {name: (p.layers, p.width, p.heads, p.feedforward) for name, p in PRESETS.items()} == {
        "tiny": (3, 256, 4, 1024),
        "fixed_tiny": (3, 256, 8, 1024),
        "google_tiny": (2, 128, 2, 512),
        "mini": (4, 256, 4, 1024),
        "small": (4, 512, 8, 2048),
        "medium": (8, 512, 8, 2048),
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
        "roberta_base": (12, 768, 12, 3072),
        "roberta_large": (24, 1024, 16, 4096),
        "albert_base": (12, 768, 12, 3072),
        "albert_large": (24, 1024, 16, 4096),
        "albert_xlarge": (24, 2048, 32, 8192),
        "albert_xxlarge": (12, 4096, 64, 16384),
        "electra_small": (12, 256, 4, 1024),
        "xlnet_base": (12, 768, 12, 3072),
        "xlnet_large": (24, 1024, 16, 4096),
        "mobilebert": (24, 512, 4, 512),
        "mobilebert_tiny": (24, 512, 4, 512),
        "ib_bert_large": (24, 512, 4, 4096),
        "bilstm": (1, 300, 12, 3072),  # heads and feed-forward are those of no layer
        "modernbert_base": (22, 768, 12, 1152),
        "modernbert_large": (28, 1024, 16, 2624),
        "ettin_17m": (7, 256, 4, 384),
        "ettin_32m": (10, 384, 6, 576),
        "ettin_68m": (19, 512, 8, 768),
        "ettin_150m": (22, 768, 12, 1152),
        "ettin_400m": (28, 1024, 16, 2624),
        "ettin_1b": (28, 1792, 28, 3840),
        "mmbert_small": (22, 384, 6, 1152),
        "mmbert_base": (22, 768, 12, 1152),
        "eurobert_210m": (12, 768, 12, 3072),
        "eurobert_610m": (26, 1152, 18, 4096),
        "eurobert_2_1b": (32, 2304, 18, 6144),
        "neobert": (28, 768, 12, 2048),
        "deberta_v3_xsmall": (12, 384, 6, 1536),
        "deberta_v3_small": (6, 768, 12, 3072),
        "deberta_v3_base": (12, 768, 12, 3072),
        "deberta_v3_large": (24, 1024, 16, 4096),
        "mpnet_base": (12, 768, 12, 3072),
    }
