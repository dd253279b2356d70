"""Allowed values of architecture settings, and checks that they are compatible."""

from typing import Any

from bertjax.models import directions
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.dropout import drops_all
from bertjax.runtime.errors import UserError

DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "dots", "full")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "geglu")
POOLER_ACTIVATIONS = ("tanh", "gelu", "relu")
LAYER_TYPES = TRANSFORMER, LSTM = ("transformer", "lstm")
POSITIONS = ("learned", "rotary", "relative", "none")
PAIRS = ("joint", "siamese")
NORMS = ("post", "pre")
BIASES = ("all", "heads")
SHARING = ("none", "attention", "feedforward", "all")
BOTTLENECKED = ("none", "queries_keys", "all")
NORMALIZATIONS = ("layer_norm", "no_norm")
WORDS = ("single", "trigrams")
FIXED_PATTERNS = ("current", "previous", "next", "left", "right", "start", "end")
# A limit that only typos exceed: a hundred times the largest vocabulary in use, XLM-V's (Liang et al., 2023, arXiv
# 2301.10472).
LARGEST_VOCABULARY = 100_000_000

# An LSTM requires these values for settings that only Transformer layers implement.
_OF_LSTM: dict[str, Any] = {
    "positions": "none",
    "direction": BIDIRECTIONAL,
    "window": 0,
    "fixed_heads": (),
    "head_width": 0,
    "inner_width": 0,
    "feedforwards": 1,
    "norm": "post",
    "sharing": "none",
    "activation_bits": 0,
}


def check(config: Any) -> None:
    """Raise UserError if an `EncoderConfig` setting is unknown or out of range, or if settings conflict."""
    for field, known in (
        ("layer_type", LAYER_TYPES),
        ("activation", ACTIVATIONS),
        ("pooler_activation", POOLER_ACTIVATIONS),
        ("norm", NORMS),
        ("normalization", NORMALIZATIONS),
        ("bottlenecked", BOTTLENECKED),
        ("words", WORDS),
        ("biases", BIASES),
        ("positions", POSITIONS),
        ("pairs", PAIRS),
        ("sharing", SHARING),
    ):
        if (value := getattr(config, field)) not in known:
            raise UserError(f"model.{field}={value!r} is unknown; choose one of {', '.join(known)}")
    directions.check(config.direction)
    at_least_one = ("layers", "width", "heads", "feedforward", "feedforwards", "max_positions")
    for field in (*at_least_one, "sharing_groups", "global_every"):
        if getattr(config, field) < 1:
            raise UserError(f"model.{field}={getattr(config, field)} must be at least 1")
    if not 0 <= config.vocab_size <= LARGEST_VOCABULARY:
        raise UserError(
            f"model.vocab_size={config.vocab_size} must be between 1 and {LARGEST_VOCABULARY}, or 0 for that of the "
            "tokenizer"
        )
    for field, of_zero in (
        ("embedding_width", "stands for model.width"),
        ("inner_width", "stands for model.width"),
        ("head_width", "stands for model.width over model.heads"),
        ("position_offset", "reads the position table from its first row"),
        ("segments", "has no segment table"),
        ("task_types", "has no table of task embeddings"),
        ("window", "lets every layer see everything"),
    ):
        if getattr(config, field) < 0:
            raise UserError(f"model.{field}={getattr(config, field)} must not be negative; 0 {of_zero}")
    _check_layer_type(config)
    # With head_width set, heads need not fill the layer width: the output projection maps any width back.
    if config.has_attention and config.layer_width % config.heads and not config.head_width:
        raise UserError(f"{config.layer_width_setting} is not divisible by model.heads={config.heads}")
    _check_positions(config)
    _check_mobile(config)
    if config.fixed_heads:
        _check_fixed_heads(config)
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


def _check_layer_type(config: Any) -> None:
    if config.has_attention:
        if config.positions == "none":
            raise UserError("model.positions=none needs model.layer_type=lstm; choose learned, rotary or relative")
        if config.pairs == "siamese":
            raise UserError("model.pairs=siamese needs model.layer_type=lstm; set model.pairs=joint")
        return
    for field, needed in _OF_LSTM.items():
        if (value := getattr(config, field)) != needed:
            needed = "[]" if needed == () else needed
            raise UserError(
                f"model.layer_type={config.layer_type} does not go with model.{field}={value}; set "
                f"model.{field}={needed}"
            )
    if config.width % 2:
        raise UserError(f"model.layer_type={config.layer_type} needs an even model.width, not {config.width}")


