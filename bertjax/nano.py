"""BERT on one page (Devlin et al., 2019): the model, its two losses, one step of AdamW and a training, in plain JAX.

Read it from top to bottom. It runs on one device, and computes the same numbers as the package, on the same parameters
and batches (`tests/test_nano.py`). `python -m bertjax.nano` learns nine sentences in a few seconds. Suffixes are
shapes: B rows, T tokens of a row, N examples of a row, K predicted tokens of a row, D width, F feed-forward width,
H heads, V vocabulary, L layers. Lesson 3 trains this model on the batches of the package.
"""

import jax
import jax.numpy as jnp
import numpy as np

BETA1, BETA2, EPSILON, WEIGHT_DECAY, CLIP_NORM = 0.9, 0.98, 1e-6, 0.01, 1.0


def dense(params, x):
    return x @ params["kernel"] + params["bias"]


def layer_norm(params, x):
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return params["scale"] * centered / jnp.sqrt(variance + 1e-12) + params["bias"]


def gelu(x):
    return jax.nn.gelu(x, approximate=False)  # BERT's is exact; the approximation with tanh is GPT-2's


def attention(params, hidden_BTD, sees_BTT, heads):
    """Each token takes a weighted mean of the values of all tokens that it sees (Vaswani et al., 2017, 3.2)."""
    rows, tokens, _ = hidden_BTD.shape
    queries, keys, values = (  # [B, H, T, D / H]: each head looks at a slice of the channels
        dense(params[name], hidden_BTD).reshape(rows, tokens, heads, -1).swapaxes(1, 2)
        for name in ("query", "key", "value")
    )
    # A dot product of random vectors grows with the root of their length, and a softmax of large numbers has no slope.
    scores_BHTT = queries @ keys.mT / jnp.sqrt(queries.shape[-1])
    weights_BHTT = jax.nn.softmax(jnp.where(sees_BTT[:, None], scores_BHTT, -1e30), axis=-1)
    return dense(params["output"], (weights_BHTT @ values).swapaxes(1, 2).reshape(rows, tokens, -1))


def layer(params, hidden_BTD, sees_BTT, heads):
    """Tokens exchange information, then each is processed alone. Norms follow the sums ("post-norm")."""
    mixed_BTD = attention(params["attention"], hidden_BTD, sees_BTT, heads)
    hidden_BTD = layer_norm(params["attention_norm"], hidden_BTD + mixed_BTD)
    expanded_BTF = gelu(dense(params["intermediate"], hidden_BTD))
    return layer_norm(params["output_norm"], hidden_BTD + dense(params["output"], expanded_BTF))


def encode(params, batch, heads):
    """Return hidden_BTD: what each token, where it is, and all others of its example say about it."""
    table = params["embeddings"]
    hidden_BTD = table["word"][batch["tokens_BT"]] + table["position"][batch["positions_BT"]]
    hidden_BTD = layer_norm(table["norm"], hidden_BTD + table["segment"][batch["segments_BT"]])
    # A row is packed with several examples, numbered from 1, and padded with 0: tokens see their own example only.
    sees_BTT = batch["examples_BT"][:, :, None] == batch["examples_BT"][:, None, :]
    # All layers are stacked in arrays [L, ...], so the scan compiles one layer and runs it L times.
    return jax.lax.scan(lambda hidden, one: (layer(one, hidden, sees_BTT, heads), None), hidden_BTD, params["layers"])[
        0
    ]


def cross_entropy(logits, labels, weights):
    """Mean of -log p(label) over the predictions; empty places have weight 0."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return -(picked * weights).sum() / weights.sum()


def loss(params, batch, vocab_size, heads):
    """BERT's two questions (section 3.1): which word was here, and does segment B follow segment A?"""
    encoder, questions = params["encoder"], params["heads"]
    hidden_BTD = encode(encoder, batch, heads)

    masked_BKD = jnp.take_along_axis(hidden_BTD, batch["mlm_positions_BK"][..., None], axis=1)
    guess_BKD = layer_norm(questions["mlm"]["norm"], gelu(dense(questions["mlm"]["transform"], masked_BKD)))
    # The output weights are the word embeddings, whose padding to a multiple of 128 must not reach the softmax.
    logits_BKV = (guess_BKD @ encoder["embeddings"]["word"].T + questions["mlm"]["word_bias"])[..., :vocab_size]
    mlm = cross_entropy(logits_BKV, batch["mlm_labels_BK"], batch["mlm_weights_BK"])

    summary_BND = jnp.take_along_axis(hidden_BTD, batch["summary_positions_BN"][..., None], axis=1)  # [CLS]
    logits_BN2 = dense(questions["nsp"]["classifier"], jnp.tanh(dense(encoder["pooler"], summary_BND)))
    nsp = cross_entropy(logits_BN2, batch["nsp_labels_BN"], batch["nsp_weights_BN"])
    return mlm + nsp


