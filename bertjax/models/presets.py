"""Published architectures by name."""

import dataclasses

from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks.deberta import DebertaBlock
from bertjax.models.blocks.llama import LlamaBlock, WordEmbeddings
from bertjax.models.blocks.lstm import LSTMBlock
from bertjax.models.blocks.mobilebert import MobileBertBlock, MobileBertEmbeddings
from bertjax.models.blocks.modern import ModernBlock
from bertjax.models.blocks.mpnet import MPNetBlock
from bertjax.models.blocks.xlnet import XLNetBlock, XLNetEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.fixed import FIXED_PATTERNS


def _bert(layers: int, width: int, heads: int, **others) -> EncoderConfig:
    return EncoderConfig(layers=layers, width=width, heads=heads, feedforward=4 * width, **others)


def _roberta(layers: int, width: int, heads: int) -> EncoderConfig:
    # RoBERTa has no NSP and therefore no segments. Its positions start after the padding id, which is 1.
    return _bert(layers, width, heads, embeddings=BertEmbeddings(segments=0, position_offset=2), norm_epsilon=1e-5)


def _albert(layers: int, width: int) -> EncoderConfig:
    # ALBERT shares all layers and factorizes the word table through 128 channels, so depth adds no parameters.
    return _bert(layers, width, width // 64, embeddings=BertEmbeddings(128), activation="gelu_tanh", sharing="all")


def _xlnet(layers: int, width: int, heads: int) -> EncoderConfig:
    return _bert(layers, width, heads, embeddings=XLNetEmbeddings(), block=XLNetBlock())


def _recent(layers: int, width: int, heads: int, feedforward: int, **others) -> EncoderConfig:
    return EncoderConfig(
        layers=layers, width=width, heads=heads, feedforward=feedforward,
        norm_epsilon=1e-5, dropout=0.0, attention_dropout=0.0, **others,
    )  # fmt: skip


def _modern(layers: int, width: int, heads: int, feedforward: int, base=10_000.0, max_positions=8192) -> EncoderConfig:
    parts = {"embeddings": BertEmbeddings(segments=0, positions="none"), "block": ModernBlock(local_rotary_base=base)}
    return _recent(layers, width, heads, feedforward, max_positions=max_positions, **parts)


def _ettin(layers: int, width: int, heads: int, feedforward: int) -> EncoderConfig:
    return _modern(layers, width, heads, feedforward, base=160_000.0, max_positions=7999)


def _mmbert(width: int, heads: int) -> EncoderConfig:
    return _modern(22, width, heads, 1152, base=160_000.0)


def _eurobert(layers: int, width: int, heads: int, feedforward: int, key_value_heads: int = 0) -> EncoderConfig:
    parts = {"embeddings": WordEmbeddings(), "block": LlamaBlock(key_value_heads, rotary_base=250_000.0)}
    return _recent(layers, width, heads, feedforward, max_positions=8192, **parts)


def _neobert(layers: int, width: int, heads: int, feedforward: int) -> EncoderConfig:
    parts = {"embeddings": WordEmbeddings(), "block": LlamaBlock(decoder_bias=True, pooler=True)}
    return _recent(layers, width, heads, feedforward, max_positions=4096, **parts)


def _deberta(layers: int, width: int, heads: int) -> EncoderConfig:
    return _bert(
        layers, width, heads, embeddings=BertEmbeddings(segments=0, positions="none"), block=DebertaBlock(),
        norm_epsilon=1e-7, pooler_activation="gelu",
    )  # fmt: skip


def _mobilebert(feedforwards: int, bottlenecked: str) -> EncoderConfig:
    return EncoderConfig(
        block=MobileBertBlock(feedforwards=feedforwards, bottlenecked=bottlenecked),
        layers=24, width=512, heads=4, feedforward=512, activation="relu", embeddings=MobileBertEmbeddings(),
        dropout=0.0,
    )  # fmt: skip


# fixed_tiny: seven fixed heads and one learned head, as in Raganato et al. (2020), at the size of tiny.
# base and large: Devlin et al. (2019), section 3. google_tiny to medium: Turc et al. (2019), arXiv 1908.08962, table 1.
# electra_small: Clark et al. (2020), arXiv 2003.10555, table 6.
# roberta_*: Liu et al. (2019), arXiv 1907.11692, table 9. albert_*: Lan et al. (2020), section 3.1 and table 1.
# xlnet_*: Yang et al. (2019), arXiv 1906.08237, section 3.1.
# mobilebert*, ib_bert_large (its teacher): Sun et al. (2020), arXiv 2004.02984, table 1; dropout from their code.
# bilstm: one layer, as wide as its embeddings, with ReLU on the last states, as in the students of Tang et al. (2019),
# arXiv 1903.12136. PyTorch's LSTM with 150 channels starts from uniform values between +-1 / sqrt(150), whose standard
# deviation is 0.047. Ours starts from a normal of that deviation, cut at two deviations, which leaves 0.041.
# modernbert_*: Warner et al. (2024), arXiv 2412.13663, section 2.1 and appendix A. ettin_*: Weller et al. (2025), arXiv
# 2507.11412, table 1. mmbert_*: Marone et al. (2025), arXiv 2509.06888, table 1. Rotary bases and lengths are those of
# the published models, after their context extension. eurobert_*: Boizard et al. (2025), arXiv 2503.05500, and their
# code (Nicolas-BZRD/EuroBERT, optimus/trainer/model/encoder/eurobert.py). neobert: Le Breton et al. (2025), arXiv
# 2502.19587, and their code (chandar-lab/NeoBERT, src/neobert/model/model.py); feedforward is 2/3 of their 3,072.
# deberta_v3_*: He et al. (2021), arXiv 2111.09543, and their code (microsoft/DeBERTa, experiments/language_model,
# rtd_*.json).
# mpnet_base: Song et al. (2020), arXiv 2004.09297, section 3.1.
PRESETS: dict[str, EncoderConfig] = {
    "tiny": _bert(3, 256, 4),
    "fixed_tiny": _bert(3, 256, 8, block=BertBlock(FIXED_PATTERNS)),
    "google_tiny": _bert(2, 128, 2),
    "mini": _bert(4, 256, 4),
    "small": _bert(4, 512, 8),
    "medium": _bert(8, 512, 8),
    "base": _bert(12, 768, 12),
    "large": _bert(24, 1024, 16),
    "roberta_base": _roberta(12, 768, 12),
    "roberta_large": _roberta(24, 1024, 16),
    "albert_base": _albert(12, 768),
    "albert_large": _albert(24, 1024),
    "albert_xlarge": _albert(24, 2048),
    "albert_xxlarge": _albert(12, 4096),
    "electra_small": _bert(12, 256, 4, embeddings=BertEmbeddings(128), pooler_activation="gelu"),
    "xlnet_base": _xlnet(12, 768, 12),
    "xlnet_large": _xlnet(24, 1024, 16),
    "mobilebert": _mobilebert(4, "queries_keys"),
    "mobilebert_tiny": _mobilebert(2, "all"),
    "ib_bert_large": EncoderConfig(
        block=MobileBertBlock(inner_width=1024, bottlenecked="none", feedforwards=1, normalization="layer_norm"),
        layers=24,
        width=512,
        heads=4,
        feedforward=4096,
        embeddings=MobileBertEmbeddings(),
    ),
    "bilstm": EncoderConfig(
        embeddings=BertEmbeddings(positions="none"),
        block=LSTMBlock(),
        layers=1,
        width=300,
        pooler_activation="relu",
        init_stddev=0.047,
    ),
    "modernbert_base": _modern(22, 768, 12, 1152),
    "modernbert_large": _modern(28, 1024, 16, 2624),
    "ettin_17m": _ettin(7, 256, 4, 384),
    "ettin_32m": _ettin(10, 384, 6, 576),
    "ettin_68m": _ettin(19, 512, 8, 768),
    "ettin_150m": _ettin(22, 768, 12, 1152),
    "ettin_400m": _ettin(28, 1024, 16, 2624),
    "ettin_1b": _ettin(28, 1792, 28, 3840),
    "mmbert_small": _mmbert(384, 6),
    "mmbert_base": _mmbert(768, 12),
    "eurobert_210m": _eurobert(12, 768, 12, 3072),
    "eurobert_610m": _eurobert(26, 1152, 18, 4096, key_value_heads=6),
    "eurobert_2_1b": _eurobert(32, 2304, 18, 6144, key_value_heads=6),
    "neobert": _neobert(28, 768, 12, 2048),
    "deberta_v3_xsmall": _deberta(12, 384, 6),
    "deberta_v3_small": _deberta(6, 768, 12),
    "deberta_v3_base": _deberta(12, 768, 12),
    "deberta_v3_large": _deberta(24, 1024, 16),
    "mpnet_base": dataclasses.replace(_roberta(12, 768, 12), block=MPNetBlock()),
}
