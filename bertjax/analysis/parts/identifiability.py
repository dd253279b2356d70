"""Part `identifiability`: how much of each head's attention affects its output (Brunner et al., 2020).

Effective attention: the component of attention weights that affects a head's output.

A head outputs A T with T = E W^V H. E are the states that the layer reads, W^V is the head's value projection, and H
its block of the output projection (Brunner et al., 2020, section 3.1, arXiv 1908.04211). Vectors x with x T = 0 form
the left null space of T, and adding them to rows of A changes nothing. If a sentence has more tokens than the head is
wide, different weights therefore give the same output. Effective attention is A minus its projection on that space
(section 3.2).

- **Biases.** The paper's formula has none. Here V = E W^V + b^V are the values as the layer multiplies them (the tap
  `values`), so A T is what the head really adds, and T = V H. The output projection's bias is left out: all heads share
  it, and attention does not change it. Rows of A sum to 1, so b^V adds the same vector for every A.
- **Probability constraint.** Two probability vectors differ by a vector that sums to 0, so only the left null space of
  [T, 1] leaves both the output and the sum unchanged. It has one dimension less, unless the vector 1 is a combination
  of T's columns, and b^V does not change it. "Constrained" is A minus its projection on this space. Its rows sum to 1,
  as in A. Both kinds of effective attention may have negative weights.
- **Short sentences.** If T has as many independent rows as the sentence has tokens, the space is {0} and effective
  attention is A. This is the usual case for sentences with at most as many tokens as the head is wide.
- **Rank.** A singular value of T counts if it is above max(tokens, D) * eps times the largest one. This is the rule of
  `numpy.linalg.matrix_rank` with float32 eps, since the layer computes in float32. On rows of 64 to 512 tokens,
  MiniLM's smallest singular value is 0.02 of the largest, 400 times this limit, and float32 differs from float64 by
  less than 4e-7 in weights and 2e-7 in correlations. So the computation stays on the device.
- **Windows.** The definition also holds for a layer with local attention (`model.block.window`). Its effective
  attention may have weights outside the window.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import LENGTH, Corpus, Encoded, Material
from bertjax.analysis.page import caption
from bertjax.analysis.part import Case, Figure, Part, Result, listed
from bertjax.analysis.parts.targets import kinds_of
from bertjax.analysis.reduce import Progress, hide, reduce
from bertjax.analysis.subject import Subject, captured, members
from bertjax.data.examples import Ragged
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays
from bertjax.objectives.losses import Sums

_EPS = float(np.finfo(np.float32).eps)
_HIGHEST = jax.lax.Precision.HIGHEST


class Space(NamedTuple):
    """The weights that affect head outputs: T's column space for each example.

    Attributes:
      basis_BNHTR: orthonormal columns that span it, 0 at tokens in other examples; columns beyond the rank are 0.
      rank_BNH: int32, T's rank; 0 for an empty slot.
      ones_BNHT: the vector 1 (on the example's tokens) minus its projection on the space, normalized; 0 if nothing
        remains. Together with the basis it spans the columns of [T, 1].
    """

    basis_BNHTR: jax.Array
    rank_BNH: jax.Array
    ones_BNHT: jax.Array

    @property
    def constrained_rank_BNH(self) -> jax.Array:
        """The rank of [T, 1]; int32."""
        return self.rank_BNH + jnp.any(self.ones_BNHT != 0.0, axis=-1)


def effective_space(values_BTHR: jax.Array, output_HRD: jax.Array, member_BNT: jax.Array) -> Space:
    """Return the space of weights that affect the heads in one layer.

    T = V H has the same singular values and column space as V R^T, where H^T = Q R is a QR factorization: Q has
    orthonormal columns. V R^T has only R = D / H columns, not D.

    Args:
      values_BTHR: head values, bias included; R = D / H.
      output_HRD: each head's block of the output projection kernel.
      member_BNT: result of `members`.
    """
    factor_HRR = jnp.linalg.qr(jnp.swapaxes(output_HRD, -1, -2))[1]
    transformed_BHTR = jnp.einsum("bthr,hsr->bhts", values_BTHR, factor_HRR, precision=_HIGHEST)
    # Rows of other examples become 0, which adds no singular value, so one batched SVD serves packed rows.
    of_examples_BNHTR = transformed_BHTR[:, None] * member_BNT[:, :, None, :, None]
    basis_BNHTR, singular_BNHR, _ = jnp.linalg.svd(of_examples_BNHTR, full_matrices=False)
    tokens_BN1 = member_BNT.sum(axis=-1)[..., None]
    limit_BN1 = jnp.maximum(tokens_BN1, output_HRD.shape[-1]) * _EPS
    counts_BNHR = singular_BNHR > limit_BN1[..., None] * singular_BNHR[..., :1]
    # Columns beyond the rank are arbitrary directions; they must not enter the projection.
    basis_BNHTR = basis_BNHTR * counts_BNHR[..., None, :] * member_BNT[:, :, None, :, None]
    rank_BNH = counts_BNHR.sum(axis=-1).astype(jnp.int32)

    inside_BNHR = jnp.einsum("bnhtr,bnt->bnhr", basis_BNHTR, member_BNT, precision=_HIGHEST)
    outside_BNHT = member_BNT[:, :, None] - jnp.einsum("bnhtr,bnhr->bnht", basis_BNHTR, inside_BNHR, precision=_HIGHEST)
    length_BNH1 = jnp.linalg.norm(outside_BNHT, axis=-1, keepdims=True)
    # A length of rounding size means that 1 is in the space: normalizing it would amplify noise.
    is_outside_BNH1 = length_BNH1 > (limit_BN1 * jnp.sqrt(tokens_BN1))[..., None]
    return Space(basis_BNHTR, rank_BNH, jnp.where(is_outside_BNH1, outside_BNHT / length_BNH1, 0.0))


def effective_attention(attention_BHTT: jax.Array, space: Space) -> tuple[jax.Array, jax.Array]:
    """Return effective and constrained effective attention, [B, H, T, T] each; rows at padding are 0.

    Args:
      attention_BHTT: attention weights; no token attends to another example.
      space: result of `effective_space`.
    """

    def projected(basis_BNHTR: jax.Array) -> jax.Array:
        inside = jnp.einsum("bhqt,bnhtr->bnhqr", attention_BHTT, basis_BNHTR, precision=_HIGHEST)
        return jnp.einsum("bnhqr,bnhtr->bhqt", inside, basis_BNHTR, precision=_HIGHEST)

    # Projecting on the column space is the same as removing the projection on the left null space.
    effective_BHTT = projected(space.basis_BNHTR)
    return effective_BHTT, effective_BHTT + projected(space.ones_BNHT[..., None])


def correlations(first_BHTT: jax.Array, second_BHTT: jax.Array, member_BNT: jax.Array) -> jax.Array:
    """Return Pearson's correlation over the cells of each example's map; NaN if a map is constant.

    Cells at padding and across examples are left out.
    """
    same_BTT = jnp.einsum("bnq,bnt->bqt", member_BNT, member_BNT)
    cells_BN = member_BNT.sum(axis=-1) ** 2

    def per_example(cells_BHTT: jax.Array) -> jax.Array:
        return jnp.einsum("bhq,bnq->bnh", cells_BHTT.sum(axis=-1), member_BNT, precision=_HIGHEST)

    def centered(map_BHTT: jax.Array) -> jax.Array:
        map_BHTT = map_BHTT * same_BTT[:, None]
        mean_BNH = per_example(map_BHTT) / jnp.maximum(cells_BN, 1.0)[..., None]
        mean_BHT = jnp.einsum("bnh,bnq->bhq", mean_BNH, member_BNT, precision=_HIGHEST)
        return (map_BHTT - mean_BHT[..., None]) * same_BTT[:, None]

    first_BHTT, second_BHTT = centered(first_BHTT), centered(second_BHTT)
    variances_BNH = per_example(first_BHTT**2) * per_example(second_BHTT**2)
    return per_example(first_BHTT * second_BHTT) / jnp.sqrt(variances_BNH)


# Maximum lengths of corpus examples. Each length gets the same number of tokens.
LENGTHS = (64, 128, 256, 512)
# Edges of length bins: an example falls between one edge (exclusive) and the next (inclusive).
EDGES = (0, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# Token kinds, as in figure 2 of Clark et al. (2019) and figure 1 of Brunner et al. (2020).
KINDS = ("[CLS]", "[SEP]", "period or comma", "other")
MAPS = ("raw", "effective", "constrained")
is_period_or_comma = (".", ",").__contains__
# Raw, effective and constrained maps of one layer are in memory beside the raw maps of all layers.
_SHARE = 0.5


class Identifiability(Part):
    """Rank of T = E W^V H, effective attention, and its correlation with raw attention, per layer, head and length."""

    name = "identifiability"
    title = "How much of attention has an effect"
    needs_attention = True
    needs_both_directions = "effective attention is defined"
    other_axes = ("tokens", "attention", "correlation", "constrained", "rank", "null_dimension")

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the results; the guide describes the arrays."""
        return super().run(subjects, [Lengths.of(material) for material in materials], progress)

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        statistics = Statistics(subject.encoder, kinds_of(subject.tokenizer, is_period_or_comma))
        arrays = reduce(subject, material, statistics, progress, share=_SHARE)
        used = np.isfinite(arrays["tokens"])
        by_length = {name: values[used].mean(axis=(1, 2)) for name, values in arrays.items() if values.ndim == 3}
        attention = [dict(zip(KINDS, row, strict=True)) for row in arrays["attention"].mean(axis=(2, 3))]
        numbers = {"head_width": subject.encoder.head_channels, "tokens": arrays["tokens"][used]}
        return numbers | by_length | {"attention": dict(zip(MAPS, attention, strict=True))}, arrays

    def figures(self, cases: Sequence[Case]) -> Iterator[Figure]:
        """Yield figure 1a of the paper, also per layer and head, and figures 1b and 1c for each model and material.

        Without a sentence that has more tokens than a head is wide, there is nothing to draw: all correlations are 1.
        """
        if all(map(_is_too_short, cases)):
            return
        lines, bands, longest = {}, {}, {}
        for case in cases:
            tokens_K = case.numbers["tokens"]
            correlation_KLH = case.arrays["correlation"][np.isfinite(case.arrays["tokens"])]
            lines[case.title] = tokens_K, correlation_KLH.mean(axis=(1, 2))
            # The band spans the middle 80% of the heads.
            bands[case.title] = tuple(np.quantile(correlation_KLH, q, axis=(1, 2)) for q in (0.1, 0.9))
            longest[f"{case.title} ({tokens_K[-1]:.0f} tokens)"] = correlation_KLH[-1]
        chart = drawing.curves(lines, "tokens", "correlation with raw attention", bands)
        ends = listed({name: correlation_LH.mean() for name, correlation_LH in longest.items()}, ".2f")
        yield self.figure("length", chart, ends=ends)
        yield self.figure("heads", drawing.matrices(longest, "correlation with raw attention", (None, 1.0)))
        for number, case in enumerate(cases, 1):
            if not np.isfinite(case.arrays["attention"]).all():
                continue  # no sentence has more tokens than a head is wide
            to_sep = {name: case.numbers["attention"][name]["[SEP]"] for name in ("raw", "effective")}
            chart = drawing.Chart("Attention by layer.", functools.partial(_draw_kinds, case.arrays["attention"]))
            yield self.figure("kinds", chart, number, title=case.title, **to_sep)

    def sentence(self, case: Case) -> str:
        last = {name: values[-1] for name, values in case.numbers.items() if np.ndim(values)}
        text = caption("identifiability/case", **case.numbers | last)[0]
        if _is_too_short(case):
            text += " All sentences are too short for a difference: effective attention is raw attention."
        return text


def _is_too_short(case: Case) -> bool:
    return np.max(case.numbers["null_dimension"]) < 0.5


@dataclasses.dataclass(frozen=True)
class Lengths(Material):
    """A corpus at several example lengths, with the same total number of tokens as the plain corpus.

    Attributes:
      material: the corpus.
    """

    material: Material | None = None

    @classmethod
    def of(cls, material: Material) -> Material:
        """Return a corpus at several lengths; given texts and labeled files are returned unchanged."""
        if not isinstance(material, Corpus):
            return material
        return cls(material.name, material.examples, max(LENGTHS), material=material)

    def _texts_key(self, subject, objective):
        return self.material._texts_key(subject, objective)

    def _encode(self, subject, objective):
        most = self.longest(subject)
        lengths = [length for length in LENGTHS if length <= most] or [most]
        parts = []
        for length in lengths:
            # Longer examples are fewer, so that each length costs the same number of tokens.
            examples = max(1, self.examples * LENGTH // (len(lengths) * length))
            material = dataclasses.replace(self.material, examples=examples, length=length)
            parts.append(material.encoded(subject).ragged)
        joined = Ragged.join(parts)
        ragged = dataclasses.replace(joined, ids=np.arange(len(joined.ids)))
        return Encoded(ragged, [], np.arange(len(ragged.ids)), None, subject.vocabulary, most)


@dataclasses.dataclass(frozen=True)
class Statistics:
    """(params, batch) -> sums of all statistics over a batch; the guide describes their axes.

    Attributes:
      encoder: the architecture.
      kinds: result of `kinds_of`.
    """

    encoder: EncoderConfig
    kinds: bytes = dataclasses.field(repr=False)

    def __call__(self, params: dict, batch: Arrays) -> dict[str, Sums]:
        values = captured(self.encoder, params, batch, ("values", "attention"))
        member_BNT = members(batch["examples_BT"], batch["example_ids_BN"].shape[1])
        tokens_BN = member_BNT.sum(axis=-1)
        upper = jnp.array([*EDGES[1:], jnp.inf])
        bins_BNK = ((tokens_BN[..., None] > jnp.array(EDGES)) & (tokens_BN[..., None] <= upper)).astype(jnp.float32)
        kinds_BT = jnp.asarray(np.frombuffer(self.kinds, np.uint8))[batch["tokens_BT"]]
        kind_BTK = jax.nn.one_hot(kinds_BT, len(KINDS), dtype=jnp.float32)
        # Effective attention differs from raw attention only if a sentence has more tokens than the head is wide.
        is_long_BN = (tokens_BN > self.encoder.head_channels).astype(jnp.float32)
        queries_BT = jnp.einsum("bn,bnt->bt", is_long_BN, member_BNT)

        def of_layer(inputs: Arrays) -> tuple[dict[str, Sums], jax.Array]:
            space = effective_space(inputs["values"], inputs["outputs"], member_BNT)
            maps = inputs["attention"], *effective_attention(inputs["attention"], space)
            statistics = {
                "correlation": correlations(maps[0], maps[1], member_BNT),
                "constrained_correlation": correlations(maps[0], maps[2], member_BNT),
                "rank": space.rank_BNH,
                "null_dimension": tokens_BN[..., None] - space.rank_BNH,
                "constrained_null_dimension": tokens_BN[..., None] - space.constrained_rank_BNH,
            }
            attention_MKH = [
                jnp.einsum("bhqt,bq,btk->kh", each, queries_BT, kind_BTK, precision=jax.lax.Precision.HIGHEST)
                for each in maps
            ]
            return {name: _by_length(each, bins_BNK) for name, each in statistics.items()}, jnp.stack(attention_MKH)

        # One layer at a time: the SVDs and three maps of all layers would not fit in memory.
        by_length, attention_LMKH = jax.lax.map(of_layer, values | {"outputs": self._outputs(params)})
        return {
            "tokens": (jnp.einsum("bn,bnk->k", tokens_BN, bins_BNK), bins_BNK.sum(axis=(0, 1))),
            "attention": (jnp.moveaxis(attention_LMKH, 0, 2), queries_BT.sum()),
        } | {name: jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), sums) for name, sums in by_length.items()}

    def _outputs(self, params: dict) -> jax.Array:
        """Return the output projection kernel per layer and head, [L, H, R, D] with R = D / H."""
        config = self.encoder
        kernel = params["encoder"]["layers"]["attention"]["output"]["kernel"]
        kernel_LDD = jnp.repeat(kernel, config.layers // len(kernel), axis=0)  # groups of layers may share it
        return kernel_LDD.reshape(config.layers, config.heads, -1, config.layer_width)


def _by_length(values_BNH: jax.Array, bins_BNK: jax.Array) -> Sums:
    """Return sums and counts of the finite values, [lengths, H] each."""
    # The correlation of a constant map is NaN and must not spoil the mean.
    is_finite_BNH = jnp.isfinite(values_BNH)
    sums_KH = jnp.einsum("bnh,bnk->kh", jnp.where(is_finite_BNH, values_BNH, 0.0), bins_BNK)
    return sums_KH, jnp.einsum("bnh,bnk->kh", is_finite_BNH.astype(jnp.float32), bins_BNK)


def _draw_kinds(attention_MKLH: np.ndarray):
    figure, panels = drawing.panels(len(MAPS), 3.0, 2.6)
    layers = np.arange(1, attention_MKLH.shape[2] + 1)
    low, high = min(attention_MKLH.min(), 0.0) - 0.02, attention_MKLH.max() + 0.02
    for panel, name, attention_KLH in zip(panels, MAPS, attention_MKLH, strict=True):
        for kind, attention_LH, color, marker in zip(KINDS, attention_KLH, drawing.COLORS, "osD^"):
            panel.plot(layers, attention_LH.mean(axis=1), color=color, marker=marker, markersize=4, label=kind)
            x_LH = np.broadcast_to(layers[:, None], attention_LH.shape)
            panel.scatter(x_LH, attention_LH, s=6, color=color, alpha=0.5, linewidths=0)
        panel.set(title=name, xlabel="layer", ylabel="attention", ylim=(low, high))
        panel.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(KINDS))
    return figure
