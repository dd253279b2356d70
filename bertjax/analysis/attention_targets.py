"""Attention statistics per head: targets, entropy, distance, and divergence between heads.

Clark et al. (2019, arXiv 1906.04341). The functions return sums over examples, (sum, weight) by name. As in the paper's
code (clarkkev/attention-analysis, General_Analysis.ipynb), attention is first averaged over the tokens of each example,
so that every example counts the same.
"""

import functools
import unicodedata
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis.reduce import Function
from bertjax.analysis.subject import captured
from bertjax.data.tokenizer import Tokenizer
from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.losses import Sums
from bertjax.objectives.pretraining.permutation import PermutationLM
from bertjax.training.loss import total_loss

KINDS = ("[CLS]", "[SEP]", "punctuation", "other")
TARGETS = ("[CLS]", "[SEP]", "punctuation", "previous", "next", "same word", "itself")
_OTHER = KINDS.index("other")


def is_punctuation(text: str) -> bool:
    """Return whether a text has punctuation only, by Unicode."""
    return bool(text) and all(unicodedata.category(character).startswith("P") for character in text)


def kinds_of(tokenizer: Tokenizer, is_mark: Callable[[str], bool] = is_punctuation) -> bytes:
    """Return the kind of each token id, an index into `KINDS`, as bytes.

    Punctuation follows Unicode. The paper's code counts periods and commas only, so shares of attention to punctuation
    are higher here than in its figure 2.

    Args:
      tokenizer: its tokens.
      is_mark: whether the text of a piece is of the third kind.
    """
    kinds = np.full(tokenizer.vocab_size, _OTHER, np.uint8)
    for token in range(tokenizer.vocab_size):
        if is_mark(tokenizer.piece(token).removeprefix("##").lstrip("▁Ġ")):
            kinds[token] = KINDS.index("punctuation")
    kinds[sorted(tokenizer.special_ids)] = _OTHER
    kinds[tokenizer.cls_id], kinds[tokenizer.sep_id] = KINDS.index("[CLS]"), KINDS.index("[SEP]")
    # Bytes can be hashed, so they can be a key of `lru_cache`.
    return kinds.tobytes()


@functools.lru_cache
def target_sums(encoder: EncoderConfig, kinds: bytes, special_ids: tuple[int, ...]) -> Function:
    """Return the function that computes `target` [7, L, H], `entropy` [L, H] and `distance` [L, H].

    `target` is the mean attention to each of `TARGETS`; `same word` means the same token elsewhere, special tokens
    excluded. `entropy` is in nats, and `uniform_entropy` is its value for uniform attention. `distance` is the mean
    token distance between a text token and the text tokens it attends to, weighted by attention.
    """

    def function(params: dict, batch: Arrays) -> dict[str, Sums]:
        attention_LBHTT = captured(encoder, params, batch, ["attention"])["attention"]
        tokens_BT, weight_BT = batch["tokens_BT"], _weights(batch)
        is_text_BT = ~jnp.isin(tokens_BT, jnp.array(special_ids)) & (batch["examples_BT"] > 0)
        kind_BT3 = jax.nn.one_hot(_table(kinds)[tokens_BT], len(KINDS))[..., :_OTHER]
        columns = jnp.arange(tokens_BT.shape[1])
        offset_TT = columns - columns[:, None]
        # These masks ignore example boundaries: attention across examples is 0 anyway.
        both_BTT = is_text_BT[:, :, None] & is_text_BT[:, None]
        same_BTT = (tokens_BT[:, :, None] == tokens_BT[:, None]) & both_BTT & (offset_TT != 0)

        # One layer at a time: the products of all layers would not fit in memory beside the maps.
        def of_layer(attention_BHTT):
            weighted_BHTT = attention_BHTT * weight_BT[:, None, :, None]
            near = [jnp.einsum("bhij,ij->h", weighted_BHTT, offset_TT == offset) for offset in (-1, 1)]
            targets_7H = [
                *jnp.einsum("bhij,bjk->kh", weighted_BHTT, kind_BT3),
                *near,
                jnp.einsum("bhij,bij->h", weighted_BHTT, same_BTT),
                jnp.einsum("bhii->h", weighted_BHTT),
            ]
            # `xlogy` is 0 at 0, where x * log(x) is NaN.
            entropy_H = -jnp.einsum("bhij,bi->h", jax.scipy.special.xlogy(attention_BHTT, attention_BHTT), weight_BT)
            to_text_BHTT = weighted_BHTT * both_BTT[:, None]
            distance_H = jnp.einsum("bhij,ij->h", to_text_BHTT, jnp.abs(offset_TT).astype(jnp.float32))
            return jnp.stack(targets_7H), entropy_H, distance_H, to_text_BHTT.sum(axis=(0, 2, 3))

        targets_L7H, entropy_LH, distance_LH, to_text_LH = jax.lax.map(of_layer, attention_LBHTT)
        count = jnp.sum(batch["example_ids_BN"] >= 0).astype(jnp.float32)
        uniform = jnp.sum(weight_BT * jnp.log(1.0 / jnp.where(weight_BT > 0, weight_BT, 1.0)))
        return {
            "target": (jnp.moveaxis(targets_L7H, 1, 0), count),
            "entropy": (entropy_LH, count),
            "uniform_entropy": (uniform, count),
            "distance": (distance_LH, to_text_LH),
        }

    return function


