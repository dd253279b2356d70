"""Which tokens an encoder must guess, and what it sees in their place: pure functions of (seed, example id, epoch)."""

from bertjax.data.masking.base import Masked, Masking, mask, predictions
from bertjax.data.masking.kinds import NgramMasking, SpanMasking, WordMasking
from bertjax.data.masking.phrases import PhraseMasking
from bertjax.data.masking.tokens import TokenMasking
from bertjax.registry import known_class

__all__ = [
    "KINDS",
    "Masked",
    "Masking",
    "NgramMasking",
    "PhraseMasking",
    "SpanMasking",
    "TokenMasking",
    "WordMasking",
    "mask",
    "masking_class",
    "predictions",
]

KINDS = {masking.kind: masking for masking in (TokenMasking, WordMasking, NgramMasking, SpanMasking, PhraseMasking)}


def masking_class(kind: str | None) -> type[Masking]:
    """The class of a masking by its kind; that of single tokens where none is said.

    Raises:
      UserError: no such kind.
    """
    return known_class("masking", kind or "tokens", KINDS)
