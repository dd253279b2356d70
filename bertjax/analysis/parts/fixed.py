"""Fixed patterns (Raganato et al., 2020): how much of the attention of each head a fixed pattern has, too."""

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
from bertjax.models.config import FIXED_PATTERNS, LEFT_TO_RIGHT, EncoderConfig
from bertjax.models.fixed import fixed_maps
from bertjax.models.visibility import Visibility
from bertjax.objectives.base import Arrays
from bertjax.objectives.losses import Sums


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Device: the overlap of two maps is sum_j min(A_ij, P_ij), from 0 to 1, averaged over the tokens i.

    It is 1 minus the total variation distance. `overlap` [L, H, P] is that of each head with each pattern, `uniform`
    [P] that of equal attention to all tokens of the example.
    """

    encoder: EncoderConfig

    def __call__(self, params: dict, batch: Arrays) -> dict[str, Sums]:
        attention_LBHTT = captured(self.encoder, params, batch, ["attention"])["attention"]
        visibility = Visibility(batch["examples_BT"])
        maps_BPTT = fixed_maps(FIXED_PATTERNS, visibility)
        mask_BTT = visibility.mask_BQT()
        uniform_BTT = mask_BTT / mask_BTT.sum(axis=-1, keepdims=True)
        real_BT = (batch["examples_BT"] > 0).astype(jnp.float32)

        def shared(attention, map_BTT):
            return jnp.einsum("...bt,bt->...", jnp.minimum(attention, map_BTT).sum(axis=-1), real_BT)

        attention_LHBTT = jnp.moveaxis(attention_LBHTT, 2, 1)
        patterns = range(len(FIXED_PATTERNS))
        overlap_LHP = jnp.stack([shared(attention_LHBTT, maps_BPTT[:, p]) for p in patterns], axis=-1)
        uniform_P = jnp.stack([shared(uniform_BTT, maps_BPTT[:, p]) for p in patterns])
        return {"overlap": (overlap_LHP, real_BT.sum()), "uniform": (uniform_P, real_BT.sum())}


class Fixed(Part):
    """The overlap of every head with the patterns that `model.fixed_heads` can be."""

    name = "fixed"
    title = "Heads beside fixed patterns"

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        if subject.encoder.direction == LEFT_TO_RIGHT:
            return "reads from left to right; fixed patterns are defined for tokens that see all of their example"
        return ""

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the overlaps; arrays are `<model>/<material>/overlap` [L, H, P] and `uniform` [P]."""
        numbers, arrays, figures = {subject.label: {} for subject in subjects}, {}, []
        for material in materials:
            overlaps = {}
            for subject in subjects:
                reduced = reduce(subject, material, Overlap(subject.encoder), progress)
                overlaps[subject.label] = reduced["overlap"]
                arrays |= {f"{subject.label}/{material.name}/{name}": array for name, array in reduced.items()}
                numbers[subject.label][material.name] = _numbers(
                    reduced["overlap"], reduced["uniform"], subject.encoder
                )
            uniform_P = arrays[f"{subjects[0].label}/{material.name}/uniform"]
            figures += _figures(material, overlaps, uniform_P)
        return Result(numbers, arrays, figures, _text(numbers))


def _numbers(overlap_LHP: np.ndarray, uniform_P: np.ndarray, encoder: EncoderConfig) -> dict:
    nearest_LH = overlap_LHP.argmax(axis=-1)
    return {
        "fixed_heads": list(encoder.fixed_heads),
        "nearest": [[FIXED_PATTERNS[index] for index in heads] for heads in nearest_LH],
        "overlap": overlap_LHP.max(axis=-1).tolist(),
        "mean": dict(zip(FIXED_PATTERNS, overlap_LHP.mean(axis=(0, 1)).tolist(), strict=True)),
        "uniform": dict(zip(FIXED_PATTERNS, uniform_P.tolist(), strict=True)),
        "above_half": float((overlap_LHP.max(axis=-1) > 0.5).mean()),
    }


def _figures(material: Material, overlaps: Mapping[str, np.ndarray], uniform_P: np.ndarray) -> list[Figure]:
    best = {label: overlap_LHP.max(axis=-1) for label, overlap_LHP in overlaps.items()}
    above = "; ".join(f"{label}: {(values > 0.5).mean():.0%}" for label, values in best.items())
    draw_best = functools.partial(drawing.matrices, best, "overlap with the nearest pattern", 0.0, 1.0)
    means = {
        label: dict(zip(FIXED_PATTERNS, overlap_LHP.mean(axis=(0, 1)), strict=True))
        for label, overlap_LHP in overlaps.items()
    } | {"equal attention": dict(zip(FIXED_PATTERNS, uniform_P, strict=True))}
    slug = "".join(c if c.isascii() and c.isalnum() else "-" for c in material.name.lower()).strip("-") or "texts"
    return [
        Figure(
            f"nearest-{slug}",
            f"The share of its attention on {material.name} that each head has in common with the nearest of seven "
            "fixed patterns (current, previous and next token, context to the left and right, start and end; Raganato "
            "et al., 2020): 1 is the pattern itself, 0 has nothing in common. Heads that are fixed have 1. Share of "
            f"heads above one half: {above}.",
            f"Matrices of layers and heads. Share of heads with more than half in common with a pattern: {above}.",
            draw_best,
        ),
        Figure(
            f"patterns-{slug}",
            f"The mean overlap of all heads with each pattern on {material.name}, beside that of equal attention to "
            "all tokens of an example. A pattern is used where heads are above equal attention (patterns of Raganato "
            f"et al., 2020). The highest is {_highest(means)}.",
            f"Bars of seven patterns. The highest is {_highest(means)}.",
            functools.partial(drawing.bars, means, "mean overlap"),
        ),
    ]


def _highest(means: Mapping[str, Mapping[str, float]]) -> str:
    value, pattern, label = max(
        (value, pattern, label)
        for label, patterns in means.items()
        for pattern, value in patterns.items()
        if label != "equal attention"
    )
    return f"{value:.2f} of {label} with `{pattern}`"


def _text(numbers: Mapping[str, Mapping[str, dict]]) -> str:
    sentences = []
    for label, materials in numbers.items():
        for material, values in materials.items():
            nearest = max(values["mean"], key=lambda name: values["mean"][name] - values["uniform"][name])
            sentences.append(
                f"{label} on {material}: {values['above_half']:.0%} of the heads have more than half of their "
                f"attention in common with a fixed pattern. Above equal attention, `{nearest}` is used most."
            )
            if values["fixed_heads"]:
                sentences.append(f"Of its heads, {len(values['fixed_heads'])} a layer are fixed.")
    return " ".join(sentences)
