"""BERT on one page (Devlin et al., 2019): the model, its two losses and one step of AdamW, in plain JAX.

Read it from top to bottom. It has no options, runs on one device, and computes the same numbers as the package, on the
same parameters and batches (`tests/test_nano.py`). Suffixes are shapes: B rows, T tokens of a row, N examples of a row,
K predicted tokens of a row, D width, F feed-forward width, H heads, V vocabulary, L layers.
"""

import jax
import jax.numpy as jnp

HEADS = 4
BETA1, BETA2, EPSILON, WEIGHT_DECAY, CLIP_NORM = 0.9, 0.98, 1e-6, 0.01, 1.0


def dense(params, x):
    return x @ params["kernel"] + params["bias"]


def layer_norm(params, x):
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return params["scale"] * centered / jnp.sqrt(variance + 1e-12) + params["bias"]


def gelu(x):
    return jax.nn.gelu(x, approximate=False)  # BERT's is exact; the approximation with tanh is GPT-2's


def attention(params, hidden_BTD, sees_BTT):
    """Each token takes a weighted mean of the values of all tokens that it sees (Vaswani et al., 2017, 3.2)."""
    queries, keys, values = (  # [B, H, T, D / H]: each head looks at a slice of the channels
        jnp.stack(jnp.split(dense(params[name], hidden_BTD), HEADS, axis=-1), axis=1)
        for name in ("query", "key", "value")
    )
    # A dot product of random vectors grows with the root of their length, and a softmax of large numbers has no slope.
    scores_BHTT = queries @ keys.mT / jnp.sqrt(queries.shape[-1])
    weights_BHTT = jax.nn.softmax(jnp.where(sees_BTT[:, None], scores_BHTT, -1e30), axis=-1)
    return dense(params["output"], jnp.concatenate(list((weights_BHTT @ values).swapaxes(0, 1)), axis=-1))


def layer(params, hidden_BTD, sees_BTT):
    """Tokens exchange information, then each is processed alone. Norms follow the sums ("post-norm")."""
    mixed_BTD = attention(params["attention"], hidden_BTD, sees_BTT)
    hidden_BTD = layer_norm(params["attention_norm"], hidden_BTD + mixed_BTD)
    expanded_BTF = gelu(dense(params["intermediate"], hidden_BTD))
    return layer_norm(params["output_norm"], hidden_BTD + dense(params["output"], expanded_BTF))


def encode(params, batch):
    """Return hidden_BTD: what each token, where it is, and all others of its example say about it."""
    table = params["embeddings"]
    hidden_BTD = table["word"][batch["tokens_BT"]] + table["position"][batch["positions_BT"]]
    hidden_BTD = layer_norm(table["norm"], hidden_BTD + table["segment"][batch["segments_BT"]])
    # A row is packed with several examples, numbered from 1, and padded with 0: tokens see their own example only.
    sees_BTT = batch["examples_BT"][:, :, None] == batch["examples_BT"][:, None, :]
    # All layers are stacked in arrays [L, ...], so the scan compiles one layer and runs it L times.
    return jax.lax.scan(lambda hidden, one: (layer(one, hidden, sees_BTT), None), hidden_BTD, params["layers"])[0]


def cross_entropy(logits, labels, weights):
    """Mean of -log p(label) over the predictions; empty places have weight 0."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return -(picked * weights).sum() / weights.sum()


def loss(params, batch, vocab_size):
    """BERT's two questions (section 3.1): which word was here, and does segment B follow segment A?"""
    encoder, heads = params["encoder"], params["heads"]
    hidden_BTD = encode(encoder, batch)

    masked_BKD = jnp.take_along_axis(hidden_BTD, batch["mlm_positions_BK"][..., None], axis=1)
    guess_BKD = layer_norm(heads["mlm"]["norm"], gelu(dense(heads["mlm"]["transform"], masked_BKD)))
    # The output weights are the word embeddings, whose padding to a multiple of 128 must not reach the softmax.
    logits_BKV = (guess_BKD @ encoder["embeddings"]["word"].T + heads["mlm"]["word_bias"])[..., :vocab_size]
    mlm = cross_entropy(logits_BKV, batch["mlm_labels_BK"], batch["mlm_weights_BK"])

    summary_BND = jnp.take_along_axis(hidden_BTD, batch["summary_positions_BN"][..., None], axis=1)  # [CLS]
    logits_BN2 = dense(heads["nsp"]["classifier"], jnp.tanh(dense(encoder["pooler"], summary_BND)))
    nsp = cross_entropy(logits_BN2, batch["nsp_labels_BN"], batch["nsp_weights_BN"])
    return mlm + nsp


def train_step(params, mean, square, step, batch, learning_rate, vocab_size):
    """One step of AdamW (Loshchilov & Hutter, 2019), counted from 1; both moments start at 0. Returns the loss last."""
    value, gradient = jax.value_and_grad(loss)(params, batch, vocab_size)
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, CLIP_NORM / norm), gradient)
    mean = jax.tree.map(lambda old, new: BETA1 * old + (1 - BETA1) * new, mean, gradient)
    square = jax.tree.map(lambda old, new: BETA2 * old + (1 - BETA2) * new**2, square, gradient)

    def update(path, param, first, second):
        # Moments that started at 0 are too small at first, by a factor that is known (Kingma & Ba, 2015, section 3).
        change = first / (1 - BETA1**step) / (jnp.sqrt(second / (1 - BETA2**step)) + EPSILON)
        is_decayed = not path[-1].key.endswith(("bias", "scale"))  # biases and norms have no reason to be near 0
        return param - learning_rate * (change + is_decayed * WEIGHT_DECAY * param)

    return jax.tree_util.tree_map_with_path(update, params, mean, square), mean, square, value
