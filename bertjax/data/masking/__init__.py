"""Masking for masked language modeling: choose the tokens to predict and replace them.

Everything here is a pure function of (seed, example id, epoch).
"""

from bertjax.config.registry import Union
from bertjax.data.masking.base import Masked, Masking, gather_masked, mask
from bertjax.data.masking.kinds import (
    NgramMasking,
    PhraseMasking,
    SpanMasking,
    TokenMasking,
    UniformMasking,
    WordMasking,
)

__all__ = [
    "KINDS",
    "MASKINGS",
    "Masked",
    "Masking",
    "NgramMasking",
    "PhraseMasking",
    "SpanMasking",
    "TokenMasking",
    "UniformMasking",
    "WordMasking",
    "gather_masked",
    "mask",
]

KINDS = {
    "tokens": "bertjax.data.masking.kinds:TokenMasking",
    "words": "bertjax.data.masking.kinds:WordMasking",
    "ngrams": "bertjax.data.masking.kinds:NgramMasking",
    "spans": "bertjax.data.masking.kinds:SpanMasking",
    "phrases": "bertjax.data.masking.kinds:PhraseMasking",
    "uniform": "bertjax.data.masking.kinds:UniformMasking",
}
MASKINGS = Union("masking", Masking, default="tokens", kinds=KINDS)
