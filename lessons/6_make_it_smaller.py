# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 6: make it smaller
#
# A trained model can often lose most of its bytes and keep most of its skill. You round its weights to 8 bits and to
# fewer, cut heads out of it, and draw what each saving costs. There are two exercises.

# %%
import os

if os.path.isdir("bertjax/lessons"):  # Colab and Kaggle: the repository is the folder `bertjax` beside this notebook
    os.chdir("bertjax/lessons")
    assert os.system("pip install -q ..") == 0, "bertjax was not installed: run !pip install .. and read why"

# %%
import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import lesson
import matplotlib.pyplot as plt
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.cli import compress
from bertjax.config.opening import SavedModel
from bertjax.models.encoder import Encoder

# %% [markdown]
# The model is the one of lesson 4. If you have not trained it yet, this cell does, in a few minutes. Its skill is the
# loss on masked tokens of documents that it never trained on.

# %%
name = lesson.trained()
export = SavedModel(name).export
tokens_BT = jnp.array(lesson.heldout_rows(lesson.size(400, 20)))


def loss_of(params, config=export.encoder, head_mask_LH=None):
    """Return the loss of parameters {"encoder", "heads"}."""
    mask_LH = jnp.ones((config.layers, config.heads)) if head_mask_LH is None else head_mask_LH
    return float(lesson.masked_loss(Encoder(config), params, tokens_BT, export.tokenizer.mask_id, mask_LH))


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


whole = loss_of(export.params)
print(f"{count(export.params):,} numbers, {4 * count(export.params) / 1e6:.1f} MB in float32, loss {whole:.3f}")

# %% [markdown]
# ## Fewer bits
#
# A float32 has 32 bits. Store an integer from -127 to 127 in 8 bits instead, and one float32 *scale* that says how much
# an integer is worth: $w \approx q \cdot \mathrm{scale}$. One scale for a whole matrix is not enough: its largest
# number decides about all others. A kernel is applied as `x @ kernel`, so each *column* makes one channel of the
# result. Give each column its own scale.
#
# ### Exercise 1: round a kernel


# %%
def quantize(kernel_DF, bits=8):
    """Return (integers, int8 [D, F]; scales, float32 [1, F]) so that integers * scales is near the kernel.

    The largest magnitude of a column becomes `2 ** (bits - 1) - 1`, which is 127 for 8 bits. All others are rounded to
    the nearest integer. A column of zeros stays zeros; its scale is not nan.

    Args:
      kernel_DF: float32 [D, F].
      bits: from 2 to 8.
    """
    raise NotImplementedError


# %%
lesson.grade(quantize)

# %% [markdown]
# Now round the whole model. Kernels are rounded by column. The table of word embeddings has a row for each token, so it
# is rounded by row. Everything else is small and stays as it is. Layers are stacked in one array, [L, D, F].


# %%
def rounded(params, bits):
    """Return the parameters after rounding, and the bytes that they take on a disk."""
    flat, stored_bits = flatten_dict(params, sep="/"), 0
    for path, leaf in flat.items():
        if path.endswith("/word"):
            integers, scales = quantize(np.asarray(leaf).T, bits)
            flat[path] = (integers * scales).T
        elif path.endswith("/kernel"):
            pairs = [quantize(matrix, bits) for matrix in np.asarray(leaf).reshape(-1, *leaf.shape[-2:])]
            flat[path] = np.stack([integers * scales for integers, scales in pairs]).reshape(leaf.shape)
            scales = np.stack([scales for _, scales in pairs])
        else:
            stored_bits += 32 * leaf.size
            continue
        stored_bits += bits * leaf.size + 32 * scales.size
    return unflatten_dict(flat, sep="/"), stored_bits / 8


points = [("float32", 4 * count(export.params), whole)]
for bits in (8, 4, 3, 2):
    params, size = rounded(export.params, bits)
    points.append((f"{bits} bits", size, loss_of(params)))
    print(f"{bits} bits: {size / points[0][1]:.0%} of the bytes, loss {points[-1][2] - whole:+.3f}")

# %% [markdown]
# ## Fewer heads
#
# A mask switches a head off, but its numbers are still there and are still computed. To save anything, cut it out: its
# columns of the query, key and value, and what reads its result.
#
# ### Exercise 2: cut heads out of a layer


