"""Attention targets per head: entropy, distance, groups of similar heads, and [SEP].

Clark et al. (2019, arXiv 1906.04341). The functions return sums over examples, (sum, weight) by name. As in the paper's
code (clarkkev/attention-analysis, General_Analysis.ipynb), attention is first averaged over the tokens of each example,
so that every example counts the same.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.part import Case, Figure, Part, highest, listed
from bertjax.analysis.reduce import Function, Progress, reduce
from bertjax.analysis.subject import Subject, captured, members
from bertjax.data.tokenizer import Tokenizer
from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.losses import Sums
from bertjax.objectives.pretraining.permutation import PermutationLM
from bertjax.training.loss import total_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

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
    member_BNT = members(examples_BT, slots)
    n_BT = jnp.einsum("bnt,bn->bt", member_BNT, member_BNT.sum(axis=-1))
    return jnp.where(examples_BT > 0, 1.0 / jnp.maximum(n_BT, 1.0), 0.0)


def _table(kinds: bytes) -> jax.Array:
    return jnp.array(np.frombuffer(kinds, np.uint8).astype(np.int32))


# Divergences cost the square of the number of heads. Their mean is stable over this many examples.
DIVERGENCE_EXAMPLES = 100
MOST_GROUPS = 8


class Targets(Part):
    """Attention by target, entropy, distance, groups of heads by divergence, and attention gradients by token kind.

    Arrays: `<model>/<texts>/` and `target` [7, L, H], `entropy`, `distance` [L, H], `divergence` [L * H, L * H],
    `gradient` [4, L, H], in the order of `TARGETS` and `KINDS`; `groups` [L, H] and `map` [2, L, H] from the
    divergences.
    """

    name = "targets"
    title = "Where heads look"
    needs_attention = True
    other_axes = ("groups",)

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        encoder, kinds = subject.encoder, kinds_of(subject.tokenizer)
        # Fewer examples for the divergences only; all other statistics use all of them.
        few = dataclasses.replace(material, examples=min(material.examples, DIVERGENCE_EXAMPLES))
        sums = reduce(subject, material, target_sums(encoder, kinds, subject.vocabulary.special_ids), progress)
        sums |= reduce(subject, few, divergence_sums(encoder), progress, share=0.5)
        objective = material.objective(subject)
        reason = without_gradient(objective, encoder)
        if not reason:
            # Without loss weights of its own, an objective has one function for all checkpoints.
            is_weighted = type(objective).loss_weights is not Objective.loss_weights
            function = gradient_sums(encoder, objective, kinds, subject.steps if is_weighted else 0)
            sums |= reduce(subject, material, function, progress, with_objective=True, share=0.5)
        sums["groups"], sums["map"] = groups_of(sums["divergence"], encoder.layers)
        return _numbers(sums) | ({"without_gradient": reason} if reason else {}), sums

    def figures(self, cases: Sequence[Case]) -> Iterator[Figure]:
        for number, case in enumerate(cases, 1):
            title, values, sums = case.title, case.numbers, case.arrays
            chart = drawing.matrices(dict(zip(TARGETS, sums["target"])), "share of attention", (0.0, 1.0))
            means = listed(values["target"], ".0%")
            to_sep = highest({"[SEP]": sums["target"][TARGETS.index("[SEP]")]}, ".0%")
            yield self.figure("targets", chart, number, title=title, means=means, to_sep=to_sep)
            entropies = {"uniform": values["uniform_entropy"], "entropy": sums["entropy"].mean()}
            chart = drawing.matrices({"entropy": sums["entropy"]}, "nats", (0.0, None))
            yield self.figure("entropy", chart, number, title=title, **entropies)
            inside, between = values["divergence_in_a_layer"], values["divergence_between_layers"]
            divergence = ""
            if inside is not None and between is not None:
                divergence = (
                    f"The mean divergence is {inside:.3f} nats within a layer and {between:.3f} between layers."
                )
            chart = drawing.Chart("A scatter plot.", functools.partial(_draw_heads, sums["map"], sums["groups"]))
            yield self.figure("heads", chart, number, title=title, groups=values["groups"], divergence=divergence)
            if "gradient" in sums:
                layers, by_kind = range(1, len(sums["entropy"]) + 1), dict(zip(KINDS, sums["gradient"]))
                lines = {kind: (layers, each_LH.mean(axis=1)) for kind, each_LH in by_kind.items()}
                means = listed({kind: each_LH.mean() for kind, each_LH in by_kind.items()}, ".2g")
                chart = drawing.curves(lines, "layer", "|dL / dA| in nats")
                yield self.figure("gradient", chart, number, title=title, means=means)

    def sentence(self, case: Case) -> str:
        text = f"{listed(case.numbers['target'], '.0%')} of attention on average."
        if "without_gradient" in case.numbers:
            text += f" It has no gradients: the model {case.numbers['without_gradient']}."
        return text


def groups_of(divergence_GG: np.ndarray, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster heads by divergence and place them in two dimensions.

    Clusters come from average linkage; the number between 2 and `MOST_GROUPS` with the best silhouette is chosen. The
    map applies classical scaling to the square roots of the divergences.

    Args:
      divergence_GG: divergences between all heads, layer by layer.
      layers: L.

    Returns:
      Each head's group, numbered from 1 by first occurrence, int [L, H], and the coordinates, float64 [2, L, H].
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    # Rounding can leave divergences slightly asymmetric or negative. Distances must be neither.
    distances = np.maximum((divergence_GG + divergence_GG.T) / 2, 0.0)
    np.fill_diagonal(distances, 0.0)
    heads = len(distances)
    if heads < 3:
        return np.arange(1, heads + 1).reshape(layers, -1), np.zeros((2, layers, heads // layers))
    tree = linkage(squareform(distances, checks=False), "average")
    cuts = {count: fcluster(tree, count, "maxclust") for count in range(2, min(MOST_GROUPS, heads - 1) + 1)}
    scores = {
        count: silhouette_score(distances, cut, metric="precomputed")
        for count, cut in cuts.items()
        if 1 < len(set(cut)) < heads
    }
    best = cuts[max(scores, key=scores.get)] if scores else np.ones(heads, int)
    # Cluster numbers from SciPy are arbitrary; numbers by first occurrence do not change between runs.
    order = {group: number for number, group in enumerate(dict.fromkeys(best.tolist()), 1)}
    return np.array([order[group] for group in best]).reshape(layers, -1), _scaled(distances).reshape(2, layers, -1)


def _scaled(squares_GG: np.ndarray) -> np.ndarray:
    """Return points in two dimensions with squared distances close to `squares_GG`; float64 [2, G]."""
    # Classical scaling: double centering turns squared distances into inner products, and their top eigenvectors are
    # the axes. A square root of the Jensen-Shannon divergence is a metric.
    centering = np.eye(len(squares_GG)) - 1 / len(squares_GG)
    values, vectors = np.linalg.eigh(-0.5 * centering @ squares_GG @ centering)
    points_2G = (vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))).T[::-1]
    return points_2G * np.where(points_2G[:, :1] < 0, -1.0, 1.0)  # the sign of an eigenvector is arbitrary


def _numbers(sums: dict[str, np.ndarray]) -> dict[str, Any]:
    layers, heads = sums["entropy"].shape
    divergence = sums["divergence"].reshape(layers, heads, layers, heads)
    # Masks over pairs of heads: both in one layer, and a head with itself.
    own = np.eye(layers, dtype=bool)[:, None, :, None] & np.ones((1, heads, 1, heads), bool)
    itself = np.eye(layers * heads, dtype=bool).reshape(layers, heads, layers, heads)
    numbers = {
        "target": dict(zip(TARGETS, sums["target"].mean(axis=(1, 2)).tolist())),
        "target_by_layer": {name: value.mean(axis=1).tolist() for name, value in zip(TARGETS, sums["target"])},
        "entropy_by_layer": sums["entropy"].mean(axis=1).tolist(),
        "uniform_entropy": float(sums["uniform_entropy"]),
        "distance_by_layer": sums["distance"].mean(axis=1).tolist(),
        "groups": int(sums["groups"].max()),
        "divergence_in_a_layer": float(divergence[own & ~itself].mean()) if heads > 1 else None,
        "divergence_between_layers": float(divergence[~own].mean()) if layers > 1 else None,
    }
    if "gradient" in sums:
        by_layer_4L = sums["gradient"].mean(axis=2)
        numbers["gradient_by_layer"] = {name: value.tolist() for name, value in zip(KINDS, by_layer_4L)}
    return numbers


def _draw_heads(map_2LH: np.ndarray, groups_LH: np.ndarray) -> "Drawing":
    figure, (panel,) = drawing.panels(1, 4.6, 4.0)
    for layer, head in np.ndindex(groups_LH.shape):
        color = drawing.COLORS[(groups_LH[layer, head] - 1) % len(drawing.COLORS)]
        panel.text(*map_2LH[:, layer, head], str(layer + 1), color=color, ha="center", va="center", weight="bold")
    # Texts have no extent in data coordinates, so the limits come from invisible points.
    panel.scatter(*map_2LH.reshape(2, -1), alpha=0.0)
    panel.set(xlabel="square root of nats", ylabel="square root of nats", aspect="equal")
    return figure
