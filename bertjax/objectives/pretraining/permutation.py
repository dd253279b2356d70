"""XLNet: permutation language modeling (Yang et al., 2019, arXiv 1906.08237).

The tokens of an example get a random order. The last of them are predicted, each from the tokens before it in the
order, wherever those are in the text (section 2.2, equation 3). No symbol hides a token: a predicted token has a second
state, that of the query stream, which knows its position but not its token (section 2.3). A share 1/K of the tokens is
predicted (equation 5, K = 6), chosen by the masking. As in the authors' code (zihangdai/xlnet, data_utils.py), the
other tokens see each other and none of the predicted ones, and special symbols also have places in the order.

With `memory`, the first half of a row is the cached segment of section 2.4: the second half sees it, and no gradient
passes into it.

With `both_directions`, half of the examples are read from their end to their start, as half of each batch is in section
3.1 (`bi_data` of that code). The masking chooses the tokens before they are reversed.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.framing import special_tokens
from bertjax.data.masking import Masked, Masking, TokenMasking, mask
from bertjax.data.masking.base import token_bits
from bertjax.data.random import bits
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.flops import FlopsPart, head_products
from bertjax.models.heads import VocabularyHead
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays
from bertjax.objectives.pretraining.mlm import MaskedLM


@dataclasses.dataclass(frozen=True)
class PermutationLM(MaskedLM):
    """Predicts tokens in a random order. Terms: `plm`.

    Attributes:
      masking: which tokens are predicted; it must not replace them.
      memory: whether the first half of a row's positions is the memory of the second half. Then only tokens of the
        second half are predicted. For examples as long as a row.
      both_directions: whether half of the examples are reversed, by a coin for each example and epoch.
    """

    masking: Masking = TokenMasking(rate=1 / 6, mask=0.0, random=0.0)
    memory: bool = False
    both_directions: bool = False
    term: ClassVar[str] = "plm"

    def __post_init__(self):
        if self.masking.mask or self.masking.random:
            raise UserError(
                f"masking.mask={self.masking.mask} and masking.random={self.masking.random} replace tokens, and "
                "objective.kind=permutation hides them by their order; set both to 0"
            )

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        """Return the product of the query stream with the word embeddings.

        Raises:
          UserError: the encoder has no relative positions, reads from left to right, or has embeddings of another
            width than its layers.
        """
        if config.positions != "relative":
            raise UserError(
                f"objective.kind=permutation needs model.positions=relative, not {config.positions}: a query that "
                "sees no token of its own must know its place; model.preset=xlnet_base has them"
            )
        if config.direction != BIDIRECTIONAL:
            raise UserError(
                f"objective.kind=permutation predicts in an order of its own, and model.direction={config.direction} "
                f"is another; set model.direction={BIDIRECTIONAL}"
            )
        if config.embedded_width != config.width:
            raise UserError(
                f"objective.kind=permutation multiplies states by word embeddings, and model.embedding_width="
                f"{config.embedding_width} is not model.width={config.width}; leave it 0"
            )
        return {"plm": HeadSpec(VocabularyHead)}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`plm`: logits_BKV at the predicted positions}."""
        positions_BT = batch["positions_BT"]
        memory_BT = positions_BT < positions_BT.shape[1] // 2 if self.memory else None
        return {"plm": _query_logits(model, batch, batch["rank_BT"], memory_BT, key)}

    def mlm_logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return logits_BKV at the positions, each predicted from all tokens that are not."""
        return _query_logits(model, batch, _last(batch, batch["plm_positions_BK"]), None, key)

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        products = head_products(config, self.heads(config)[self.term])
        return (FlopsPart(config, {"predictions": products}, read=1.0, queries=True),)

    @property
    def sharding_rules(self):
        return ()

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return the predicted tokens and `rank_BT`, int32, see `ranks`; `segments_BT` if examples are reversed."""
        masked = mask(examples, draw, self.masking)
        order = {}
        if self.both_directions:
            places = reversed_places(examples.ragged, draw)
            examples, masked = _reordered(examples, places), Masked(masked.tokens[places], masked.chosen[places])
            order = {"segments_BT": examples.tokens_to_rows(examples.ragged.segments)}
        is_memory = examples.ragged.token_index < (examples.seq_len // 2 if self.memory else 0)
        chosen = masked.chosen & ~is_memory
        order["rank_BT"] = examples.tokens_to_rows(ranks(examples.ragged, draw, chosen, is_memory))
        return self.masked_features(examples, masked.tokens, chosen) | order


def reversed_places(ragged: Ragged, draw: Draw) -> np.ndarray:
    """Return for every place the token that is read there, in half of the examples from the end; int64 [n].

    [CLS] and the last [SEP] of an example keep their places.
    """
    index, last = ragged.token_index - ragged.text_index, ragged.spread(ragged.lengths - special_tokens(1)) - 1
    coins = bits(draw.seed, "permutation/direction", draw.epochs, ragged.ids, 0) >> np.uint32(31)
    is_moved = (ragged.spread(coins) == 1) & (index >= 0) & (index <= last)
    return np.arange(len(index)) + np.where(is_moved, last - 2 * index, 0)


def _reordered(examples: PlacedExamples, places: np.ndarray) -> PlacedExamples:
    ragged = examples.ragged
    tokens, segments, special = (values[places] for values in (ragged.tokens, ragged.segments, ragged.special))
    return dataclasses.replace(
        examples, ragged=dataclasses.replace(ragged, tokens=tokens, segments=segments, special=special)
    )


def ranks(ragged: Ragged, draw: Draw, chosen: np.ndarray, is_memory: np.ndarray) -> np.ndarray:
    """Return the place of every token in the order; int32 [n].

    It is 0 in the memory and 1 for tokens that are neither predicted nor special. Predicted tokens and special symbols
    follow one by one, in a random order that differs between examples.

    Args:
      ragged: examples with n tokens.
      draw: seed and epochs, which determine the order.
      chosen: bool [n], the predicted tokens.
      is_memory: bool [n], the tokens of the memory.
    """
    places = np.where(is_memory, 0, 1).astype(np.int32)
    ordered = np.flatnonzero((chosen | ragged.special) & ~is_memory)
    examples = ragged.token_examples[ordered]
    order = np.lexsort((token_bits(ragged, draw, "permutation", ordered), examples))
    starts = np.searchsorted(examples, np.arange(len(ragged.ids)))
    places[ordered[order]] = 2 + np.arange(len(ordered)) - starts[examples]
    return places


def _query_logits(model: Model, batch: Arrays, rank_BT, memory_BT, key: jax.Array | None) -> jax.Array:
    hidden_BKD = model.encode(batch, key, batch["plm_positions_BK"], rank_BT=rank_BT, memory_BT=memory_BT).hidden
    return model.head("plm", hidden_BKD, model.word_VE)


def _last(batch: Arrays, read_BK: jax.Array) -> jax.Array:
    """Return the order in which the tokens to read come last, all at once.

    A place without a token reads column 0, where [CLS] is.
    """
    rows_B1 = jnp.arange(len(read_BK))[:, None]
    is_read_BT = jnp.zeros(batch["tokens_BT"].shape, jnp.int32).at[rows_B1, read_BK].set(1)
    return is_read_BT.at[rows_B1, jnp.maximum(batch["summary_positions_BN"], 0)].set(0)
