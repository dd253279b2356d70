"""Allowed values of architecture settings, and checks that they are compatible."""

from typing import Any

from bertjax.models import directions
from bertjax.models.dropout import drops_all
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
    """Raise UserError if an `EncoderConfig` setting is unknown or out of range, or if settings conflict."""
    for field, known in (
        ("activation", ACTIVATIONS),
        ("pooler_activation", POOLER_ACTIVATIONS),
        ("sharing", SHARING),
    ):
        if (value := getattr(config, field)) not in known:
            raise UserError(f"model.{field}={value!r} is unknown; choose one of {', '.join(known)}")
    directions.check(config.direction)
    at_least_one = ("layers", "width", "heads", "feedforward", "max_positions")
    for field in (*at_least_one, "sharing_groups"):
        if getattr(config, field) < 1:
            raise UserError(f"model.{field}={getattr(config, field)} must be at least 1")
    if not 0 <= config.vocab_size <= LARGEST_VOCABULARY:
        raise UserError(
            f"model.vocab_size={config.vocab_size} must be between 1 and {LARGEST_VOCABULARY}, or 0 for that of the "
            "tokenizer"
        )
    if config.head_width < 0:
        raise UserError(
            f"model.head_width={config.head_width} must not be negative; 0 stands for model.width over model.heads"
        )
    config.embeddings.check(config)
    config.block.check(config)
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
    if config.activation_bits not in (0, *range(2, 9)):
        raise UserError(f"model.activation_bits={config.activation_bits} must be 2 to 8, or 0 for no rounding")
    for field in ("dropout", "attention_dropout"):
        if not 0.0 <= (rate := getattr(config, field)) < 1.0:
            raise UserError(f"model.{field}={rate} must be at least 0 and below 1")
        # Dropout decides with 8 random bits per element, so 0.999 would round to 1, see `bertjax.models.dropout`.
        if drops_all(rate):
            raise UserError(
                f"model.{field}={rate} would drop everything, because rates are rounded to a multiple of 1/256; lower "
                "it to 0.99 or less"
            )
    for field in ("norm_epsilon", "init_stddev"):
        if not 0.0 <= getattr(config, field):
            raise UserError(f"model.{field}={getattr(config, field)} must not be negative")
