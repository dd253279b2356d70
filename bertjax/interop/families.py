"""The families of transformers that bertjax converts, and the choice of one for a model."""

from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.interop import albert, bert, distilbert, electra, mobilebert, roberta, xlnet
from bertjax.interop.family import Family, Flat
from bertjax.models.config import EncoderConfig

# If several can hold a model, the first one is used.
FAMILIES: tuple[Family, ...] = (
    bert.FAMILY,
    albert.FAMILY,
    electra.FAMILY,
    distilbert.FAMILY,
    roberta.FAMILY,
    xlnet.FAMILY,
    mobilebert.FAMILY,
)
# These compute the same as one of the above, under names of their own.
READ_ONLY: tuple[Family, ...] = (roberta.XLM_R, roberta.CAMEMBERT)


def of_config(config: Mapping[str, Any]) -> Family:
    """Return the family of a checkpoint from its `config.json`.

    Raises:
      UserError: it is not one of `FAMILIES` or `READ_ONLY`.
    """
    kind = config.get("model_type")
    for family in (*FAMILIES, *READ_ONLY):
        if family.model_type == kind:
            return family
    known = ", ".join(family.model_type for family in (*FAMILIES, *READ_ONLY))
    raise UserError(f"config.json has model_type={kind!r}; bertjax converts {known}")


def of_model(encoder: EncoderConfig, flat: Flat, pad_id: int) -> Family:
    """Return the family whose classes compute the same as a model.

    Args:
      encoder: architecture of the model.
      flat: params by flattened path.
      pad_id: id of the tokenizer's padding.

    Raises:
      UserError: there is no such family; the message is about the nearest one.
    """
    complaints = [
        (family, family.complaints(encoder, flat, pad_id), family.pooler_complaints(encoder, flat))
        for family in FAMILIES
    ]
    nearest, lines, pooler_lines = min(complaints, key=lambda complaint: tuple(map(len, complaint[1:])))
    if lines or pooler_lines:
        raise UserError((lines or pooler_lines)[0])
    return nearest


def has_encoder(encoder: EncoderConfig, pad_id: int) -> bool:
    """Return whether a family computes an encoder, whatever heads it has; `pad_id` is that of the tokenizer."""
    return any(not family.refusals(encoder, pad_id) for family in FAMILIES)
