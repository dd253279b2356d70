"""Prediction of tokens in a random order: XLNet's permutation language modeling, and MPNet's permuted masked one.

XLNet (Yang et al., 2019, arXiv 1906.08237):

The tokens of an example get a random prediction order. The last ones in it are predicted, each from the tokens before
it in the order, wherever they are in the text (section 2.2, equation 3). No mask symbol hides a token. Instead, a
predicted token has a second state, in the query stream, that knows its position but not its token (section 2.3). A
share 1/K of the tokens is predicted (equation 5, K = 6), chosen by the masking. As in the authors' code
(zihangdai/xlnet, data_utils.py), the other tokens see each other but no predicted ones, and special symbols also have
places in the order.

With `memory`, the first half of a row is section 2.4's cached segment: the second half sees it, and no gradient passes
into it.

With `both_directions`, half of the examples have the following text as memory instead of the preceding text. This is
the effect of reversing half of each batch (section 3.1; `bi_data` in that code). The authors' code reverses the tokens
(data_utils.py) and negates the distances in these rows (`relative_positional_encoding` in modeling.py), so a reversed
row has the same states as the original one, and only the side of the memory changes. Here the tokens keep their order,
and the memory changes sides.

MPNet (Song et al., 2020, arXiv 2004.09297, section 2):
The predicted tokens of an example get a random order. Each is predicted from the tokens that are not predicted, the
predicted ones before it in the order, and the symbols (mostly [MASK]) and positions of itself and those after it. So a
prediction depends on the predictions before it, which masked language modeling neglects, and it sees the position of
every token of the text, which XLNet's do not (section 2.3, "position compensation"). `bertjax.models.streams` has the
attention of both.

The head and the encoder's reading of a masked text are those of masked language modeling. So the model predicts, and
converts to `MPNetForMaskedLM`, as one that is trained with `objective.kind=mlm`.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.masking import Masking, TokenMasking, mask, token_bits
from bertjax.data.random import bits
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.flops import FlopsPart
from bertjax.models.model import HeadSpec, Model
from bertjax.models.other_heads import VocabularyHead
from bertjax.models.streams import CompensatedStreams, Streams
from bertjax.objectives.base import Arrays
from bertjax.objectives.host import Traits
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class PermutationLM(MaskedLM):
    """Predict tokens in a random order. Terms: `plm`.

    Attributes:
      masking: selects the tokens to predict; it must not replace them.
      memory: use the first half of a row's positions as memory for the second half, and predict only tokens in the
        second half. For examples as long as a row.
      both_directions: flip a coin per example and epoch, and on heads use the second half, counted from the example's
        end, as the memory. Needs `memory`.
    """

    masking: Masking = TokenMasking(rate=1 / 6, mask=0.0, random=0.0)
    memory: bool = False
    both_directions: bool = False
    traits: ClassVar[Traits] = Traits(text_term="plm")
    term: ClassVar[str] = "plm"
    head: ClassVar[str] = "plm"

    def __post_init__(self):
        super().__post_init__()
        if self.masking.mask or self.masking.random:
            raise UserError(
                f"masking.mask={self.masking.mask} and masking.random={self.masking.random} replace tokens, and "
                "objective.kind=permutation hides them by their order; set both to 0"
            )
        if self.both_directions and not self.memory:
            # Reversed rows with negated distances have the same states as unreversed ones: without memory, nothing
            # changes.
            raise UserError(
                "objective.both_directions=True chooses the side of the memory, and objective.memory=False has none; "
                "set objective.memory=True, or objective.both_directions=False"
            )

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        """Return the head: query stream times word embeddings.

        Raises:
          UserError: the encoder has no query stream, reads from left to right, or has embeddings of another width
            than its layers.
        """
        # A query that sees no token of its own must know its place.
        check_encoder(config, "permutation", "xlnet", Streams)
        if config.embedded_width != config.width:
            raise UserError(
                f"objective.kind=permutation multiplies states by word embeddings, and model.embeddings.width="
                f"{config.embeddings.width} is not model.width={config.width}; leave it 0"
            )
        return {"plm": HeadSpec(VocabularyHead)}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`plm`: logits_BKV at the predicted positions}."""
        # Rank 0 marks the memory. Padding has it too, but no token sees padding.
        memory_BT = batch["rank_BT"] == 0 if self.memory else None
        streams = Streams(batch["plm_positions_BK"], batch["rank_BT"], memory_BT)
        return {"plm": super().mlm_logits(model, batch, key, streams=streams)}

    def mlm_logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return logits_BKV at the predicted positions, each predicted from all tokens that are not."""
        return super().mlm_logits(model, batch, key, streams=Streams(batch["plm_positions_BK"], _last(batch)))

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        return tuple(part._replace(queries=True) for part in super().flops_parts(config))

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return the predicted tokens and `rank_BT`, int32, see `ranks`."""
        ragged, masked = examples.ragged, mask(examples, draw, self.masking)
        is_memory = self._is_memory(examples, draw)
        chosen = masked.chosen & ~is_memory
        rank_BT = examples.tokens_to_rows(ranks(ragged, draw, chosen, is_memory))
        return self.masked_features(examples, masked.tokens, chosen) | {"rank_BT": rank_BT}

    def _is_memory(self, examples: PlacedExamples, draw: Draw) -> np.ndarray:
        """Return a mask of the memory tokens; bool [n]."""
        ragged, half = examples.ragged, examples.seq_len // 2 if self.memory else 0
        index = ragged.token_index
        if self.both_directions:
            coins = bits(draw.seed, "permutation/direction", draw.epochs, ragged.ids, 0) >> np.uint32(31)
            from_end = ragged.spread(ragged.lengths) - 1 - index
            index = np.where(ragged.spread(coins) == 1, from_end, index)
        return index < half


