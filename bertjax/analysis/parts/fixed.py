"""Similarity between each head's attention and fixed patterns (Raganato et al., 2020)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.part import Figure, Part, Result
from bertjax.analysis.reduce import Progress, hide, reduce
from bertjax.analysis.subject import Subject, captured
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.fixed import FIXED_PATTERNS, fixed_maps
from bertjax.models.visibility import Visibility
from bertjax.objectives.base import Arrays
from bertjax.objectives.losses import Sums

# With more models the bars become indistinguishable.
MOST_MODELS = 6


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Device: overlap between two attention maps, sum_j min(A_ij, P_ij), from 0 to 1, averaged over tokens i.

    It equals 1 minus the total variation distance. `overlap` [L, H, P] compares each head with each pattern. `uniform`
    [P] compares equal attention to all tokens in the example with each pattern.
    """

    encoder: EncoderConfig

    def __call__(self, params: dict, batch: Arrays) -> dict[str, Sums]:
        attention_LBHTT = captured(self.encoder, params, batch, ["attention"])["attention"]
        visibility = Visibility(batch["examples_BT"])
        # The same function that fixes heads in a model, so likeness 1 means exactly such a head.
        maps_BPTT = fixed_maps(FIXED_PATTERNS, visibility)
        mask_BTT = visibility.mask_BQT()
        uniform_BTT = mask_BTT / mask_BTT.sum(axis=-1, keepdims=True)
        real_BT = (batch["examples_BT"] > 0).astype(jnp.float32)

        # Padding has a row in every map, so it is left out of the mean.
        def shared(attention, map_BTT):
            return jnp.einsum("...bt,bt->...", jnp.minimum(attention, map_BTT).sum(axis=-1), real_BT)

        attention_LHBTT = jnp.moveaxis(attention_LBHTT, 2, 1)
        patterns = range(len(FIXED_PATTERNS))
        overlap_LHP = jnp.stack([shared(attention_LHBTT, maps_BPTT[:, p]) for p in patterns], axis=-1)
        uniform_P = jnp.stack([shared(uniform_BTT, maps_BPTT[:, p]) for p in patterns])
        return {"overlap": (overlap_LHP, real_BT.sum()), "uniform": (uniform_P, real_BT.sum())}


class Fixed(Part):
    """Overlap of every head with the patterns available in `model.block.fixed_heads`."""

    name = "fixed"
    title = "Heads beside fixed patterns"
    needs_attention = True

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        if subject.encoder.direction != BIDIRECTIONAL:
            direction = f"has model.direction={subject.encoder.direction}"
            return f"{direction}; fixed patterns are defined for tokens that see all of their example"
        return ""

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the overlaps; arrays are `<model>/<material>/likeness` and `overlap` [L, H, P], `uniform` [P]."""
        numbers, arrays, figures = {subject.label: {} for subject in subjects}, {}, []
        for material in materials:
            likenesses = {}
            for subject in subjects:
                reduced = reduce(subject, material, Overlap(subject.encoder), progress)
                reduced["likeness"] = likeness(reduced["overlap"], reduced["uniform"])
                likenesses[subject.label] = reduced["likeness"]
                arrays |= {f"{subject.label}/{material.name}/{name}": array for name, array in reduced.items()}
                numbers[subject.label][material.name] = _numbers(reduced["likeness"], subject.encoder)
            figures += _figures(material, likenesses)
        return Result(numbers, arrays, figures, _text(numbers), other_axes=frozenset({"uniform"}))


def likeness(overlap_LHP: np.ndarray, uniform_P: np.ndarray) -> np.ndarray:
    """Return the overlap rescaled so that equal attention is 0 and the pattern itself is 1.

    It is negative for a head that avoids the tokens of a pattern.
    """
    # In short sentences equal attention overlaps with any pattern, so raw overlaps are not comparable across lengths.
    return (overlap_LHP - uniform_P) / (1 - uniform_P)


def _numbers(likeness_LHP: np.ndarray, encoder: EncoderConfig) -> dict:
    nearest_LH = likeness_LHP.argmax(axis=-1)
    return {
        "fixed_heads": list(encoder.block.fixed_heads),
        "nearest": [[FIXED_PATTERNS[index] for index in heads] for heads in nearest_LH],
        "likeness": likeness_LHP.max(axis=-1).tolist(),
        "mean": dict(zip(FIXED_PATTERNS, likeness_LHP.mean(axis=(0, 1)).tolist(), strict=True)),
        "above_half": float((likeness_LHP.max(axis=-1) > 0.5).mean()),
    }


def _figures(material: Material, likenesses: Mapping[str, np.ndarray]) -> list[Figure]:
    best = {label: likeness_LHP.max(axis=-1) for label, likeness_LHP in likenesses.items()}
    above = "; ".join(f"{label}: {(values > 0.5).mean():.0%}" for label, values in best.items())
    means = {
        label: dict(zip(FIXED_PATTERNS, likeness_LHP.mean(axis=(0, 1)).tolist(), strict=True))
        for label, likeness_LHP in likenesses.items()
    }
    value, pattern, label = max((value, name, label) for label, row in means.items() for name, value in row.items())
    slug = "".join(c if c.isascii() and c.isalnum() else "-" for c in material.name.lower()).strip("-") or "texts"
    figures = [
        Figure(
            f"nearest-{slug}",
            f"How much the attention of each head on {material.name} is like the nearest of seven fixed patterns "
            "(current, previous and next token, context to the left and right, start and end; Raganato et al., 2020): "
            "1 is the pattern itself, as in heads that are fixed, and 0 is equal attention to all tokens of the "
            f"example. Share of heads above one half: {above}.",
            f"Matrices of layers and heads. Share of heads above one half: {above}.",
            functools.partial(drawing.matrices, best, "likeness to the nearest pattern", 0.0, 1.0),
        )
    ]
    if len(means) <= MOST_MODELS:
        figures.append(
            Figure(
                f"patterns-{slug}",
                f"The same for each pattern, as the mean of all heads on {material.name}. Bars below 0 are patterns "
                f"that heads avoid (patterns of Raganato et al., 2020). The highest is {value:.2f}, `{pattern}` in "
                f"{label}.",
                f"Bars of seven patterns. The highest is {value:.2f}, {pattern} in {label}.",
                functools.partial(drawing.bars, means, "mean likeness"),
            )
        )
    return figures


def _text(numbers: Mapping[str, Mapping[str, dict]]) -> str:
    sentences = []
    for label, materials in numbers.items():
        for material, values in materials.items():
            nearest = max(values["mean"], key=values["mean"].get)
            sentences.append(
                f"{label} on {material}: {values['above_half']:.0%} of the heads have a likeness above one half to a "
                f"fixed pattern. The highest mean over heads is that of `{nearest}`, {values['mean'][nearest]:.2f}."
            )
            if values["fixed_heads"]:
                sentences.append(f"Of its heads, {len(values['fixed_heads'])} a layer are fixed.")
    return " ".join(sentences)
