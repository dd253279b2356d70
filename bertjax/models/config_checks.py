"""Allowed values of architecture settings, and checks that they are compatible."""

from typing import Any

from bertjax.models import directions
from bertjax.models.dropout import drops_all
from bertjax.runtime import setting
from bertjax.runtime.errors import UserError

DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "dots", "full")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
POOLER_ACTIVATIONS = ("tanh", "gelu", "relu")
SHARING = ("none", "attention", "feedforward", "all")
# A limit that only typos exceed: a hundred times the largest vocabulary in use, XLM-V's (Liang et al., 2023, arXiv
# 2301.10472).
LARGEST_VOCABULARY = 100_000_000


def check(config: Any) -> None:
    """Raise UserError if settings of an `EncoderConfig` conflict, or one of its parts is out of range."""
    directions.check(config.direction)
    for part in ("embeddings", "block"):
        setting.check(getattr(config, part), f"model.{part}")
        getattr(config, part).check(config)
    if config.layers % config.sharing_groups:
        raise UserError(
            f"model.sharing_groups={config.sharing_groups} does not divide model.layers={config.layers}; choose a "
            "divisor"
        )
    if config.sharing == "none" and config.sharing_groups > 1:
        raise UserError(
            f"model.sharing_groups={config.sharing_groups} has no effect with model.sharing=none; set "
            f"model.sharing to one of {', '.join(SHARING[1:])}, or remove sharing_groups"
        )
    for field in ("dropout", "attention_dropout"):
        # Dropout decides with 8 random bits per element, so 0.999 would round to 1, see `bertjax.models.dropout`.
        if drops_all(rate := getattr(config, field)):
            raise UserError(
                f"model.{field}={rate} would drop everything, because rates are rounded to a multiple of 1/256; lower "
                "it to 0.99 or less"
            )
