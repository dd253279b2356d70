"""Similarity between each head's attention and fixed patterns (Raganato et al., 2020)."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.part import Case, Figure, Part, by_material, listed, slug_of
from bertjax.analysis.reduce import Progress, reduce
from bertjax.analysis.subject import Subject, captured
from bertjax.models.config import EncoderConfig
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
    needs_both_directions = "fixed patterns are defined"
    other_axes = ("uniform",)

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        """Return the overlaps; arrays are `likeness` and `overlap` [L, H, P], `uniform` [P]."""
        reduced = reduce(subject, material, Overlap(subject.encoder), progress)
        reduced["likeness"] = likeness_LHP = likeness(reduced["overlap"], reduced["uniform"])
        nearest_LH = likeness_LHP.argmax(axis=-1)
        numbers = {
            "fixed_heads": list(subject.encoder.block.fixed_heads),
            "nearest": [[FIXED_PATTERNS[index] for index in heads] for heads in nearest_LH],
            "likeness": likeness_LHP.max(axis=-1).tolist(),
            "mean": dict(zip(FIXED_PATTERNS, likeness_LHP.mean(axis=(0, 1)).tolist(), strict=True)),
            "above_half": float((likeness_LHP.max(axis=-1) > 0.5).mean()),
        }
        return numbers, reduced

    def figures(self, cases: Sequence[Case]) -> Iterator[Figure]:
        for material, of_models in by_material(cases):
            best = {label: case.arrays["likeness"].max(axis=-1) for label, case in of_models.items()}
            above = listed({label: case.numbers["above_half"] for label, case in of_models.items()}, ".0%")
            slug = slug_of(material) or "texts"
            chart = drawing.matrices(best, "likeness to the nearest pattern", (0.0, 1.0))
            yield self.figure("nearest", chart, slug, material=material, above=above)
            if len(of_models) <= MOST_MODELS:
                means = {label: case.numbers["mean"] for label, case in of_models.items()}
                value, pattern, label = max((row[name], name, label) for label, row in means.items() for name in row)
                chart = drawing.bars({"": means}, "mean likeness")
                of_highest = {"value": value, "pattern": pattern, "label": label}
                yield self.figure("patterns", chart, slug, material=material, **of_highest)

    def sentence(self, case: Case) -> str:
        mean, fixed = case.numbers["mean"], case.numbers["fixed_heads"]
        nearest = max(mean, key=mean.get)
        text = (
            f"{case.model} on {case.material}: {case.numbers['above_half']:.0%} of the heads have a likeness above one "
            f"half to a fixed pattern. The highest mean over heads is that of `{nearest}`, {mean[nearest]:.2f}."
        )
        return f"{text} Of its heads, {len(fixed)} a layer are fixed." if fixed else text


def likeness(overlap_LHP: np.ndarray, uniform_P: np.ndarray) -> np.ndarray:
    """Return the overlap rescaled so that equal attention is 0 and the pattern itself is 1.

    It is negative for a head that avoids the tokens of a pattern.
    """
    # In short sentences equal attention overlaps with any pattern, so raw overlaps are not comparable across lengths.
    return (overlap_LHP - uniform_P) / (1 - uniform_P)
