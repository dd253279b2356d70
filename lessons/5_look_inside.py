# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 5: look inside
#
# What does a head look at, what is lost without it, and what does a layer know? You answer these three questions for a
# small BERT, with its own attention maps, with a mask on its heads, and with a probe. At the end, the three answers
# meet in one picture. There are two exercises.

# %%
import os

if os.path.isdir("bertjax/lessons"):  # Colab and Kaggle: the repository is the folder `bertjax` beside this notebook
    os.chdir("bertjax/lessons")
    assert os.system("pip install -q ..") == 0, "bertjax was not installed: run !pip install .. and read why"

# %%
import functools

import jax
import jax.numpy as jnp
import lesson
import matplotlib.pyplot as plt
import numpy as np

import bertjax
from bertjax.config.opening import SavedModel

# %% [markdown]
# The model is the one of lesson 4. If you have not trained it yet, this cell does, in a few minutes. The text is from
# documents that it never trained on.

# %%
name = lesson.trained()
module, params, tokenizer = bertjax.load(name)
tokens_BT = jnp.array(lesson.heldout_rows(lesson.size(600, 40)))
L, H = module.config.layers, module.config.heads
print(f"{L} layers of {H} heads; {len(tokens_BT)} rows of {tokens_BT.shape[1]} tokens")

# %% [markdown]
# ## Taps
#
# A *tap* is a value inside the model that you can read, or a mask that you can set, without a change of its code. Flax
# modules return captured values beside the result.


# %%
@functools.partial(jax.jit, static_argnums=2)
def inside(params, tokens_BT, names, head_mask_LH):
    """Return {name: captured values}."""
    variables = {"params": params, "taps": {"head_mask": head_mask_LH}, "captured": dict.fromkeys(names)}
    return module.apply(variables, tokens_BT, mutable=["captured"])[1]["captured"]


all_heads_LH = jnp.ones((L, H))
captured = inside(params, tokens_BT[:100], ("attention", "hidden"), all_heads_LH)
print({name: values.shape for name, values in captured.items()})

# %% [markdown]
# `attention` is [L, B, H, T, T]: for each layer, row and head a map. Row `i` of a map has the weights with which token
# `i` looks at all tokens, and sums to 1. `hidden` is [L + 1, B, T, D]: the embeddings, then the result of each layer.
#
# ### Exercise 1: who looks at the token before?


# %%
def previous_token(attention_LBHTT):
    """Return the share of its attention that each head gives to the token before, float [L, H].

    Average over the rows B and over all tokens that have a token before them.
    """
    raise NotImplementedError


# %%
lesson.grade(previous_token)

# %%
shares_LH = np.asarray(previous_token(captured["attention"]))
layer, head = np.unravel_index(shares_LH.argmax(), shares_LH.shape)
print(shares_LH.round(2))
print(f"layer {layer + 1}, head {head + 1} gives {shares_LH.max():.0%} to the token before; chance is about 3%")

# %% [markdown]
# ## Without a head
#
# A map shows where a head looks, not whether the model needs it. To find out, switch heads off, one at a time, and
# measure how much worse the guesses for masked tokens become. A mask of 0 removes what a head passes on.

# %%
export = SavedModel(name).export
loss = jax.jit(functools.partial(lesson.masked_loss, module))
whole = float(loss(export.params, tokens_BT, tokenizer.mask_id, all_heads_LH))
print(f"loss {whole:.3f} with all heads")
change_LH = np.zeros((L, H))
for one in np.ndindex(L, H):
    without_LH = all_heads_LH.at[one].set(0.0)  # a new mask each time, so that only one head is off
    change_LH[one] = float(loss(export.params, tokens_BT, tokenizer.mask_id, without_LH)) - whole
print(change_LH.round(3))

