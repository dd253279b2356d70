"""The encoder configuration: errors, the padded vocabulary, and presets."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from bertjax.models import vocabulary
from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks.lstm import LSTMBlock
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.blocks.modern import ModernBlock
from bertjax.models.blocks.xlnet import XLNetEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import UserError
from tests import batches


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


# {preset: (words, parameters, tolerance)}, of encoders without heads: counts of the released models, or what papers and
# model cards round. Those of DeBERTa do not count the words, and the pooler is ours; ALBERT's are the paper's table 1.
PUBLISHED = {
    "base": (30_522, 109_482_240, 0),
    "large": (30_522, 335_141_888, 0),
    "roberta_base": (50_265, 124_644_864, 0),
    "roberta_large": (50_265, 355_358_720, 0),
    "albert_base": (30_000, 12e6, 1.5e6),
    "albert_large": (30_000, 18e6, 1.5e6),
    "albert_xlarge": (30_000, 60e6, 0.06 * 60e6),
    "albert_xxlarge": (30_000, 235e6, 0.06 * 235e6),
    "mobilebert": (30_522, 24_844_544, 0),
    "mobilebert_tiny": (30_522, 15.1e6, 0.05 * 15.1e6),
    "ib_bert_large": (30_522, 293e6, 0.05 * 293e6),
    "eurobert_210m": (128_256, 212e6, 1e6),
    "eurobert_610m": (128_256, 608e6, 1e6),
    "eurobert_2_1b": (128_256, 2108e6, 1e6),
    "neobert": (30_522, 222e6, 1e6),
    "deberta_v3_xsmall": (128_100, 22e6 + 128_100 * 384 + 384**2, 1.5e6),
    "deberta_v3_small": (128_100, 44e6 + 128_100 * 768 + 768**2, 1.5e6),
    "deberta_v3_base": (128_100, 86e6 + 128_100 * 768 + 768**2, 1.5e6),
    "deberta_v3_large": (128_100, 304e6 + 128_100 * 1024 + 1024**2, 1.5e6),
}
# {preset: millions}, with the MLM head; ModernBERT's paper reports them in section 2.1.3.
WITH_HEAD = {"modernbert_base": 149, "modernbert_large": 395, "ettin_17m": 17, "ettin_32m": 32, "ettin_68m": 68}
WITH_HEAD |= {"ettin_150m": 149, "ettin_400m": 395, "ettin_1b": 1031, "mmbert_small": 140, "mmbert_base": 307}


def shapes_of(config, has_head: bool = False) -> dict:
    def init():
        encoder = Encoder(config).init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
        if not has_head:
            return encoder
        hidden, word = jnp.zeros((1, 1, config.width)), encoder["embeddings"]["word"]
        return {"encoder": encoder, "mlm": MaskedLMHead(config).init(jax.random.key(0), hidden, word)["params"]}

    return jax.eval_shape(init)


@pytest.mark.parametrize("preset", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(preset):
    words, parameters, tolerance = PUBLISHED[preset]
    config = dataclasses.replace(PRESETS[preset], vocab_size=words)
    shapes = shapes_of(config)
    counted = vocabulary.count_parameters(shapes, config)
    assert abs(counted - parameters) <= tolerance
    padding = (config.padded_vocab_size - words) * config.embedded_width
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == counted + padding


@pytest.mark.parametrize("preset", WITH_HEAD)
def test_modern_presets_have_the_published_number_of_parameters(preset):
    config = dataclasses.replace(PRESETS[preset], vocab_size=256_000 if "mm" in preset else 50_368)
    counted = vocabulary.count_parameters(shapes_of(config, has_head=True), config)
    assert config.head_channels == 64 and abs(counted / 1e6 - WITH_HEAD[preset]) < 1


@pytest.fixture(scope="module")
def params() -> dict:
    return jax.jit(lambda key: BERT().init(BERT().model(batches.ENCODER), key, batches.make(2)))(jax.random.key(0))
