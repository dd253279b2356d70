"""Encoder architecture as data, and how an encoder is executed."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from bertjax.models import directions
from bertjax.models.blocks import BLOCKS, Block
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.dropout_words import LEAST_TO_DROP_ALL
from bertjax.models.embeddings import EMBEDDINGS, Embeddings
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check, setting

DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "dots", "full")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
POOLER_ACTIVATIONS = ("tanh", "gelu", "relu")
SHARING = ("none", "attention", "feedforward", "all")
# A limit that only typos exceed: a hundred times the largest vocabulary in use, XLM-V's (Liang et al., 2023, arXiv
# 2301.10472).
LARGEST_VOCABULARY = 100_000_000
# TPU tiles are 128 wide, so the vocabulary is padded to a multiple of 128; see `bertjax.models.vocabulary`.
VOCABULARY_MULTIPLE = 128
# {type of a field: its classes}, for `bertjax.config.typed.build`; user classes only if they are imported already.
UNIONS = {union.base: union.choice() for union in (EMBEDDINGS, BLOCKS)}
_PARTS = ("embeddings", "block")
_DROPPED = {"below": LEAST_TO_DROP_ALL, "hint": "rates are rounded to a multiple of 1/256"}


@dataclasses.dataclass(frozen=True)
class Execution:
    """How an encoder is computed. Nothing here changes its parameters.

    Attributes:
      dtype: dtype of activations and matmuls (`float32` or `bfloat16`); softmax, layer norm and losses are always
        float32. `float32` matmuls are not rounded to bfloat16 or TF32, see `bertjax.models.layers`.
      unroll: unroll the loop over layers (faster, longer to compile) instead of scanning it.
      remat: recompute nothing (`none`), all but matmuls with weights (`dots`) or whole layers (`full`) for gradients.
      attention: `plain`, or an implementation from `bertjax.models.kernels`, used for the rows it supports.
      gather_layer: function that gathers one layer's sharded weights before use; None if they are not sharded.
      task_type: row of the task embedding table to add, if the model has such a table.
    """

    dtype: str = setting("float32", choices=DTYPES)
    unroll: bool = False
    remat: str = setting("none", choices=REMAT_POLICIES)
    attention: str = "plain"
    gather_layer: Callable[[dict], dict] | None = None
    task_type: int = 0

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Encoder architecture. The defaults are BERT (Devlin et al., 2019, section 3; arXiv 1810.04805).

    Attributes:
      vocab_size: V, number of token ids; 0 takes it from the tokenizer.
      embeddings: what turns tokens into states, a union: `{"kind": "bert"}`, or another from
        `bertjax.models.embeddings`.
      block: layer type, a union: `{"kind": "bert"}`, or another from `models/blocks/` with its own settings, such as
        `{"kind": "lstm", "pairs": "siamese"}`.
      layers: L, the depth; layers that share parameters count separately.
      width: D.
      heads: H.
      head_width: width of a head's queries, keys and values; 0 for D / H. Another value widens attention, or remains
        after head pruning (`bertjax.models.cut`).
      feedforward: F, hidden width of the feed-forward network.
      activation: feed-forward and MLM head activation: `gelu`; `gelu_tanh`, its tanh approximation (Hendrycks & Gimpel,
        2016, section 2); or `relu`.
      pooler_activation: activation in the pooler, which feeds heads on whole examples: `tanh` (Devlin et al., 2019), or
        `gelu` or `relu`, as in transformers' ELECTRA and DistilBERT classifiers.
      direction: tokens of its example that a token sees: all (`bidirectional`); itself and earlier ones
        (`left_to_right`; Radford et al., 2018, and BERT's baseline "LTR & No NSP", Devlin et al., 2019, section 5.1);
        those and all of segment 0, whose tokens see only segment 0 (`prefix`; Dong et al., 2019, UniLM, arXiv
        1905.03197, section 2.3); or by the ranks from a function `module:function` (`bertjax.models.directions`).
        Unless bidirectional, an example's summary is its last token, because [CLS] does not see every token.
      sharing: parameters shared across layers (Lan et al., 2020, section 3.1): `none`, `attention` or `feedforward`,
        each with its layer norm, or `all`, so that depth adds no parameters (Dehghani et al., 2019, arXiv 1807.03819,
        whose layers also read a depth embedding).
      sharing_groups: G, number of shared parameter sets; L / G consecutive layers use one set.
      max_positions: length of the longest example, in tokens, and of the position table. Encoders without a table read
        examples of any length; a run raises the number to its longest example.
      activation_bits: bits, 2 to 8, to which dense layer inputs are rounded; 0 for no rounding.
      dropout: rate on embeddings, attention and feed-forward outputs, rounded to a multiple of 1/256 (below 1/512: 0).
      attention_dropout: rate on the attention probabilities, rounded in the same way.
      norm_epsilon: epsilon in every layer norm.
      init_stddev: standard deviation of the normal that kernels and embeddings are drawn from. As in BERT's code, it is
        cut at two deviations, which leaves 0.88 of the deviation.
      execution: how the encoder is computed; not part of the architecture.
    """

    vocab_size: int = setting(0, least=1, most=LARGEST_VOCABULARY, hint="0 takes that of the tokenizer")
    # The registry imports their modules when they are first used: these import this module.
    embeddings: Embeddings = dataclasses.field(default_factory=lambda: EMBEDDINGS.class_of()())
    block: Block = dataclasses.field(default_factory=lambda: BLOCKS.class_of()())
    layers: int = setting(12, least=1)
    width: int = setting(768, least=1)
    heads: int = setting(12, least=1)
    head_width: int = setting(0, least=0)
    feedforward: int = setting(3072, least=1)
    activation: str = setting("gelu", choices=ACTIVATIONS)
    pooler_activation: str = setting("tanh", choices=POOLER_ACTIVATIONS)
    direction: str = BIDIRECTIONAL
    sharing: str = setting("none", choices=SHARING)
    sharing_groups: int = setting(1, least=1, needs="sharing", hint=f"its values are {', '.join(SHARING[1:])}")
    max_positions: int = setting(512, least=1)
    activation_bits: int = setting(0, least=2, most=8, hint="0 does not round")
    dropout: float = setting(0.1, least=0, **_DROPPED)
    attention_dropout: float = setting(0.1, least=0, **_DROPPED)
    norm_epsilon: float = setting(1e-12, least=0)
    init_stddev: float = setting(0.02, least=0)
    # Set by the run from `runtime`, never by the user: the same architecture runs on any hardware.
    execution: Execution = dataclasses.field(default=Execution(), metadata={"is_derived": True})

    def __post_init__(self):
        check(self, "model")
        directions.check(self.direction)
        for part in _PARTS:
            check(getattr(self, part), f"model.{part}")
            getattr(self, part).check(self)
        if self.layers % self.sharing_groups:
            raise UserError(
                f"model.sharing_groups={self.sharing_groups} does not divide model.layers={self.layers}; choose a "
                "divisor"
            )
        if self.block.key_value_heads == self.heads:  # the same as 0, and architectures are compared
            object.__setattr__(self, "block", dataclasses.replace(cast(Any, self.block), key_value_heads=0))

    def architecture(self) -> dict[str, Any]:
        """Return the settings by name, JSON-compatible, without `execution`."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del settings["execution"]
        return settings | {name: _plain(settings[name]) for name in _PARTS}

    def settings(self) -> dict[str, Any]:
        """Return the settings by dotted name, such as `block.kind`, without `execution`."""
        settings = self.architecture()
        parts = {name: settings.pop(name) for name in _PARTS}
        return settings | {f"{part}.{name}": value for part in _PARTS for name, value in parts[part].items()}

    def differences(self, other: "EncoderConfig") -> dict[str, tuple[Any, Any]]:
        """Return {dotted name: (own value, the other's)} of settings that differ; `kind` only if kinds differ."""
        own, others = self.settings(), other.settings()
        replaced = [part for part in _PARTS if own[f"{part}.kind"] != others[f"{part}.kind"]]
        return {
            name: (value, others[name])
            for name, value in own.items()
            if value != others.get(name) and (name.endswith(".kind") or name.partition(".")[0] not in replaced)
        }

    def replace(self, settings: Mapping[str, Any]) -> "EncoderConfig":
        """Return a config with other settings; names are dotted, as in `settings`."""
        own = {name: value for name, value in settings.items() if "." not in name}
        for part in _PARTS:
            changes = {
                name.removeprefix(f"{part}."): settings[name] for name in settings if name.startswith(f"{part}.")
            }
            own[part] = dataclasses.replace(own.get(part, getattr(self, part)), **changes)
        return dataclasses.replace(self, **own)

    @property
    def head_channels(self) -> int:
        """Width of a head; by default attention width / H."""
        return self.head_width or self.layer_width // self.heads

    @property
    def layer_width(self) -> int:
        """Width that a layer's attention returns: D, or the inner width of a bottleneck."""
        return self.block.layer_width(self)

    @property
    def context_width(self) -> int:
        """Total width of all heads, the input width of attention's output projection."""
        return self.heads * self.head_channels

    @property
    def learned_heads(self) -> int:
        """Number of heads with queries and keys."""
        return self.heads - len(self.block.fixed_heads)

    @property
    def embedded_width(self) -> int:
        """E, or D by default."""
        return self.embeddings.width or self.width

    @property
    def has_projection(self) -> bool:
        """Whether a dense layer maps the embeddings to D."""
        return self.embeddings.output_width(self) != self.width

    @property
    def padded_vocab_size(self) -> int:
        """V rounded up to a multiple of `VOCABULARY_MULTIPLE`, as the word table is stored."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def _plain(part: Any) -> dict[str, Any]:
    """Return the settings of embeddings or a block, JSON-compatible."""
    settings = dataclasses.asdict(part)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
