# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 3: one training step
#
# A training step has three parts: the loss says how wrong the model is, the gradient says how each number of the model
# changes the loss, and the optimizer changes the numbers. You write all three, compare them with JAX, Optax and
# bertjax, and train a small BERT with your own step.
#
# You need NumPy and the idea of a derivative. There are three short exercises.

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
from bertjax.training.feeds import Feeds
from bertjax.training.setup import init_state, make_setups

# %% [markdown]
# ## The loss
#
# For each masked token the model returns one number for each token of the vocabulary, the *logits*. A softmax turns
# them into probabilities. The loss is the mean of $-\log p$ of the right tokens: 0 if the model is certain and right,
# $\ln V$ if all V tokens are equally probable.
#
# The number of predictions differs from row to row, but arrays have fixed shapes. So each row has K places, and the
# places that are not used have weight 0. They must not count, neither in the sum nor in the number of predictions.
#
# ### Exercise 1: cross-entropy


# %%
def cross_entropy(logits_KV, labels_K, weights_K):
    """Return the mean of -log p(label) over the places with weight 1, a scalar.

    Args:
      logits_KV: float [K, V]; they may be large, such as 1,000. `jax.nn.log_softmax` is exact for them.
      labels_K: int [K], the right tokens.
      weights_K: float [K], 1 for a prediction and 0 for an empty place.
    """
    raise NotImplementedError


# %%
lesson.grade(cross_entropy)

# %% [markdown]
# ## The gradient
#
# JAX computes gradients by itself: `jax.grad(f)` is a function that returns the derivatives of `f`. What does it return
# here? Let $p$ be the softmax of the logits of one place, and $W$ the sum of the weights. Then
#
# $$\frac{\partial\,\mathrm{loss}}{\partial\,\mathrm{logit}_v} = \frac{w}{W}\,(p_v - [v = \mathrm{label}])$$
#
# The right token is pushed up by what it lacks, and each wrong token is pushed down by what it has too much.
#
# ### Exercise 2: the gradient, without `jax.grad`


# %%
def logits_gradient(logits_KV, labels_K, weights_K):
    """Return the derivatives of `cross_entropy` with respect to the logits, [K, V]; the arguments are the same."""
    raise NotImplementedError


# %%
lesson.grade(logits_gradient)

# %% [markdown]
# All other gradients follow from this one by the chain rule, from the last layer back to the first.
#
# ## The optimizer
#
# Adam (Kingma & Ba, 2015) keeps two moving averages for each number of the model: of its gradients, $m$, and of their
# squares, $s$. It divides one by the root of the other. So each number moves by about the learning rate, however large
# its gradient is.
#
# $$\begin{aligned}
# m &\leftarrow \beta_1 m + (1 - \beta_1)\,g & s &\leftarrow \beta_2 s + (1 - \beta_2)\,g^2 \\
# \hat m &= m / (1 - \beta_1^t) & \hat s &= s / (1 - \beta_2^t)
# \end{aligned}$$
#
# Both averages start at 0, so they are too small in the first steps. The division in the second line corrects that
# exactly; $t$ is the number of the step, from 1. AdamW (Loshchilov & Hutter, 2019) also pulls the number $\theta$
# towards 0, beside Adam and not through the gradient:
#
# $$\theta \leftarrow \theta - \eta\,\left(\frac{\hat m}{\sqrt{\hat s} + \epsilon} + \lambda\,\theta\right)$$
#
# ### Exercise 3: AdamW


# %%
def adamw(param, gradient, mean, square, step, learning_rate, decay):
    """Return the new (param, mean, square), three arrays of one shape.

    Args:
      param, gradient, mean, square: arrays of one shape: theta, g, m and s above.
      step: t, from 1.
      learning_rate: eta.
      decay: lambda.

    beta_1, beta_2 and epsilon are `nano.BETA1`, `nano.BETA2` and `nano.EPSILON`.
    """
    raise NotImplementedError


