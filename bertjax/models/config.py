"""The architecture of an encoder as data, the published ones as presets, and how an encoder is executed."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bertjax.errors import UserError
from bertjax.models import config_checks
from bertjax.models.config_checks import DTYPES, REMAT_POLICIES, TRANSFORMER
from bertjax.models.directions import BIDIRECTIONAL

# Matrix units read the vocabulary in tiles of 128 columns.
VOCABULARY_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class Execution:
    """How an encoder is computed; nothing here changes its parameters.

    Attributes:
      dtype: dtype of activations and matrix products (`float32` or `bfloat16`); softmax, layer norm and losses are
        always float32. With `float32` no product is computed with less, as XLA would on a TPU (one pass of bfloat16)
        and on a GPU (TF32), see `bertjax.models.precision`.
      unroll: unroll the loop over layers (faster, longer to compile) instead of scanning it.
      remat: what the backward pass recomputes: nothing (`none`), all but products with weights (`dots`), or whole
        layers (`full`).
      attention: `plain`, or an implementation of `bertjax.models.kernels` for the rows that it can compute.
      gather_layer: function that gathers the sharded weights of one layer before use; None if they are not sharded.
      task_type: row of the table of task embeddings that is added, if the model has such a table.
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
    """A Transformer encoder; the defaults are BERT (Devlin et al., 2019, section 3; arXiv 1810.04805).

    Attributes:
      vocab_size: V, number of token ids; 0 takes it from the tokenizer.
      layer_type: `transformer`, or `lstm`, a bidirectional LSTM (`bertjax.models.lstm`) with D / 2 channels in each
        direction. `heads`, `feedforward`, `activation` and `attention_dropout` then have no effect.
      layers: L, the depth; layers that share parameters count separately.
      width: D.
      heads: H.
      head_width: width of queries, keys and values of a head; 0 for D / H. Another width remains where heads were cut
        (`bertjax.models.cut`), or it widens attention.
      fixed_heads: patterns of `bertjax.models.fixed` for the first heads of every layer, which then have no queries and
        keys (Raganato et al., 2020, arXiv 2002.10260); the other heads are learned.
      feedforward: F, width of the hidden layer of the feed-forward part.
      feedforwards: number of feed-forward networks in a layer, each with its sum and norm (Sun et al., 2020,
        MobileBERT, arXiv 2004.02984, section 3.2).
      inner_width: width of attention and feed-forward between a dense layer from D and one back to D, with a sum over D
        around both (Sun et al., 2020, MobileBERT, section 3.1). A bottleneck is narrower than D, as in MobileBERT; an
        inverted bottleneck is wider, as in its teacher. 0 for D, without these dense layers.
      bottlenecked: what attention reads at the inner width: `none` (queries, keys and values read the D channels, as in
        MobileBERT's teacher), `queries_keys` (from a dense layer of their own, MobileBERT) or `all` (from the dense
        layer of the sum, MobileBERT_TINY; table 1).
      activation: nonlinearity of that layer and of the MLM head: `gelu`, or `gelu_tanh`, its approximation by tanh
        (Hendrycks & Gimpel, 2016, section 2), or `relu`, or `geglu`, GELU times a second dense layer (Shazeer, 2020,
        arXiv 2002.05202); with `geglu` the MLM head has `gelu`.
      pooler_activation: nonlinearity of the pooler, which heads on whole examples read: `tanh` (Devlin et al., 2019),
        `gelu` or `relu`, as in the classifiers of transformers' ELECTRA and DistilBERT.
      norm: position of the layer norms of attention and feed-forward: `post`, after the sum of input and output, or
        `pre`, before the input, with one more after the last layer (Xiong et al., 2020, arXiv 2002.04745).
      normalization: what the norms of the encoder compute: `layer_norm`, or `no_norm`, a factor and a bias for each
        channel (Sun et al., 2020, MobileBERT, section 3.3). Those of heads are layer norms.
      biases: which dense layers and layer norms have biases: `all`, or only those of the `heads` (pooler, classifiers,
        vocabulary).
      positions: `learned`, a table; `rotary`, a rotation of queries and keys (Su et al., 2021, arXiv 2104.09864); or
        `relative`, learned terms of distances and segments in the logits of attention, which then has no other biases,
        and words are embedded without a norm (Yang et al., 2019, arXiv 1906.08237, section 2); or `none`, for layers
        that read tokens in their order (`lstm`).
      pairs: how an LSTM reads the two texts of a pair: `joint`, as one sequence, or `siamese`, each from a state of
        zeros (Tang et al., 2019, arXiv 1903.12136). What the pooler reads is then 4 D wide, see `pooling.summaries`.
      direction: which tokens of its example a token sees: all (`bidirectional`), itself and those before it
        (`left_to_right`; Radford et al., 2018, and BERT's baseline "LTR & No NSP", Devlin et al., 2019, section 5.1),
        or those and the whole of segment 0 (`prefix`, whose tokens see segment 0 only; Dong et al., 2019, UniLM, arXiv
        1905.03197, section 2.3), or the ranks of a function `module:function` (`bertjax.models.directions`). Unless it
        is bidirectional, the last token of an example is its summary, because [CLS] does not see them all.
      rotary_base: longest wavelength of rotary positions over 2 pi.
      window: tokens to either side that a local layer sees (Beltagy et al., 2020, arXiv 2004.05150, section 3.1); 0 if
        all layers are global.
      global_every: period of global layers, which see the whole example: the first of every `global_every` layers is
        global and the others are local; 1 if all layers are global.
      sharing: what layers share (Lan et al., 2020, section 3.1): `none`, the weights of `attention` or of
        `feedforward`, each with its layer norm, or `all`, so that depth costs no parameters (Dehghani et al., 2019,
        arXiv 1807.03819, whose layers also read an embedding of the depth).
      sharing_groups: G, number of sets of shared parameters; L / G consecutive layers use one set.
      embedding_width: E, width of the embeddings; a dense layer maps them to D if E differs (Lan et al., 2020, section
        3.1; arXiv 1909.11942); 0 for D.
      words: rows of the word table that a token reads: its own (`single`), or with `trigrams` also those of the tokens
        before and after it, which a dense layer maps to D (Sun et al., 2020, MobileBERT, section 3.4). The other tables
        are then D wide and are added after that layer, and the MLM head multiplies D channels.
      max_positions: number of tokens of the longest example: the length of the position table. Encoders without a
        table read examples of any length; a run raises the number to that of its longest examples.
      position_offset: rows of the position table before the first position, which no token reads; RoBERTa has 2, for
        its padding symbol and the symbol before it.
      segments: rows of the segment table; 0 for none. With relative positions two tokens share a segment or not, and
        only 0 or not 0 matters.
      task_types: rows of the table of task embeddings, one of which is added to every token (Sun et al., 2020, ERNIE
        2.0, arXiv 1907.12412, "Model Structure"); 0 for none.
      activation_bits: bits, 2 to 8, that the inputs of dense layers are rounded to; 0 for no rounding.
      dropout: rate on embeddings and on the output of attention and feed-forward, rounded to a multiple of 1/256. A
        rate below 1/512 means that nothing is dropped.
      attention_dropout: rate on the attention probabilities, rounded in the same way.
      norm_epsilon: epsilon of every layer norm.
      init_stddev: standard deviation of the truncated normal (cut at two deviations) that kernels and embeddings start
        from.
      execution: how it is computed; not part of the architecture.
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
    execution: Execution = dataclasses.field(default=Execution(), metadata={"is_derived": True})

    def __post_init__(self):
        config_checks.check(self)

    def architecture(self) -> dict[str, Any]:
        """Return the settings by name as JSON holds them, without `execution`."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del settings["execution"]
        return settings | {"fixed_heads": list(self.fixed_heads)}

    @property
    def has_attention(self) -> bool:
        """Whether layers have attention and a feed-forward part; those of an LSTM have neither."""
        return self.layer_type == TRANSFORMER

    @property
    def head_channels(self) -> int:
        """Width of a head; by default the width of attention over H."""
        return self.head_width or self.layer_width // self.heads

    @property
    def layer_width(self) -> int:
        """Width of the sums of attention and feed-forward: the inner width, with the default of D."""
        return self.inner_width or self.width

    @property
    def layer_width_setting(self) -> str:
        return f"model.inner_width={self.inner_width}" if self.inner_width else f"model.width={self.width}"

    @property
    def context_width(self) -> int:
        """Width of the context of all heads, which the output of attention maps to its width."""
        return self.heads * self.head_channels

    @property
    def learned_heads(self) -> int:
        """Number of heads with queries and keys."""
        return self.heads - len(self.fixed_heads)

    @property
    def has_position_table(self) -> bool:
        """Whether positions are rows of a table, which bounds the length of an example."""
        return self.positions == "learned"

    @property
    def has_biases(self) -> bool:
        """Whether the dense layers and layer norms below the heads have biases."""
        return self.biases == "all"

    @property
    def has_attention_biases(self) -> bool:
        """Whether the dense layers of attention have biases."""
        return self.has_biases and self.positions != "relative"

    @property
    def local_layers(self) -> int:
        """Number of layers that see only a window."""
        return self.layers - -(-self.layers // self.global_every)

    @property
    def embedded_width(self) -> int:
        """E, with the default of D."""
        return self.embedding_width or self.width

    @property
    def has_projection(self) -> bool:
        """Whether a dense layer maps the normed sum of all embeddings from E to D."""
        return self.words == "single" and self.embedded_width != self.width

    @property
    def decoded_width(self) -> int:
        """Width of the states that the MLM head multiplies with the vocabulary."""
        return self.width if self.words == "trigrams" else self.embedded_width

    @property
    def padded_vocab_size(self) -> int:
        """V rounded up to the multiple that the word table is stored with."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