@functools.lru_cache
def divergence_sums(encoder: EncoderConfig) -> Function:
    """Return the function that computes `divergence` [L * H, L * H], Jensen-Shannon between heads, in nats.

    It compares the attention of one token and is averaged over tokens and examples. The paper sums over both (section
    6).
    """

    def function(params: dict, batch: Arrays) -> dict[str, Sums]:
        attention_LBHTT = captured(encoder, params, batch, ["attention"])["attention"]
        weight_BT = _weights(batch)
        rows, _, columns, _ = attention_LBHTT.shape[1:]
        heads_GBTT = jnp.moveaxis(attention_LBHTT, 2, 1).reshape(-1, rows, columns, columns)

        # JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2: entropies replace the two KL divergences, which need logs of
        # zeros.
        def negative_entropy(probabilities):
            return jnp.einsum("...bij,bi->...", jax.scipy.special.xlogy(probabilities, probabilities), weight_BT)

        own_G = jax.lax.map(negative_entropy, heads_GBTT)

        def row(head_BTT):
            return jax.lax.map(lambda other_BTT: negative_entropy((head_BTT + other_BTT) / 2), heads_GBTT)

        # Pairs of heads in a nested loop: all mixtures at once would take (L H)^2 maps.
        mixed_GG = jax.lax.map(row, heads_GBTT)
        count = jnp.sum(batch["example_ids_BN"] >= 0).astype(jnp.float32)
        return {"divergence": ((own_G[:, None] + own_G) / 2 - mixed_GG, count)}

    return function


def without_gradient(objective: Objective | None, encoder: EncoderConfig) -> str:
    """Return why `gradient_sums` does not apply, as the end of a sentence about the model; empty if it does."""
    if objective is None:
        return "has no loss on these texts"
    if objective.traits.needs_global_batch:
        return "compares the examples of a batch with each other, so that no example has a loss of its own"
    if objective.model(encoder).generator is not None:
        # The loss is computed on replaced tokens, so the values captured here would not match it.
        return "has a loss on texts in which its generator has replaced tokens, and not on these texts"
    if isinstance(objective, PermutationLM):
        # The context offset is added to both streams, so its gradient would be the sum of two derivatives.
        return "is trained with two streams of attention, of which the texts show one"
    return ""


@functools.lru_cache
def gradient_sums(encoder: EncoderConfig, objective: Objective, kinds: bytes, step: int) -> Function:
    """Return the function that computes `gradient` [4, L, H]: mean |dL / dA_ij| over tokens i, by kind of token j.

    It accepts objectives for which `without_gradient` is empty.

    L is the loss of one example, summed over its predictions. The paper (section 3.2) compares the gradient for [SEP]
    with the one for other tokens: if it is small, more or less attention to [SEP] would change little.

    dL / dA_ij = dL / dcontext_i . value_j, per head. A tap provides the gradient with respect to the context.

    Args:
      encoder, objective: architecture and objective of the model.
      kinds: result of `kinds_of`.
      step: training step of the loss weights.
    """
    model = objective.model(encoder)

    def function(params: dict, batch: Arrays) -> dict[str, Sums]:
        values_LBTHD = captured(encoder, params, batch, ["values"])["values"]

        def loss(offset_LBTHD):
            masks = {"encoder": {taps.CONTEXT_OFFSET: offset_LBTHD}}
            sums, _ = objective.terms(model, params, None, batch, jax.random.key(0), train=False, taps=masks)
            return total_loss(objective, sums, step)

        # The gradient of the offset at 0 is dL / dcontext for all layers, from one backward pass.
        gradient_LBTHD = jax.grad(loss)(jnp.zeros_like(values_LBTHD))
        kind_BT4 = jax.nn.one_hot(_table(kinds)[batch["tokens_BT"]], len(KINDS))
        examples_BT = batch["examples_BT"]
        pair_BTT = ((examples_BT[:, :, None] == examples_BT[:, None]) & (examples_BT > 0)[:, None]).astype(jnp.float32)

        def of_layer(gradient_and_values):
            gradient_BTHD, values_BTHD = gradient_and_values
            gradient_BHTT = jnp.einsum("bihd,bjhd->bhij", gradient_BTHD, values_BTHD)
            return jnp.einsum("bhij,bij,bjk->kh", jnp.abs(gradient_BHTT), pair_BTT, kind_BT4)

        totals_L4H = jax.lax.map(of_layer, (gradient_LBTHD, values_LBTHD))
        pairs_4 = jnp.einsum("bij,bjk->k", pair_BTT, kind_BT4)
        return {"gradient": (jnp.moveaxis(totals_L4H, 1, 0), pairs_4[:, None, None])}

    return function


def _weights(batch: Arrays) -> jax.Array:
    """Return 1 / n for each token in an example with n tokens, 0 for padding; float32 [B, T]."""
    examples_BT, slots = batch["examples_BT"], batch["example_ids_BN"].shape[1]
    member_BTN = (examples_BT[..., None] == jnp.arange(1, slots + 1)).astype(jnp.float32)
    n_BT = jnp.einsum("btn,bn->bt", member_BTN, member_BTN.sum(axis=1))
    return jnp.where(examples_BT > 0, 1.0 / jnp.maximum(n_BT, 1.0), 0.0)


def _table(kinds: bytes) -> jax.Array:
    return jnp.array(np.frombuffer(kinds, np.uint8).astype(np.int32))
