"""XLNet: permutation language modeling (Yang et al., 2019, arXiv 1906.08237).

The tokens of an example are put into a random order, and the last of them are predicted, each from those before it in
the order, wherever these stand (section 2.2, equation 3). Nothing is hidden by a symbol: a predicted token is a state
of its own, that of the query stream, which knows its place and not its token (section 2.3). Predicted is a share 1/K of
the tokens (equation 5, K = 6), chosen by the masking. As in the code that the authors published, zihangdai/xlnet,
data_utils.py: the others see each other and none of those, and special symbols take places in the order, too.

With `memory`, the first half of a row is what section 2.4 makes of the segment before: the second half sees it, and no
gradient passes into it.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.masking import Masked, Masking, TokenMasking
from bertjax.data.masking.base import token_bits
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import Heads, VocabularyHead
from bertjax.objectives.base import Arrays, FlopsPart
from bertjax.objectives.pretraining.mlm import MaskedLM


class PermutationModule(nn.Module):
    """Encoder, and the product of its query stream with its word embeddings.

    Attributes:
      config: of the encoder.
      memory: whether the first half of a row's positions passes no gradient on.
    """

    config: EncoderConfig
    memory: bool

    def setup(self):
        self.encoder = Encoder(self.config)
        self.heads = Heads({"plm": functools.partial(VocabularyHead, self.config)})

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`plm`: logits_BKV at the predicted positions}; without `rank_BT`, each from all that are not."""
        read_BK, positions_BT = batch["plm_positions_BK"], batch["positions_BT"]
        encoded = self.encoder(
            batch["tokens_BT"],
            batch["segments_BT"],
            positions_BT,
            batch["examples_BT"],
            read_BK=read_BK,
            rank_BT=batch["rank_BT"] if "rank_BT" in batch else _last(batch, read_BK),
            memory_BT=positions_BT < positions_BT.shape[1] // 2 if self.memory else None,
            key=key,
        )
        return {"plm": self.heads("plm", encoded.hidden, self.encoder.embeddings.word)}


def _last(batch: Arrays, read_BK: jax.Array) -> jax.Array:
    """The order in which the tokens to read come last, all at once; an empty place reads column 0, where [CLS] is."""
    rows_B1 = jnp.arange(len(read_BK))[:, None]
    is_read_BT = jnp.zeros(batch["tokens_BT"].shape, jnp.int32).at[rows_B1, read_BK].set(1)
    return is_read_BT.at[rows_B1, jnp.maximum(batch["summary_positions_BN"], 0)].set(0)


@dataclasses.dataclass(frozen=True)
class PermutationLM(MaskedLM):
    """Predicts tokens in a random order. Terms: `plm`.

    Attributes:
      masking: which tokens are predicted; it may hide none of them.
      memory: whether the first half of a row's positions is the memory of the second, where alone tokens are predicted
        then; for examples as long as a row.
    """

    masking: Masking = TokenMasking(rate=1 / 6, mask=0.0, random=0.0)
    memory: bool = False
    token_term: ClassVar[str] = "plm"

    def __post_init__(self):
        if self.masking.mask or self.masking.random:
            raise UserError(
                f"masking.mask={self.masking.mask} and masking.random={self.masking.random} replace tokens, and "
                "objective.kind=permutation hides them by their order; set both to 0"
            )

    def module(self, encoder: EncoderConfig) -> nn.Module:
        """
        Raises:
          UserError: the encoder has no relative positions, or embeddings of another width than its layers.
        """
        return self._module(encoder, self.memory)

    def reader(self, encoder: EncoderConfig) -> nn.Module:
        return self._module(encoder, memory=False)

    def _module(self, encoder: EncoderConfig, memory: bool) -> nn.Module:
        if encoder.positions != "relative":
            raise UserError(
                f"objective.kind=permutation needs model.positions=relative, not {encoder.positions}: a query that "
                "sees no token of its own must know its place; model.preset=xlnet_base has them"
            )
        if encoder.embedded_width != encoder.width:
            raise UserError(
                f"objective.kind=permutation multiplies states by word embeddings, and model.embedding_width="
                f"{encoder.embedding_width} is not model.width={encoder.width}; leave it 0"
            )
        return PermutationModule(encoder, memory)

    def flops_parts(self, encoder: EncoderConfig) -> tuple[FlopsPart, ...]:
        """The query stream is a share of the content stream."""
        return (FlopsPart(encoder, share=1.0 + self.masking.rate),)

    @property
    def sharding_rules(self):
        return ()

    def features_of(self, examples: PlacedExamples, draw: Draw, masked: Masked) -> dict[str, np.ndarray]:
        """`rank_BT`, int32, beside the predicted tokens: see `ranks`."""
        is_memory = examples.ragged.token_index < (examples.seq_len // 2 if self.memory else 0)
        chosen = masked.chosen & ~is_memory
        features = super().features_of(examples, draw, Masked(masked.tokens, chosen))
        return features | {"rank_BT": examples.tokens_to_rows(ranks(examples.ragged, draw, chosen, is_memory))}


def ranks(ragged: Ragged, draw: Draw, chosen: np.ndarray, is_memory: np.ndarray) -> np.ndarray:
    """The place of every token in the order; int32 [n].

    It is 0 in the memory and 1 for what is given. Predicted tokens and special symbols follow one by one, in a random
    order of their own in every example.

    Args:
      ragged: n tokens.
      draw: what the order depends on.
      chosen: bool [n], the predicted tokens.
      is_memory: bool [n].
    """
    places = np.where(is_memory, 0, 1).astype(np.int32)
    ordered = np.flatnonzero((chosen | ragged.special) & ~is_memory)
    examples = ragged.token_examples[ordered]
    order = np.lexsort((token_bits(ragged, draw, "permutation", ordered), examples))
    starts = np.searchsorted(examples, np.arange(len(ragged.ids)))
    places[ordered[order]] = 2 + np.arange(len(ordered)) - starts[examples]
    return places
