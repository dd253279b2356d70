"""BERT's forward pass in plain numpy and float64, written from the papers: what the encoder is compared with."""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def gelu(x):
    """Return x times the normal distribution function (Hendrycks & Gimpel, 2016)."""
    return x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def norm(x, params, epsilon):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + epsilon) * params["scale"] + params["bias"]


def dense(x, params):
    return x @ params["kernel"] + params["bias"]


def layer(x_TD, params, heads, epsilon):
    """Run one layer on one example, without padding (Vaswani et al., 2017, section 3, post-layer-norm)."""
    attention, width = params["attention"], x_TD.shape[1] // heads
    query, key, value = (dense(x_TD, attention[name]) for name in ("query", "key", "value"))
    attended = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        weights_TT = softmax(query[:, columns] @ key[:, columns].T / math.sqrt(width))
        attended.append(weights_TT @ value[:, columns])
    x_TD = norm(x_TD + dense(np.concatenate(attended, axis=1), attention["output"]), params["attention_norm"], epsilon)
    expanded = gelu(dense(x_TD, params["intermediate"]))
    return norm(x_TD + dense(expanded, params["output"]), params["output_norm"], epsilon)


def encode(params, config, tokens_T, segments_T):
    """Return the hidden states [T, D] of one example without padding."""
    embeddings = params["embeddings"]
    x_TD = embeddings["word"][tokens_T] + embeddings["position"][: len(tokens_T)] + embeddings["segment"][segments_T]
    x_TD = norm(x_TD, embeddings["norm"], config.norm_epsilon)
    for index in range(config.layers):
        x_TD = layer(x_TD, _at(params["layers"], index), config.heads, config.norm_epsilon)
    return x_TD


def bert(params, config, batch):
    """Return masked-LM logits [B, K, V] and next-sentence logits [B, 2] of a batch with one example a row."""
    encoder, heads = float64(params["encoder"]), float64(params["heads"])
    mlm_BKV, nsp_B2 = [], []
    for row in range(len(batch["tokens_BT"])):
        length = int(batch["examples_BT"][row].sum())
        hidden_TD = encode(encoder, config, batch["tokens_BT"][row, :length], batch["segments_BT"][row, :length])
        read_KD = hidden_TD[batch["mlm_positions_BK"][row]]
        transformed_KD = norm(
            gelu(dense(read_KD, heads["mlm"]["transform"])), heads["mlm"]["norm"], config.norm_epsilon
        )
        mlm_KV = transformed_KD @ encoder["embeddings"]["word"].T + heads["mlm"]["word_bias"]
        mlm_BKV.append(mlm_KV[:, : config.vocab_size])
        nsp_B2.append(dense(np.tanh(dense(hidden_TD[0], encoder["pooler"])), heads["nsp"]["classifier"]))
    return np.array(mlm_BKV), np.array(nsp_B2)


def float64(tree):
    return {key: float64(value) if isinstance(value, dict) else np.float64(value) for key, value in tree.items()}


def _at(tree, index):
    return {key: _at(value, index) if isinstance(value, dict) else value[index] for key, value in tree.items()}
