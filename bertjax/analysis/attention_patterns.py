"""Rules that sort attention maps into five classes (Kovaleva et al., 2019, section 4.1, arXiv 1908.08593).

The paper labels maps by eye and trains a classifier on the labels. Here, rules on three features decide. The features
describe a map A of an example with n tokens. A cell is near if |i - j| <= `NEAR`. c_j is the mean over the cells in
column j that are not near.

- vertical: sum_j max(0, c_j - `COLUMN` / n), attention to columns that most rows share, beyond a flat map.
- diagonal: mean_i sum_(j near i) max(0, A_ij - c_j), attention to a token and its neighbors, beyond their columns.
- block: sum_j n_s(j) / n (own_j - other_j) over ordinary tokens and cells that are not near. own_j averages column j
  over the rows in the token's own segment s(j), other_j over the rows in the other segment. The feature is 1 if each
  row spreads its attention over its own segment.
"""

import jax
import jax.numpy as jnp

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
    slots = batch["example_ids_BN"].shape[1]
    # Examples share rows. One-hot membership turns sums over an example into matrix products.
    member_BTN = (examples_BT[..., None] == jnp.arange(1, slots + 1)).astype(jnp.float32)
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
