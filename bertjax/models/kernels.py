"""Attention paths that never hold [B, H, T, T], and where each can serve.

None has dropout inside. What the plain path (`attention.attend`) computes, these compute to rounding.
"""

import jax
import jax.numpy as jnp

from bertjax.models.visibility import Visibility

PLAIN, SPLASH, CUDNN = PATHS = ("plain", "splash", "cudnn")

# The name under which a checkpoint policy finds what a kernel leaves for its backward pass.
KERNEL = "kernel"

# Below, the plain path is as fast: predicted for v5e, the two are level at 128 tokens.
SHORTEST_SPLASH = 256
# Lengths come in tiles of 128 lanes; a block of queries or keys is as long as the row, up to this.
_LANES, _LONGEST_BLOCK = 128, 512


def path_at(path: str, seq_len: int) -> str:
    """The path that rows of a length take where `path` is wanted: splash leaves short and untiled rows to plain."""
    if path == SPLASH and (seq_len < SHORTEST_SPLASH or seq_len % _LANES):
        return PLAIN
    return path


def attend_by_splash(
    query_BTHD: jax.Array, key_BTHD: jax.Array, value_BTHD: jax.Array, visibility: Visibility, interpret: bool = False
) -> jax.Array:
    """Splash attention (JAX's Pallas kernel for TPU v4 and later, a blockwise softmax as in Dao et al., 2022,
    arXiv 2205.14135), examples kept apart by segment ids.

    Args:
      query_BTHD, key_BTHD, value_BTHD: local to a device, since no partitioner takes a kernel apart.
      visibility: examples alone.
      interpret: run the kernel's program without a TPU, for tests.

    Returns:
      The attended values, [B, T, H, D / H].

    Raises:
      ValueError: the visibility has a window or ranks.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _check(visibility, SPLASH)
    _, seq_len, heads, width = query_BTHD.shape
    block = _LONGEST_BLOCK if seq_len % _LONGEST_BLOCK == 0 else _LANES if seq_len > _LONGEST_BLOCK else seq_len
    # A head narrower than a tile of lanes is padded to it unless the sequence lies along the lanes.
    layout = splash.QKVLayout.HEAD_DIM_MINOR if width % _LANES == 0 else splash.QKVLayout.SEQ_MINOR
    blocks = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, use_fused_bwd_kernel=True,
        q_layout=layout, k_layout=layout, v_layout=layout,
    )  # fmt: skip
    everything = masks.MultiHeadMask([masks.FullMask((seq_len, seq_len))] * heads)
    kernel = splash.make_splash_mha_single_device(
        everything, block_sizes=blocks, residual_checkpoint_name=KERNEL, interpret=interpret
    )

    def attend(query_HTD, key_HTD, value_HTD, examples_T):
        return kernel(query_HTD, key_HTD, value_HTD, segment_ids=splash.SegmentIds(examples_T, examples_T))

    per_head = (jnp.swapaxes(x, 1, 2) for x in (query_BTHD * width**-0.5, key_BTHD, value_BTHD))
    return jnp.swapaxes(jax.vmap(attend)(*per_head, visibility.examples_BT), 1, 2)


def attend_by_cudnn(
    query_BTHD: jax.Array,
    key_BTHD: jax.Array,
    value_BTHD: jax.Array,
    visibility: Visibility,
    implementation: str = "cudnn",
) -> jax.Array:
    """cuDNN's fused attention through JAX; it honors packing only by a full mask, [B, 1, T, T].

    Args:
      query_BTHD, key_BTHD, value_BTHD: bfloat16 or float16.
      visibility: of any kind.
      implementation: `xla` computes the same call anywhere, for tests.

    Returns:
      The attended values, [B, T, H, D / H].
    """
    mask_B1TT = visibility.mask_BQT()[:, None]
    return jax.nn.dot_product_attention(query_BTHD, key_BTHD, value_BTHD, mask=mask_B1TT, implementation=implementation)


def _check(visibility: Visibility, path: str) -> None:
    for what in ("window", "rank_BT"):
        if getattr(visibility, what) is not None:
            raise ValueError(f"attention path {path} cannot express Visibility.{what}; use the plain path")