def train_step(params, mean, square, step, batch, learning_rate, vocab_size, heads):
    """One step of AdamW (Loshchilov & Hutter, 2019), counted from 1; both moments start at 0. Returns the loss last."""
    value, gradient = jax.value_and_grad(loss)(params, batch, vocab_size, heads)
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


def init(rng, vocab_size, tokens, width, layers):
    """Draw all matrices with a standard deviation of 0.02, as the authors' code does."""

    def linear(*shape):
        return {"kernel": 0.02 * rng.standard_normal(shape), "bias": np.zeros((*shape[:-2], shape[-1]))}

    norm, norms = ({"scale": np.ones(shape), "bias": np.zeros(shape)} for shape in (width, (layers, width)))
    sizes = {"word": vocab_size, "position": tokens, "segment": 2}
    table = {name: linear(size, width)["kernel"] for name, size in sizes.items()}
    stack = {"attention": {name: linear(layers, width, width) for name in ("query", "key", "value", "output")}}
    stack |= {"intermediate": linear(layers, width, 4 * width), "output": linear(layers, 4 * width, width)}
    stack |= {"attention_norm": norms, "output_norm": norms}
    mlm = {"transform": linear(width, width), "norm": norm, "word_bias": np.zeros(vocab_size)}
    encoder = {"embeddings": table | {"norm": norm}, "layers": stack, "pooler": linear(width, width)}
    return {"encoder": encoder, "heads": {"mlm": mlm, "nsp": {"classifier": linear(width, 2)}}}


CLS, SEP, MASK, ORDINARY = range(4)
TEXT = """the cat sleeps in the house . the house is warm at night . at night the dog barks outside .
the garden is behind the house . a bird sings in the garden . every morning the dog hears it .
every morning the cat drinks milk . fresh milk is in the kitchen . the kitchen door is always open ."""


def next_batch(rng, sentences_S6, vocab_size, rows):
    """Pair sentences, of which half adjoin, and choose 15% of the words to be guessed."""
    first_B, is_random_B = rng.integers(len(sentences_S6) - 1, size=rows), rng.random(rows) < 0.5
    second_B = np.where(is_random_B, rng.integers(len(sentences_S6), size=rows), first_B + 1)
    cls_B1, sep_B1 = np.full((rows, 1), CLS), np.full((rows, 1), SEP)
    text_BT = np.hstack([cls_B1, sentences_S6[first_B], sep_B1, sentences_S6[second_B], sep_B1])
    chosen_BT = (text_BT >= ORDINARY) & (rng.random(text_BT.shape) < 0.15)
    # Later tasks have no [MASK], so 10% become another word and 10% stay as they are (section 3.1, task 1).
    action_BT, others_BT = rng.random(text_BT.shape), rng.integers(ORDINARY, vocab_size, text_BT.shape)
    shown_BT = np.where(action_BT < 0.8, MASK, np.where(action_BT < 0.9, others_BT, text_BT))
    ones_BT, columns_BT = np.ones_like(text_BT), np.arange(text_BT.shape[1]) * np.ones_like(text_BT)
    read = {"tokens_BT": np.where(chosen_BT, shown_BT, text_BT), "positions_BT": columns_BT, "examples_BT": ones_BT}
    read |= {"segments_BT": np.repeat([0, 1], [8, 7]) * ones_BT, "summary_positions_BN": 0 * cls_B1}
    mlm = {"mlm_positions_BK": columns_BT, "mlm_labels_BK": text_BT, "mlm_weights_BK": chosen_BT}
    return read | mlm | {"nsp_labels_BN": is_random_B[:, None].astype(int), "nsp_weights_BN": ones_BT[:, :1]}


def main(steps=500, heads=4):
    """Learn `TEXT` and print the mean loss, which starts at ln V + ln 2: two guesses. Returns all losses."""
    words = sorted(set(TEXT.split()) - {"."})
    sentences_S6 = np.array([[ORDINARY + words.index(word) for word in each.split()] for each in TEXT.split(" .")[:-1]])
    vocab_size, rng, losses = ORDINARY + len(words), np.random.default_rng(0), []
    params = init(rng, vocab_size, tokens=15, width=64, layers=2)
    mean = square = jax.tree.map(jnp.zeros_like, params)
    update = jax.jit(train_step, static_argnums=(6, 7))
    for step in range(1, steps + 1):
        batch = next_batch(rng, sentences_S6, vocab_size, rows=32)
        rate = 2e-3 * min(step / 50, 1 - step / steps)  # a warm-up, then down to 0: section A.2
        params, mean, square, value = update(params, mean, square, step, batch, rate, vocab_size, heads)
        losses.append(float(value))
        if step == 1 or step % 100 == 0:
            print(f"step {step}: loss {np.mean(losses[-100:]):.3f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
