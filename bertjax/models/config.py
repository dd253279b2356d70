"""Encoder architecture as data, and how an encoder is executed."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bertjax.models import config_checks
from bertjax.models.config_checks import DTYPES, REMAT_POLICIES, TRANSFORMER
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.runtime.errors import UserError

# TPU tiles are 128 wide, so the vocabulary is padded to a multiple of 128; see `bertjax.models.vocabulary`.
VOCABULARY_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class Execution:
    """How an encoder is computed. Nothing here changes its parameters.

    Attributes:
      dtype: dtype of activations and matmuls (`float32` or `bfloat16`); softmax, layer norm and losses are always
        float32. `float32` matmuls are not rounded to bfloat16 or TF32, see `bertjax.models.precision`.
      unroll: unroll the loop over layers (faster, longer to compile) instead of scanning it.
      remat: recompute nothing (`none`), all but matmuls with weights (`dots`) or whole layers (`full`) for gradients.
      attention: `plain`, or an implementation from `bertjax.models.kernels`, used for the rows it supports.
      gather_layer: function that gathers one layer's sharded weights before use; None if they are not sharded.
      task_type: row of the task embedding table to add, if the model has such a table.
    """

    dtype: str = "float32"
    unroll: bool = False
    remat: str = "none"
    attention: str = "plain"
    gather_layer: Callable[[dict], dict] | None = None
    task_type: int = 0

    def __post_init__(self):
        for field, value, known in (("dtype", self.dtype, DTYPES), ("remat", self.remat, REMAT_POLICIES)):
            if value not in known:
                raise UserError(f"{field}={value!r} is unknown; choose one of {', '.join(known)}")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Encoder architecture. The defaults are BERT (Devlin et al., 2019, section 3; arXiv 1810.04805).

    Attributes:
      vocab_size: V, number of token ids; 0 takes it from the tokenizer.
      layer_type: `transformer`, or `lstm`, a bidirectional LSTM (`bertjax.models.lstm`) with D / 2 channels per
        direction. `heads`, `feedforward`, `activation` and `attention_dropout` then have no effect.
      layers: L, the depth; layers that share parameters count separately.
      width: D.
      heads: H.
      head_width: width of a head's queries, keys and values; 0 for D / H. Another value widens attention, or remains
        after head pruning (`bertjax.models.cut`).
      fixed_heads: patterns from `bertjax.models.fixed` for the first heads in every layer, which then have no queries
        and keys (Raganato et al., 2020, arXiv 2002.10260); the other heads are learned.
      feedforward: F, hidden width of the feed-forward network.
      feedforwards: number of feed-forward networks per layer, each with its own residual and norm (Sun et al., 2020,
        MobileBERT, arXiv 2004.02984, section 3.2).
      inner_width: width of attention and feed-forward between dense layers from D and back to D, with a residual over D
        around both (Sun et al., 2020, MobileBERT, section 3.1). A bottleneck is narrower than D, as in MobileBERT; an
        inverted bottleneck is wider, as in its teacher. 0 for D, without these dense layers.
      bottlenecked: inputs that attention reads at the inner width: `none` (queries, keys and values read the D
        channels, as in MobileBERT's teacher), `queries_keys` (through their own dense layer, MobileBERT) or `all`
        (through the residual's dense layer, MobileBERT_TINY; table 1).
      activation: feed-forward and MLM head activation: `gelu`; `gelu_tanh`, its tanh approximation (Hendrycks & Gimpel,
        2016, section 2); `relu`; or `geglu`, GELU times a second dense layer (Shazeer, 2020, arXiv 2002.05202). With
        `geglu` the MLM head uses `gelu`.
      pooler_activation: activation in the pooler, which feeds heads on whole examples: `tanh` (Devlin et al., 2019), or
        `gelu` or `relu`, as in transformers' ELECTRA and DistilBERT classifiers.
      norm: placement of the attention and feed-forward layer norms: `post`, after the residual sum, or `pre`, on the
        input, with one more after the last layer (Xiong et al., 2020, arXiv 2002.04745).
      normalization: the encoder's norms: `layer_norm`, or `no_norm`, a per-channel scale and bias (Sun et al., 2020,
        MobileBERT, section 3.3). Head norms are always layer norms.
      biases: dense layers and layer norms with biases: `all`, or only `heads` (pooler, classifiers, vocabulary).
      positions: `learned`, a table; `rotary`, a rotation of queries and keys (Su et al., 2021, arXiv 2104.09864);
        `relative`, learned distance and segment terms in the attention logits, where attention has no other biases and
        words are embedded without a norm (Yang et al., 2019, arXiv 1906.08237, section 2); or `none`, for layers that
        read tokens in order (`lstm`).
      pairs: how an LSTM reads the two texts of a pair: `joint`, as one sequence, or `siamese`, each from a zero state
        (Tang et al., 2019, arXiv 1903.12136). The pooler input is then 4 D wide, see `pooling.summaries`.
      direction: tokens of its example that a token sees: all (`bidirectional`); itself and earlier ones
        (`left_to_right`; Radford et al., 2018, and BERT's baseline "LTR & No NSP", Devlin et al., 2019, section 5.1);
        those and all of segment 0, whose tokens see only segment 0 (`prefix`; Dong et al., 2019, UniLM, arXiv
        1905.03197, section 2.3); or by the ranks from a function `module:function` (`bertjax.models.directions`).
        Unless bidirectional, an example's summary is its last token, because [CLS] does not see every token.
      rotary_base: longest rotary wavelength divided by 2 pi.
      window: tokens to either side in local layers (Beltagy et al., 2020, arXiv 2004.05150, section 3.1); 0 for none.
      global_every: period of global layers, which see the whole example: the first in every `global_every` layers is
        global and the others are local; 1 if all layers are global.
      sharing: parameters shared across layers (Lan et al., 2020, section 3.1): `none`, `attention` or `feedforward`,
        each with its layer norm, or `all`, so that depth adds no parameters (Dehghani et al., 2019, arXiv 1807.03819,
        whose layers also read a depth embedding).
      sharing_groups: G, number of shared parameter sets; L / G consecutive layers use one set.
      embedding_width: E, 0 for D; a dense layer maps E to D (Lan et al., 2020, section 3.1; arXiv 1909.11942).
      words: word embeddings that a token reads: its own (`single`), or with `trigrams` also both neighbors', which a
        dense layer maps to D (Sun et al., 2020, MobileBERT, section 3.4). The other tables are then D wide and are
        added after that layer, and the MLM head multiplies D channels.
      max_positions: length of the longest example, in tokens, and of the position table. Encoders without a table read
        examples of any length; a run raises the number to its longest example.
      position_offset: unused rows at the start of the position table; RoBERTa has 2 (padding and the symbol before).
      segments: rows in the segment table; 0 for none. With relative positions only zero or nonzero matters.
      task_types: rows in the task embedding table; one row is added to every token (Sun et al., 2020, ERNIE 2.0, arXiv
        1907.12412, "Model Structure"); 0 for none.
      activation_bits: bits, 2 to 8, to which dense layer inputs are rounded; 0 for no rounding.
      dropout: rate on embeddings, attention and feed-forward outputs, rounded to a multiple of 1/256 (below 1/512: 0).
      attention_dropout: rate on the attention probabilities, rounded in the same way.
      norm_epsilon: epsilon in every layer norm.
      init_stddev: standard deviation of the normal that kernels and embeddings are drawn from. As in BERT's code, it is
        cut at two deviations, which leaves 0.88 of the deviation.
      execution: how the encoder is computed; not part of the architecture.
    """

    vocab_size: int = 0
    layer_type: str = TRANSFORMER
    layers: int = 12
    width: int = 768
    heads: int = 12
    head_width: int = 0
    fixed_heads: tuple[str, ...] = ()
    feedforward: int = 3072
    feedforwards: int = 1
    inner_width: int = 0
    bottlenecked: str = "none"
    activation: str = "gelu"
    pooler_activation: str = "tanh"
    norm: str = "post"
    normalization: str = "layer_norm"
    biases: str = "all"
    positions: str = "learned"
    pairs: str = "joint"
    direction: str = BIDIRECTIONAL
    rotary_base: float = 10_000.0
    window: int = 0
    global_every: int = 1
    sharing: str = "none"
    sharing_groups: int = 1
    embedding_width: int = 0
    words: str = "single"
    max_positions: int = 512
    position_offset: int = 0
    segments: int = 2
    task_types: int = 0
    activation_bits: int = 0
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_epsilon: float = 1e-12
    init_stddev: float = 0.02
    # Set by the run from `runtime`, never by the user: the same architecture runs on any hardware.
    execution: Execution = dataclasses.field(default=Execution(), metadata={"is_derived": True})

    def __post_init__(self):
        config_checks.check(self)

    def architecture(self) -> dict[str, Any]:
        """Return the settings by name, JSON-compatible, without `execution`."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del settings["execution"]
        return settings | {"fixed_heads": list(self.fixed_heads)}

    @property
    def has_attention(self) -> bool:
        """Whether layers have attention and a feed-forward network (LSTM layers have neither)."""
        return self.layer_type == TRANSFORMER

    @property
    def head_channels(self) -> int:
        """Width of a head; by default attention width / H."""
        return self.head_width or self.layer_width // self.heads

    @property
    def layer_width(self) -> int:
        """Width of a layer's residual stream: the inner width if set, else D."""
        return self.inner_width or self.width

    @property
    def layer_width_setting(self) -> str:
        return f"model.inner_width={self.inner_width}" if self.inner_width else f"model.width={self.width}"

    @property
    def context_width(self) -> int:
        """Total width of all heads, the input width of attention's output projection."""
        return self.heads * self.head_channels

    @property
    def learned_heads(self) -> int:
        """Number of heads with queries and keys."""
        return self.heads - len(self.fixed_heads)

    @property
    def has_position_table(self) -> bool:
        """Whether positions come from a table, which bounds the example length."""
        return self.positions == "learned"

    @property
    def has_biases(self) -> bool:
        """Whether dense layers and layer norms below the heads have biases."""
        return self.biases == "all"

    @property
    def has_attention_biases(self) -> bool:
        """Whether attention's dense layers have biases."""
        # Relative attention learns its own query biases (u, v and w in `bertjax.models.relative`).
        return self.has_biases and self.positions != "relative"

    @property
    def embedded_width(self) -> int:
        """E, or D by default."""
        return self.embedding_width or self.width

    @property
    def has_projection(self) -> bool:
        """Whether a dense layer maps the normalized embedding sum from E to D."""
        return self.words == "single" and self.embedded_width != self.width

    @property
    def decoded_width(self) -> int:
        """Width of the states that the MLM head multiplies with the vocabulary."""
        return self.width if self.words == "trigrams" else self.embedded_width

    @property
    def padded_vocab_size(self) -> int:
        """V rounded up to a multiple of `VOCABULARY_MULTIPLE`, as the word table is stored."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