# %%
def cut_heads(attention, kept, head_width):
    """Return the parameters of attention with some of its heads only.

    Args:
      attention: {"query", "key", "value", "output"}, each {"kernel": [D, D], "bias": [D]}, applied as
        `x @ kernel + bias`. Head h makes the channels from `h * head_width` to `(h + 1) * head_width - 1` of the
        queries, keys and values. `output` reads the results of all heads, side by side.
      kept: list of heads to keep, such as [0, 3].
      head_width: channels of a head.

    Returns:
      The same names. With fewer heads, some arrays are smaller; the layer still returns D channels.
    """
    raise NotImplementedError


# %%
lesson.grade(cut_heads)

# %% [markdown]
# Which heads? The derivative of the loss with respect to the mask says how much each head matters, for all heads in one
# backward pass (Michel et al., 2019). This is the absolute derivative, averaged over batches of 20 rows. A derivative
# describes a small change, and a cut is a large one. Does it rank the heads as lesson 5 did, which switched each off?

# %%
L, H = export.encoder.layers, export.encoder.heads
gradient = jax.jit(jax.grad(functools.partial(lesson.masked_loss, Encoder(export.encoder)), argnums=3))
batches = [tokens_BT[first : first + 20] for first in range(0, len(tokens_BT), 20)]
importance_LH = np.mean(
    [np.abs(gradient(export.params, batch, export.tokenizer.mask_id, jnp.ones((L, H)))) for batch in batches], axis=0
)
print(importance_LH.round(3))

# %%
head_width = export.encoder.width // H
for heads in range(H - 1, 0, -1):
    kept_LH = np.sort(np.argsort(-importance_LH, axis=1)[:, :heads], axis=1)
    stacked = export.params["encoder"]["layers"]["attention"]
    of_layers = [jax.tree.map(lambda leaf, n=n: leaf[n], stacked) for n in range(L)]
    layers = [cut_heads(of_layers[n], list(kept_LH[n]), head_width) for n in range(L)]
    attention = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
    encoder = export.params["encoder"] | {"layers": export.params["encoder"]["layers"] | {"attention": attention}}
    params = export.params | {"encoder": encoder}
    config = dataclasses.replace(export.encoder, heads=heads, head_width=head_width)
    mask_LH = jnp.zeros((L, H)).at[jnp.arange(L)[:, None], kept_LH].set(1.0)
    cut, masked = loss_of(params, config), loss_of(export.params, head_mask_LH=mask_LH)
    points.append((f"{heads} of {H} heads", 4 * count(params), cut))
    share = points[-1][1] / points[0][1]
    print(f"{heads} heads: {share:.0%} of the bytes, loss {cut - whole:+.3f} (masked {masked - whole:+.3f})")

# %% [markdown]
# ## Your picture: what each saving costs

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
for label, size, loss in points:
    # Cut models are close to the whole one, so their labels are on the left.
    color, shift, side = ("tab:orange", (-6, -3), "right") if "heads" in label else ("tab:blue", (4, 4), "left")
    axes.scatter(size / 1e6, loss, color=color)
    axes.annotate(label, (size / 1e6, loss), textcoords="offset points", xytext=shift, ha=side, fontsize=8)
axes.set(xlabel="megabytes", ylabel="loss on masked tokens [nats]", xlim=(0, 1.15 * points[0][1] / 1e6))
lesson.picture(figure, "6_sizes")

# %% [markdown]
# Most numbers of a small model are in the table of words, so heads are a small saving here. In BERT base, attention has
# a quarter of all numbers. Cut models recover a part of the loss when they train on; these did not.
#
# ## The command
#
# bertjax does the same in one call, and `bertjax.load` opens the result:

# %%
target = lesson.RUNS / "int8"
shutil.rmtree(target, ignore_errors=True)
summary = compress.run(name, target, quantized=True)
before, after = summary.bytes
print(f"{before / 1e6:.2f} MB become {after / 1e6:.2f} MB: {after / before:.1%}")
print(f"loss {loss_of(SavedModel(target).export.params) - whole:+.4f}")

# %% [markdown]
# ## More
#
# - [Compress](../docs/guides/compress.md): layers, neurons, vocabularies, and int8 that is also faster.
# - [Compression](../docs/results/compression.md): what small models keep, measured.
# - [The tour of the code](../docs/start.md) follows one sentence through bertjax.
