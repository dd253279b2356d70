"""The families of transformers that are converted, and which of them a model is."""

from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.interop import albert, bert, distilbert, electra, roberta, xlnet
from bertjax.interop.family import Family, Flat
from bertjax.models.config import EncoderConfig

# Where several can hold a model, the first does.
FAMILIES: tuple[Family, ...] = (
    bert.FAMILY,
    albert.FAMILY,
    electra.FAMILY,
    distilbert.FAMILY,
    roberta.FAMILY,
    xlnet.FAMILY,
)


def of_config(config: Mapping[str, Any]) -> Family:
    """The family of a checkpoint by its `config.json`.

    Raises:
      UserError: it is none of `FAMILIES`.
    """
    kind = config.get("model_type")
    for family in FAMILIES:
        if family.model_type == kind:
            return family
    known = ", ".join(family.model_type for family in FAMILIES)
    raise UserError(f"config.json has model_type={kind!r}; bertjax converts {known}")


def of_model(encoder: EncoderConfig, flat: Flat, pad_id: int) -> Family:
    """The family whose classes compute what a model computes.

    Args:
      encoder: its architecture.
      flat: its params by path.
      pad_id: of its tokenizer.

    Raises:
      UserError: there is none; the line is that of the family which comes nearest.
    """
    complaints = [(family, family.complaints(encoder, flat, pad_id)) for family in FAMILIES]
    nearest, lines = min(complaints, key=lambda each: len(each[1]))
    if lines:
        raise UserError(lines[0])
    return nearest
