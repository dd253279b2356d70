"""Effective attention: the component of attention weights that affects a head's output.

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

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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


def members(examples_BT: jax.Array, slots: int) -> jax.Array:
    """Return a 0/1 mask of each example's tokens; float32 [B, N, T]."""
    return (examples_BT[:, None] == jnp.arange(1, slots + 1)[:, None]).astype(jnp.float32)


def space(values_BTHR: jax.Array, output_HRD: jax.Array, member_BNT: jax.Array) -> Space:
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


def effective(attention_BHTT: jax.Array, space: Space) -> tuple[jax.Array, jax.Array]:
    """Return effective and constrained effective attention, [B, H, T, T] each; rows at padding are 0.

    Args:
      attention_BHTT: attention weights; no token attends to another example.
      space: result of `space`.
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
