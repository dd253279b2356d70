"""Shares of attention map classes, by layer and head (Kovaleva et al., 2019)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.attention_patterns import CLASSES, FEATURES, classify, features
from bertjax.analysis.material import Material
from bertjax.analysis.part import Figure, Part, Result
from bertjax.analysis.reduce import Function, Progress, hide, reduce
from bertjax.analysis.subject import Subject, captured
from bertjax.models.config import EncoderConfig

_PAPER = "Kovaleva et al. (2019, section 4.1 and figure 2)"


class Patterns(Part):
    """Sorts each example's maps into five classes, and averages over examples.

    Arrays: `<model>/<material>/shares` [5, L, H] in the order of `CLASSES`, and mean `features` [3, L, H].
    """

    name = "patterns"
    title = "Self-attention patterns"
    needs_attention = True

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        numbers, arrays = {}, {}
        for subject in subjects:
            function = shares_of_maps(subject.encoder, subject.vocabulary.special_ids)
            for material in materials:
                sums = reduce(subject, material, function, progress)
                key = f"{subject.label}/{material.name}"
                arrays |= {f"{key}/{name}": values for name, values in sums.items()}
                numbers.setdefault(subject.label, {})[material.name] = _numbers(sums, len(material.encoded(subject)))
        return Result(numbers, arrays, _figures(numbers, arrays), _text(numbers))


@functools.lru_cache
def shares_of_maps(encoder: EncoderConfig, special_ids: tuple[int, ...]) -> Function:
    """Return the function that computes `shares` [5, L, H] and `features` [3, L, H], means over examples."""

    def function(params, batch):
        # A lookup table in the vocabulary: one gather per batch finds special tokens.
        is_special_V = jnp.zeros(encoder.padded_vocab_size, bool).at[jnp.array(special_ids)].set(True)
        attention_LBHTT = captured(encoder, params, batch, ["attention"])["attention"]
        is_special_BT = is_special_V[batch["tokens_BT"]]
        of_layer = functools.partial(features, batch=batch, is_special_BT=is_special_BT)
        # One layer at a time: the features take several products as large as a map.
        features_3LBHN = jnp.moveaxis(jax.lax.map(of_layer, attention_LBHTT), 0, 1)
        is_example_BN = (batch["example_ids_BN"] >= 0).astype(jnp.float32)
        classes_LBHN = classify(features_3LBHN)
        one_hot_5LBHN = (classes_LBHN == jnp.arange(len(CLASSES)).reshape(-1, 1, 1, 1, 1)).astype(jnp.float32)
        total = functools.partial(jnp.einsum, "clbhn,bn->clh")
        count = is_example_BN.sum()
        return {
            "shares": (total(one_hot_5LBHN, is_example_BN), count),
            "features": (total(features_3LBHN, is_example_BN), count),
        }

    return function


def _numbers(sums: dict[str, np.ndarray], examples: int) -> dict:
    """Return a model's numbers on a material: shares over all maps, and per layer."""
    shares_5LH = sums["shares"]
    return {
        "examples": examples,
        "shares": dict(zip(CLASSES, shares_5LH.mean(axis=(1, 2)).tolist())),
        "by_layer": {name: share_LH.mean(axis=1).tolist() for name, share_LH in zip(CLASSES, shares_5LH)},
        "features": dict(zip(FEATURES, sums["features"].mean(axis=(1, 2)).tolist())),
    }


def _figures(numbers: dict, arrays: dict[str, np.ndarray]) -> list[Figure]:
    pairs = [(label, material) for label, by_material in numbers.items() for material in by_material]
    means = {f"{label}, {material}": numbers[label][material]["shares"] for label, material in pairs}
    layers = {
        f"{label}, {material}": {
            name: np.array(values) for name, values in numbers[label][material]["by_layer"].items()
        }
        for label, material in pairs
    }
    described = "; ".join(f"{title}: {_listed(shares)}" for title, shares in means.items())
    figures = [
        Figure(
            "shares",
            f"Share of each class of attention maps by layer, over all examples and heads. A bar is a layer. {_PAPER} "
            f"draw the same shares for tasks of GLUE. All layers: {described}.",
            f"Stacked bars of five classes for each layer. All layers: {described}.",
            functools.partial(drawing.stacked_bars, layers, "share of maps"),
        )
    ]
    for label, material in pairs:
        shares_5LH = arrays[f"{label}/{material}/shares"]
        matrices = dict(zip(CLASSES, shares_5LH))
        # Heads whose class hardly depends on the example: a fixed behavior rather than a reaction to the text.
        stable = float((shares_5LH.max(axis=0) >= 0.9).mean())
        figures.append(
            Figure(
                f"heads-{len(figures)}",
                f"{label} on {material}: the share of examples in which the map of a head is of a class. A row is a "
                f"layer, a column a head; a cell of 1 is a head whose maps all are of this class. {stable:.0%} of the "
                "heads have one class in at least 90% of the examples.",
                f"Five matrices of layers by heads for {label} on {material}. {stable:.0%} of the heads have one class "
                "in at least 90% of the examples.",
                functools.partial(drawing.matrices, matrices, "share of examples", 0.0, 1.0),
            )
        )
    return figures


def _listed(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def _text(numbers: dict) -> str:
    lines = []
    for label, by_material in numbers.items():
        for material, values in by_material.items():
            most = max(values["shares"], key=values["shares"].get)
            lines.append(
                f"{label} on {material} ({values['examples']:,} examples): most maps are {most} "
                f"({values['shares'][most]:.0%})."
            )
    rules = (
        "Each map of a head in an example is put into one of five classes by rules: vertical (columns that most tokens "
        "attend to), diagonal (the token itself and its neighbors), both, block (the own segment), or heterogeneous "
        "(none of these). docs/results/attention_patterns.md compares the rules with maps labeled by eye."
    )
    return f"{rules}\n\n{' '.join(lines)}"