def ranks(ragged: Ragged, draw: Draw, chosen: np.ndarray, is_memory: np.ndarray) -> np.ndarray:
    """Return each token's rank in the prediction order; int32 [n].

    Ranks are 0 in the memory and 1 for tokens that are neither predicted nor special. Predicted tokens and special
    symbols follow one by one, in a random order that differs between examples.

    Args:
      ragged: examples with n tokens.
      draw: seed and epochs, which determine the order.
      chosen: bool [n], tokens to predict.
      is_memory: bool [n], memory tokens.
    """
    return order(ragged, draw, (chosen | ragged.special) & ~is_memory) + ~is_memory


def order(ragged: Ragged, draw: Draw, ordered: np.ndarray) -> np.ndarray:
    """Return each token's place, from 1 on, in a random order of the tokens `ordered` of its example; int32 [n].

    The others have 0.

    Args:
      ragged: examples with n tokens.
      draw: seed and epochs, which determine the order.
      ordered: bool [n].
    """
    places, ordered = np.zeros(len(ordered), np.int32), np.flatnonzero(ordered)
    examples = ragged.token_examples[ordered]
    # Sort by example, and within an example by random bits: a permutation per example.
    by_example = np.lexsort((token_bits(ragged, draw, "permutation", ordered), examples))
    starts = np.searchsorted(examples, np.arange(len(ragged.ids)))
    places[ordered[by_example]] = 1 + np.arange(len(ordered)) - starts[examples]
    return places


def check_encoder(config: EncoderConfig, objective: str, block: str, streams: type) -> None:
    """Raise UserError if an encoder cannot predict tokens in a random order.

    Args:
      objective, block: kinds of the objective and of the block that it needs.
      streams: the streams of states that the objective reads.
    """
    if config.block.streams is not streams:
        raise UserError(
            f"objective.kind={objective} needs model.block.kind={block}, not {config.block.kind}; "
            f"model.preset={block}_base has it"
        )
    if config.direction != BIDIRECTIONAL:
        raise UserError(
            f"objective.kind={objective} predicts in an order of its own, and model.direction={config.direction} is "
            f"another; set model.direction={BIDIRECTIONAL}"
        )


def _last(batch: Arrays) -> jax.Array:
    """Return the order in which all predicted tokens come last, at the same rank."""
    read_BK, is_used_BK = batch["plm_positions_BK"], batch["plm_weights_BK"] > 0
    rows_B1 = jnp.arange(len(read_BK))[:, None]
    # Unused places point to column 0, which is text if [CLS] comes last. `max` keeps it visible.
    return jnp.zeros(batch["tokens_BT"].shape, jnp.int32).at[rows_B1, read_BK].max(is_used_BK.astype(jnp.int32))


@dataclasses.dataclass(frozen=True)
class PermutedMaskedLM(MaskedLM):
    """Predict masked tokens one after the other, in a random order. Terms: `mlm`.

    `mlm_loss` is lower than that of `objective.kind=mlm` with the same weights, since predictions see earlier ones.

    Attributes:
      masking: selects the tokens to predict, and the symbols in their place.
    """

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        """Return the head of masked language modeling.

        Raises:
          UserError: the encoder's attention cannot read predicted tokens beside the row, or it reads in one direction.
        """
        check_encoder(config, "permuted_mlm", "mpnet", CompensatedStreams)
        return super().heads(config)

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`mlm`: logits_BKV of the query stream}."""
        answers_BK = jnp.where(batch["mlm_weights_BK"] > 0, batch["mlm_labels_BK"], -1)
        streams = CompensatedStreams(batch["mlm_positions_BK"], batch["rank_BT"], answers_BK)
        return {"mlm": self.mlm_logits(model, batch, key, streams=streams)}

    def flops_parts(self, config: EncoderConfig):
        return tuple(part._replace(queries=True, answers=True) for part in super().flops_parts(config))

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return what masked language modeling has, and `rank_BT`, int32: 0, or the place of a predicted token.

        Chosen tokens beyond the capacity K have 0 too: their symbols stay in the row. Places may so have gaps.
        """
        masked = mask(examples, draw, self.masking)
        features = self.masked_features(examples, masked.tokens, masked.chosen)
        places_BT = examples.tokens_to_rows(order(examples.ragged, draw, masked.chosen))
        # With a place, a symbol is hidden from later predictions, which then must see the token as one of the K.
        rank_BT, (rows, used) = np.zeros_like(places_BT), np.nonzero(features["mlm_weights_BK"])
        columns = features["mlm_positions_BK"][rows, used]
        rank_BT[rows, columns] = places_BT[rows, columns]
        return features | {"rank_BT": rank_BT}
