"""Solutions of lesson 3."""

import jax
import jax.numpy as jnp

from bertjax import nano


def cross_entropy(logits_KV, labels_K, weights_K):
    log_probabilities_KV = jax.nn.log_softmax(logits_KV, axis=-1)
    picked_K = jnp.take_along_axis(log_probabilities_KV, labels_K[:, None], axis=-1)[:, 0]
    return -(picked_K * weights_K).sum() / weights_K.sum()


def logits_gradient(logits_KV, labels_K, weights_K):
    right_KV = jax.nn.one_hot(labels_K, logits_KV.shape[-1])
    return (jax.nn.softmax(logits_KV, axis=-1) - right_KV) * (weights_K / weights_K.sum())[:, None]


def adamw(param, gradient, mean, square, step, learning_rate, decay):
    mean = nano.BETA1 * mean + (1 - nano.BETA1) * gradient
    square = nano.BETA2 * square + (1 - nano.BETA2) * gradient**2
    # The averages stay as they are: only what this step uses is corrected.
    change = mean / (1 - nano.BETA1**step) / (jnp.sqrt(square / (1 - nano.BETA2**step)) + nano.EPSILON)
    return param - learning_rate * (change + decay * param), mean, square
