"""Attention targets per head: entropy, distance, groups of similar heads, and [SEP] (Clark et al., 2019)."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.attention_targets import (
    KINDS,
    TARGETS,
    divergence_sums,
    gradient_sums,
    kinds_of,
    target_sums,
    without_gradient,
)
from bertjax.analysis.material import Material
from bertjax.analysis.part import Case, Figure, Part, highest, listed
from bertjax.analysis.reduce import Progress, reduce
from bertjax.analysis.subject import Subject
from bertjax.objectives.base import Objective

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

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
        line = f"{case.model} on {case.material}: {listed(case.numbers['target'], '.0%')} of attention on average."
        if "without_gradient" in case.numbers:
            line += f" It has no gradients: the model {case.numbers['without_gradient']}."
        return line


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