# %% [markdown]
# ## What does a layer know?
#
# A *probe* is a small classifier that reads the states of a layer. If it finds a property that was not in the input of
# the layer, the layer has computed it. The question here: *is the token before this one* `▁the`?
#
# The embedding of a token knows nothing about the token before it. But it knows the word itself, and after "the" there
# is rarely a verb. So expect more than a coin already at layer 0. What matters is what comes on top.
#
# ### Exercise 2: a probe and its baseline
#
# A number of a probe means something only beside that of an answer without the states. So return both.


# %%
def probe(train_states_ND, train_labels_N, test_states_ND, test_labels_N):
    """Return two accuracies on the test labels: (of a linear classifier, of the constant answer).

    The classifier: find weights [D] and a bias so that `states @ weights + bias` is near 1 for label 1 and near -1 for
    label 0, by least squares (`np.linalg.lstsq`) on the training data. Its answer is 1 if the result is above 0. The
    constant answer is the more frequent label of the training data.

    Args:
      train_states_ND, test_states_ND: float [N, D], one state for each token; N may differ.
      train_labels_N, test_labels_N: int [N], 0 or 1.
    """
    raise NotImplementedError


# %%
lesson.grade(probe)

# %% [markdown]
# ## Your picture: where the knowledge comes from
#
# The tokens after `▁the`, and as many other tokens, from the first two thirds of the rows to train and from the last
# third to test. Each layer is probed twice: in the whole model, and without the head that looks most at the token
# before.

# %%
[the] = tokenizer.encode(["the"])[0]
is_after_the_BT = np.zeros(tokens_BT.shape, bool)
is_after_the_BT[:, 1:] = np.asarray(tokens_BT)[:, :-1] == the
draw, cut = np.random.default_rng(0), 2 * len(tokens_BT) // 3


def chosen(rows):
    """Return (rows, columns, labels) of all tokens after `the`, and of as many others."""
    after, other = np.argwhere(is_after_the_BT[rows]), np.argwhere(~is_after_the_BT[rows])
    other = other[draw.choice(len(other), len(after), replace=False)]
    places = np.concatenate([after, other])
    return places[:, 0] + rows.start, places[:, 1], np.repeat([1, 0], len(after))


train, test = chosen(slice(0, cut)), chosen(slice(cut, len(tokens_BT)))
print(f"{len(train[2])} tokens to train, {len(test[2])} to test")
curves = {}
for title, mask_LH in (
    ("all heads", all_heads_LH),
    (f"without head {head + 1} of layer {layer + 1}", all_heads_LH.at[layer, head].set(0.0)),
):
    hidden = np.asarray(inside(params, tokens_BT, ("hidden",), mask_LH)["hidden"])
    scores = [
        probe(states[train[0], train[1]], train[2], states[test[0], test[1]], test[2])
        for states in hidden  # [B, T, D] of the embeddings and of each layer
    ]
    curves[title], constant = [accuracy for accuracy, _ in scores], scores[0][1]
    print(f"{title:>28}: " + ", ".join(f"{score:.1%}" for score in curves[title]) + f"; constant {constant:.1%}")

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
for title, accuracies in curves.items():
    axes.plot(range(L + 1), [100 * accuracy for accuracy in accuracies], marker="o", label=title)
axes.axhline(100 * constant, color="gray", linestyle="--", label="constant answer")
axes.set(xticks=range(L + 1), xlabel="layer (0: embeddings)", ylabel="probe is right [%]", ylim=(40, 101))
axes.legend()
lesson.picture(figure, "5_probe")

# %% [markdown]
# Compare three things for your best head: its map, the change of the loss without it, and the probe without it. Do they
# agree? A probe shows that a property can be read from a layer. It does not show that the model uses it. The loss
# without the head does.
#
# ## More
#
# - [Taps](../docs/concepts/taps.md): all values and masks. [Analysis](../docs/guides/analysis.md): all of this for any
#   BERT, as one page, by `python -m bertjax analyze`.
# - [Look inside a real BERT](../docs/notebooks/inside_bert.ipynb) takes a published model apart.
# - Next: [make it smaller](6_make_it_smaller.py).