# %%
lesson.grade(adamw)

# %% [markdown]
# ## A step of BERT
#
# Now the three parts meet. `Feeds` makes rows of the text and masks them, `init_state` makes the first parameters, and
# `nano.loss` is the model with both of its losses. Your AdamW changes every array of the model. Biases and the scales
# of norms are not decayed: they have no reason to be near 0.

# %%
config = lesson.config()
store = lesson.prepared()
vocab_size, rows, heads = store.tokenizer.vocab_size, config.stages[0].batch, config.model.heads
feed = Feeds(config, store).feed("train", config.stages[0].seq_len)
start = jax.tree.map(jnp.array, init_state(make_setups(config, vocab_size)[0])["params"])


@jax.jit
def train_step(params, mean, square, step, batch, learning_rate):
    loss, gradient = jax.value_and_grad(nano.loss)(params, batch, vocab_size, heads)
    # One rare batch must not destroy the model: a gradient longer than 1 is made shorter.
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, nano.CLIP_NORM / norm), gradient)

    def update(path, *arrays):
        decay = 0.0 if path[-1].key.endswith(("bias", "scale")) else nano.WEIGHT_DECAY
        return adamw(*arrays, step, learning_rate, decay)

    updated = jax.tree_util.tree_map_with_path(update, params, gradient, mean, square)
    return *(jax.tree.map(lambda _, new, n=n: new[n], params, updated) for n in range(3)), loss


# %% [markdown]
# Compare three steps with `nano.train_step`, which tests compare with the package. Float32 has about seven digits.

# %%
zeros = jax.tree.map(jnp.zeros_like, start)
mine = theirs = (start, zeros, zeros)
nano_step = jax.jit(nano.train_step, static_argnums=(6, 7))
for step in range(1, 4):
    batch = feed.batch(np.arange((step - 1) * rows, step * rows))
    *mine, my_loss = train_step(*mine, step, batch, 1e-3)
    *theirs, their_loss = nano_step(*theirs, step, batch, 1e-3, vocab_size, heads)
    pairs = zip(jax.tree.leaves(mine[0]), jax.tree.leaves(theirs[0]))
    apart = np.max([jnp.abs(a - b).max() for a, b in pairs])  # nan if any is
    print(f"step {step}: your loss {my_loss:.5f}, nano.py {their_loss:.5f}, parameters at most {apart:.0e} apart")

# %% [markdown]
# ## Your picture: three learning rates
#
# Before you run it: which of them is best after 20 steps, and which after 200? The model starts near $\ln V$ for the
# masked token plus $\ln 2$ for the pair of sentences.

# %%
steps = lesson.size(200, 5)
figure, axes = plt.subplots(figsize=(6, 3.5))
for learning_rate in (1e-4, 2e-3, 5e-2):
    state, losses = (start, zeros, zeros), []
    for step in range(1, steps + 1):
        batch = feed.batch(np.arange((step - 1) * rows, step * rows))
        *state, loss = train_step(*state, step, batch, learning_rate)
        losses.append(float(loss))
    print(f"learning rate {learning_rate:g}: loss {losses[0]:.2f} at first, {np.mean(losses[-20:]):.2f} at last")
    axes.plot(losses, label=f"{learning_rate:g}", linewidth=1)
axes.axhline(np.log(vocab_size) + np.log(2), color="gray", linestyle="--", label="ln V + ln 2")
axes.set(xlabel="step", ylabel="loss [nats]", ylim=(5, 13))
axes.legend()
lesson.picture(figure, "3_learning_rates")

# %% [markdown]
# ## More
#
# - [What the loop knows about a loss](../docs/concepts/objective_contract.md).
# - [Sharding](../docs/concepts/sharding.md): how a step is spread over many chips.
# - Schedules of the learning rate, and why it starts small: [schedules](../docs/guides/schedules.md).
# - Next: [what next-sentence prediction learns](4_next_sentences.py).
