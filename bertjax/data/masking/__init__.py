"""Which tokens an encoder must guess, and what it sees in their place: pure functions of (seed, example id, epoch)."""

from bertjax.data.masking.base import Masked, Masking, mask, predictions
from bertjax.data.masking.kinds import NgramMasking, SpanMasking, WordMasking
from bertjax.data.masking.phrases import PhraseMasking
from bertjax.data.masking.tokens import TokenMasking
from bertjax.errors import UserError

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
    kind = kind or "tokens"
    if kind not in KINDS:
        raise UserError(f"masking.kind={kind!r} is unknown; choose one of {', '.join(KINDS)}")
    return KINDS[kind]
