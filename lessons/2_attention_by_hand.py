# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 2: attention by hand
#
# Attention is the only place in BERT where tokens exchange information. Everything else treats each token alone. In
# this lesson you write it, compare it with bertjax, and then choose its weights by hand, so that each token looks at
# the token before it.
#
# You need NumPy and matrix products. JAX is used like NumPy here: `jnp` in place of `np`. There are two exercises.

# %%
import os

if os.path.isdir("bertjax/lessons"):  # Colab and Kaggle: the repository is the folder `bertjax` beside this notebook
    os.chdir("bertjax/lessons")
    assert os.system("pip install -q ..") == 0, "bertjax was not installed: run !pip install .. and read why"

# %%
import jax
import jax.numpy as jnp
import lesson
import matplotlib.pyplot as plt
import numpy as np

from bertjax import nano
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder

# %% [markdown]
# ## One head
#
# Each token has three vectors: a *query* (what it looks for), a *key* (what it offers to be found by) and a *value*
# (what it passes on). The dot product of a query and a key is a score. A softmax turns the scores of one query into
# weights that sum to 1, and the token receives the weighted mean of the values:
#
# $$\mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{D}}\right) V$$
#
# Why divide by the root of $D$, the length of the vectors? The dot product of two random vectors grows with $\sqrt D$.
# Look at what a softmax of large numbers does:

# %%
draw = np.random.default_rng(0)
for D in (4, 64, 1024):
    scores = draw.normal(size=(1000, 10, D)) @ draw.normal(size=(1000, D, 1))
    largest = [float(jax.nn.softmax(jnp.array(scores[..., 0]) / scale).max(axis=-1).mean()) for scale in (1, D**0.5)]
    print(f"D = {D:>4}: the largest of 10 weights is {largest[0]:.2f} without the division, {largest[1]:.2f} with it")

# %% [markdown]
# A weight near 1 leaves nothing for the other tokens, and its gradient is near 0: the head cannot learn any more.
#
# ### Exercise 1: one head
#
# Rows of a batch are *packed*: several short examples share a row, and a token must see its own example only. So the
# function also gets a table that says who sees whom.
#
# The letters at the end of a name are its shape: `queries_TD` has T tokens and D channels.


# %%
def one_head(queries_TD, keys_TD, values_TD, sees_TT):
    """Return what each token receives, [T, D], and the weights, [T, T]: row i has the weights of token i.

    Args:
      queries_TD, keys_TD, values_TD: float [T, D], the vectors of one head.
      sees_TT: bool [T, T]; `sees_TT[i, j]` is True if token i may look at token j. Each token sees at least itself.
    """
    raise NotImplementedError


# %%
lesson.grade(one_head)

# %% [markdown]
# ## Several heads
#
# One head gives one mean. BERT base has 12 heads in each layer, and each may look elsewhere. The width of the model is
# divided among them: the first D / H channels of the queries, keys and values belong to the first head, and so on. The
# results are put side by side again, and a last matrix mixes them.
#
# ### Exercise 2: attention as BERT has it


# %%
def self_attention(params, hidden_TD, sees_TT, heads):
    """Return the output of multi-head attention, [T, D].

    Args:
      params: {"query", "key", "value", "output"}, each {"kernel": [D, D], "bias": [D]}. A kernel is applied as
        `x @ kernel + bias`.
      hidden_TD: float [T, D], the states of the tokens.
      sees_TT: bool [T, T], as in `one_head`, which you may call.
      heads: number of heads; it divides D.
    """
    raise NotImplementedError


# %%
lesson.grade(self_attention)

# %% [markdown]
# ## Compare it with bertjax
#
# [nano.py](../bertjax/nano.py) is BERT on one page. Its `attention` does the same for a batch of rows. The package
# computes it again, in a form that runs on a TPU pod. All three should agree. Float32 has about seven digits.

# %%
config = EncoderConfig(vocab_size=100, layers=1, width=64, heads=4, feedforward=128, max_positions=12)
module = Encoder(config)
tokens_BT = jnp.array(draw.integers(0, 100, (1, 12)))
examples_BT = jnp.array([[1] * 5 + [2] * 7])  # two examples in one row, of 5 and 7 tokens
params = module.init(jax.random.key(0), tokens_BT, examples_BT=examples_BT)["params"]
_, state = module.apply({"params": params}, tokens_BT, examples_BT=examples_BT, mutable=["captured"])

first_layer = jax.tree.map(lambda leaf: leaf[0], params["layers"]["attention"])
hidden_TD = state["captured"]["hidden"][0, 0]  # the embeddings of the only row
sees_TT = examples_BT[0][:, None] == examples_BT[0][None, :]

mine_TD = self_attention(first_layer, hidden_TD, sees_TT, config.heads)
nano_TD = nano.attention(first_layer, hidden_TD[None], sees_TT[None], config.heads)[0]
context_TD = state["captured"]["context"][0, 0].reshape(12, 64)
package_TD = nano.dense(first_layer["output"], context_TD)
for name, other_TD in (("nano.py", nano_TD), ("the package", package_TD)):
    print(f"largest difference to {name}: {jnp.abs(mine_TD - other_TD).max():.1e}")

# %% [markdown]
# ## Your picture: a head made by hand
#
# Trained models have heads that look at the token before (Clark et al., 2019). Nothing in attention knows about order:
# positions must be in the vectors. Give each position a vector of sines and cosines, as Vaswani et al. (2017, section
# 3.5) do. To move by one position is then a rotation. So rotate the queries by one position backwards, and leave the
# keys as they are.

# %%
words = "The old king went into the dark forest and met a witch .".split()
T, speeds = len(words), 1 / 20 ** (np.arange(16) / 16)


def positions(first):
    """Return the vectors of T positions from `first` on, [T, 32]."""
    angles = (first + np.arange(T))[:, None] * speeds
    return jnp.array(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))


keys_TD, queries_TD, everything_TT = positions(0), positions(-1), jnp.ones((T, T), bool)
scales = [0, 1, 2, 4, 8, 16, 32]
maps = [one_head(scale * queries_TD, keys_TD, keys_TD, everything_TT)[1] for scale in scales]
shares = [float(jnp.diagonal(weights_TT, offset=-1).mean()) for weights_TT in maps]
for scale, share in zip(scales, shares):
    print(f"queries times {scale:>2}: {share:.0%} of the attention goes to the token before")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4))
for axis, index in zip(axes, (2, 5)):
    axis.imshow(maps[index], cmap="viridis", vmin=0, vmax=1)
    axis.set(xticks=range(T), yticks=range(T), title=f"queries times {scales[index]}", xlabel="to", ylabel="from")
    axis.set_xticklabels(words, rotation=90)
    axis.set_yticklabels(words)
lesson.picture(figure, "2_previous_token")

# %% [markdown]
# Where does the first word look? It has no word before it, but its weights must sum to 1 as well. Heads of trained
# models often send such attention to `[CLS]`, `[SEP]` or punctuation.
#
# ## More
#
# - [Attention](../docs/concepts/attention.md): kernels that never store the weights, and how they drop some of them.
# - [BERT on one page](../bertjax/nano.py) in whole.
# - Next: [one training step](3_one_training_step.py).
