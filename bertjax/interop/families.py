"""Registry of the model families in transformers that bertjax converts."""

from collections.abc import Mapping
from typing import Any

from bertjax.data.tokenizer import Tokenizer
from bertjax.interop import bert, deberta, llama, mobilebert, modernbert, roberta, xlnet
from bertjax.interop.family import Family, Flat
from bertjax.models.config import EncoderConfig
from bertjax.runtime.errors import UserError

# In order of preference: the first family that can hold a model is used.
FAMILIES: tuple[Family, ...] = (
    *(bert.BERT, bert.ALBERT, bert.ELECTRA, bert.DISTILBERT, roberta.ROBERTA, xlnet.FAMILY, mobilebert.FAMILY),
    *(modernbert.FAMILY, llama.EUROBERT, llama.NEOBERT, roberta.MPNET, deberta.FAMILY),
)
# RoBERTa under other class names. Both are written back as RoBERTa.
READ_ONLY: tuple[Family, ...] = (roberta.XLM_R, roberta.CAMEMBERT)
# Kinds of `model.embeddings` and `model.block` that transformers has classes for.
KINDS = {
    "embeddings": {family.defaults.embeddings.kind for family in FAMILIES},
    "block": {family.defaults.block.kind for family in FAMILIES},
}


def of_config(config: Mapping[str, Any]) -> Family:
    """Return a checkpoint's family, by `model_type` in its `config.json`.

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
    """Return the first family that computes the same function as a model.

    Args:
      encoder: the architecture.
      flat: params by flattened path.
      pad_id: padding id of the tokenizer.

    Raises:
      UserError: no family computes it; the message names a difference to the nearest family.
    """
    complaints = [(family, family.complaints(encoder, flat, pad_id)) for family in FAMILIES]
    for family, lines in complaints:
        if not lines:
            return family

    def rank(complaint: tuple[Family, list[str]]) -> tuple[bool, int]:
        # Complaints alone do not find the nearest family: ELECTRA refuses MobileBERT's block in one line.
        own = complaint[0].defaults
        return (own.block.kind, own.embeddings.kind) != (encoder.block.kind, encoder.embeddings.kind), len(complaint[1])

    raise UserError(min(complaints, key=rank)[1][0])


def has_encoder(encoder: EncoderConfig, pad_id: int) -> bool:
    """Return whether any family computes an encoder, heads aside; `pad_id` is the tokenizer's padding id."""
    return any(not family.refusals(encoder, pad_id) for family in FAMILIES)


def tokenizer_complaint(encoder: EncoderConfig, tokenizer: Tokenizer) -> str:
    """Return why the families that compute an encoder do not fit its tokenizer; empty if one does or there are none."""
    fitting = (family for family in FAMILIES if not family.refusals(encoder, tokenizer.pad_id))
    complaints = [family.tokenizer_complaint(tokenizer) for family in fitting]
    return complaints[0] if complaints and all(complaints) else ""
