"""Parts `patterns` and `fixed`: attention maps in five classes, and beside fixed patterns.

Five classes (Kovaleva et al., 2019, arXiv 1908.08593): the paper labels maps by eye and trains a classifier on the
labels (section 4.1). Here, rules on three features decide. The features describe a map A of an example with n tokens. A
cell is near if |i - j| <= `NEAR`. c_j is the mean over the cells in column j that are not near.

- vertical: sum_j max(0, c_j - `COLUMN` / n), attention to columns that most rows share, beyond a flat map.
- diagonal: mean_i sum_(j near i) max(0, A_ij - c_j), attention to a token and its neighbors, beyond their columns.
- block: sum_j n_s(j) / n (own_j - other_j) over ordinary tokens and cells that are not near. own_j averages column j
  over the rows in the token's own segment s(j), other_j over the rows in the other segment. The feature is 1 if each
  row spreads its attention over its own segment.

Fixed patterns (Raganato et al., 2020): the similarity between the attention of each head and each pattern.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.page import caption
from bertjax.analysis.part import Case, Figure, Part, by_material, listed, slug_of
from bertjax.analysis.reduce import Function, Progress, reduce
from bertjax.analysis.subject import Subject, captured, members
from bertjax.models.config import EncoderConfig
from bertjax.models.fixed import FIXED_PATTERNS, fixed_maps
from bertjax.models.visibility import Visibility
from bertjax.objectives.base import Arrays
from bertjax.objectives.losses import Sums

CLASSES = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
FEATURES = ("vertical", "diagonal", "block")
# Thresholds and rule order were chosen on half of the maps labeled by eye (docs/results/attention_patterns.md). A flat
# map has 1 / n in each column.
NEAR, COLUMN = 2, 1.5
VERTICAL, DIAGONAL, BLOCK = 0.15, 0.25, 0.3


def features(attention_BHTT: jax.Array, batch: dict[str, jax.Array], is_special_BT: jax.Array) -> jax.Array:
    """Device: return the features per head and example, float32 [3, B, H, N], in the order of `FEATURES`.

    Args:
      attention_BHTT: attention probabilities of one layer.
      batch: the core batch.
      is_special_BT: bool, tokens without text.
    """
    examples_BT, segments_BT = batch["examples_BT"], batch["segments_BT"]
    # Examples share rows. One-hot membership turns sums over an example into matrix products.
    member_BTN = jnp.moveaxis(members(examples_BT, batch["example_ids_BN"].shape[1]), 1, 2)
    n_BN = member_BTN.sum(axis=1)
    n_BT = jnp.maximum(jnp.einsum("btn,bn->bt", member_BTN, n_BN), 1.0)
    columns = jnp.arange(examples_BT.shape[1])
    # Near cells are left out of the columns, or a strong diagonal would count as vertical too.
    near_TT = jnp.abs(columns[:, None] - columns) <= NEAR
    pair_BTT = (examples_BT[:, :, None] == examples_BT[:, None]) & (examples_BT > 0)[:, None]
    is_own_BTT = segments_BT[:, :, None] == segments_BT[:, None]

    def column_means(cells_BTT: jax.Array) -> jax.Array:
        cells_BTT = (cells_BTT & pair_BTT).astype(jnp.float32)
        total_BHT = jnp.einsum("bhij,bij->bhj", attention_BHTT, cells_BTT)
        return total_BHT / jnp.maximum(cells_BTT.sum(axis=1), 1.0)[:, None]

    def of_examples(values_BHT: jax.Array) -> jax.Array:
        return jnp.einsum("bht,btn->bhn", values_BHT, member_BTN)

    column_BHT = column_means(~near_TT)
    vertical = of_examples(jnp.maximum(column_BHT - (COLUMN / n_BT)[:, None], 0.0))
    beyond_BHTT = jnp.maximum(attention_BHTT - column_BHT[:, :, None], 0.0)
    near_BTT = (near_TT & pair_BTT).astype(jnp.float32)
    neighbors_BHT = jnp.einsum("bhij,bij->bhi", beyond_BHTT, near_BTT)
    diagonal = of_examples(neighbors_BHT / n_BT[:, None])
    # Share of the example in the token's own segment; 1 means that there is no other segment.
    own_BT = (is_own_BTT & pair_BTT).sum(axis=1) / n_BT
    has_other_BT = own_BT < 1.0
    difference_BHT = column_means(~near_TT & is_own_BTT) - column_means(~near_TT & ~is_own_BTT)
    counted_BT = jnp.where(has_other_BT & ~is_special_BT, own_BT, 0.0)
    block = of_examples(difference_BHT * counted_BT[:, None])
    return jnp.stack([vertical, diagonal, block])


def classify(features: jax.Array) -> jax.Array:
    """Return the index in `CLASSES` for maps with these features [3, ...]; int32 [...].

    A map with a clear block and no clear diagonal is block. Otherwise it is vertical, diagonal or both, depending on
    which features are clear, and heterogeneous if neither is.
    """
    vertical, diagonal, block = features
    is_vertical, is_diagonal, is_block = vertical >= VERTICAL, diagonal >= DIAGONAL, block >= BLOCK
    heterogeneous = jnp.full(vertical.shape, CLASSES.index("heterogeneous"), jnp.int32)
    # `select` takes the first rule that holds, so the order of the rules matters.
    return jnp.select(
        [is_block & ~is_diagonal, is_vertical & is_diagonal, is_vertical, is_diagonal],
        [CLASSES.index(name) for name in ("block", "vertical+diagonal", "vertical", "diagonal")],
        heterogeneous,
    )


class Patterns(Part):
    """Sorts each example's maps into five classes, and averages over examples.

    Arrays: `<model>/<material>/shares` [5, L, H] in the order of `CLASSES`, and mean `features` [3, L, H].
    """

    name = "patterns"
    title = "Self-attention patterns"
    needs_attention = True

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        sums = reduce(subject, material, shares_of_maps(subject.encoder, subject.vocabulary.special_ids), progress)
        shares_5LH = sums["shares"]
        numbers = {
            "examples": len(material.encoded(subject)),
            "shares": dict(zip(CLASSES, shares_5LH.mean(axis=(1, 2)).tolist())),
            "by_layer": {name: share_LH.mean(axis=1).tolist() for name, share_LH in zip(CLASSES, shares_5LH)},
            "features": dict(zip(FEATURES, sums["features"].mean(axis=(1, 2)).tolist())),
        }
        return numbers, sums

    def figures(self, cases: Sequence[Case]) -> Iterator[Figure]:
        by_layer = {
            case.title: {name: dict(enumerate(row, 1)) for name, row in case.numbers["by_layer"].items()}
            for case in cases
        }
        shares = "; ".join(f"{case.title}: {listed(case.numbers['shares'], '.0%')}" for case in cases)
        yield self.figure("shares", drawing.bars(by_layer, "share of maps", "layer", stacked=True), shares=shares)
        for number, case in enumerate(cases, 1):
            shares_5LH = case.arrays["shares"]
            # Heads whose class hardly depends on the example: a fixed behavior rather than a reaction to the text.
            stable = (shares_5LH.max(axis=0) >= 0.9).mean()
            chart = drawing.matrices(dict(zip(CLASSES, shares_5LH)), "share of examples", (0.0, 1.0))
            yield self.figure("heads", chart, number, title=case.title, stable=stable)

    def sentence(self, case: Case) -> str:
        shares = case.numbers["shares"]
        most = max(shares, key=shares.get)
        return f"most maps are {most} ({shares[most]:.0%})."


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
        above = case.numbers["above_half"]
        text = caption("fixed/case", above=above, nearest=nearest, mean=mean[nearest])[0]
        return f"{text} Of its heads, {len(fixed)} a layer are fixed." if fixed else text


def likeness(overlap_LHP: np.ndarray, uniform_P: np.ndarray) -> np.ndarray:
    """Return the overlap rescaled so that equal attention is 0 and the pattern itself is 1.

    It is negative for a head that avoids the tokens of a pattern.
    """
    # In short sentences equal attention overlaps with any pattern, so raw overlaps are not comparable across lengths.
    return (overlap_LHP - uniform_P) / (1 - uniform_P)