def _check_positions(config: Any) -> None:
    if config.positions != "learned" and config.position_offset:
        raise UserError(
            f"model.position_offset={config.position_offset} needs a position table, which "
            f"model.positions={config.positions} does not have; set it to 0"
        )
    if config.positions == "relative" and config.task_types:
        raise UserError(
            f"model.task_types={config.task_types} are embeddings that are added to words, and "
            "model.positions=relative adds nothing to words; choose learned or rotary, or set task_types to 0"
        )
    if config.positions == "relative" and config.width % 2:
        raise UserError(f"model.positions=relative needs an even model.width, not {config.width}")
    if config.positions == "rotary":
        if config.head_channels % 2:
            default = f"{config.layer_width_setting} over model.heads={config.heads}"
            width = f"model.head_width={config.head_width}" if config.head_width else default
            raise UserError(
                f"model.positions=rotary needs heads of even width, and {width} is odd; choose another number of heads"
            )
    # A setting without effect is an error, because its author expects one.
    elif config.rotary_base != type(config).rotary_base:
        raise UserError(
            f"model.rotary_base={config.rotary_base} has no effect with model.positions={config.positions}; remove "
            "it, or choose rotary"
        )
    if config.rotary_base <= 1.0:
        raise UserError(f"model.rotary_base={config.rotary_base} must be above 1; 10000 is usual")
    # One without the other would silently have no effect.
    if (config.window > 0) != (config.global_every > 1):
        raise UserError(
            f"model.window={config.window} and model.global_every={config.global_every} contradict each other; local "
            "layers need a window above 0 and a global_every above 1"
        )


def _check_mobile(config: Any) -> None:
    """Check MobileBERT's settings, which are defined only for post-norm layers."""
    if config.bottlenecked != "none" and not config.inner_width:
        raise UserError(
            f"model.bottlenecked={config.bottlenecked} needs model.inner_width, the width that it maps to; set "
            "it, or choose none"
        )
    # The MLM head extends each word embedding to D with `word_rest`, so E cannot exceed D.
    if config.words == "trigrams" and config.embedded_width > config.width:
        raise UserError(
            f"model.words=trigrams needs embeddings of at most model.width={config.width}; lower "
            f"model.embedding_width={config.embedding_width}"
        )
    if config.words == "trigrams" and config.positions == "relative":
        raise UserError("model.words=trigrams needs an embedding norm; choose model.positions=learned or rotary")
    name = "inner_width" if config.inner_width else "feedforwards"
    part = f"model.{name}={getattr(config, name)}"
    has_part = config.inner_width or config.feedforwards > 1
    for field, excluded, remedy in (
        ("norm", "pre", "post"),
        ("activation", "geglu", "relu"),
        ("positions", "relative", "learned"),
    ):
        # The paper defines these parts only for post-norm layers without gates or relative positions.
        if has_part and getattr(config, field) == excluded:
            raise UserError(f"{part} is not defined for model.{field}={excluded}; choose {remedy}")
    if has_part and config.sharing != "none":
        raise UserError(f"{part} is not defined for layers that share parameters; set model.sharing=none")


def _check_fixed_heads(config: Any) -> None:
    if unknown := [pattern for pattern in config.fixed_heads if pattern not in FIXED_PATTERNS]:
        raise UserError(f"model.fixed_heads has {unknown[0]!r}; choose from {', '.join(FIXED_PATTERNS)}")
    if len(config.fixed_heads) >= config.heads:
        raise UserError(
            f"model.fixed_heads has {len(config.fixed_heads)} patterns, and model.heads={config.heads} leaves no "
            f"learned head; set model.heads={len(config.fixed_heads) + 1} or more, or name fewer patterns"
        )
    for field, needed in (("positions", ("learned", "rotary")), ("direction", (BIDIRECTIONAL,)), ("window", (0,))):
        if (value := getattr(config, field)) not in needed:
            raise UserError(
                f"model.fixed_heads attend to all tokens of their example by place, which model.{field}={value} "
                f"contradicts; set model.{field}={needed[0]}, or model.fixed_heads=[]"
            )
