"""Loss functions shared by objectives, as sums over a batch, with their metrics."""

import jax
import jax.numpy as jnp

from bertjax.models.pooling import l2_normalize

Sums = tuple[jax.Array, jax.Array]


def classification_term(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Return weighted sums of cross-entropy (in nats) and of correct answers.

    The answer is the first of the largest logits. Comparisons with the label replace gathers and argmax, because their
    forward and backward passes fuse with the softmax.

    Args:
      logits: float32 [..., classes].
      labels: int [...].
      weights: float32 [...].
    """
    classes = jnp.arange(logits.shape[-1])
    true = jnp.sum(jnp.where(classes == labels[..., None], logits, 0.0), axis=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - true
    better = (logits > true[..., None]) | ((logits == true[..., None]) & (classes < labels[..., None]))
    # Sum floats, as the softmax does, so that XLA for TPU reads the logits once for both.
    correct = (jnp.sum(better.astype(jnp.float32), axis=-1) == 0.0).astype(jnp.float32)
    return jnp.sum(loss * weights), jnp.sum(correct * weights)


def binary_term(
    term: str, logits: jax.Array, is_positive: jax.Array, is_counted: jax.Array
) -> tuple[jax.Array, dict[str, Sums]]:
    """Return the summed binary cross-entropy in nats, and metrics.

    Args:
      term: metric name prefix.
      logits: float32; above 0 predicts positive.
      is_positive: bool, the labels.
      is_counted: bool; other elements count in neither loss nor metrics.

    Returns:
      The sum, and `<term>_accuracy`, `<term>_precision` and `<term>_recall` as (sum, weight).
    """

    def count(which: jax.Array) -> jax.Array:
        return jnp.sum(which & is_counted).astype(jnp.float32)

    is_predicted = logits > 0.0
    # Equals -log sigmoid(logit) or -log(1 - sigmoid(logit)), without overflow.
    loss = jax.nn.softplus(logits) - jnp.where(is_positive, logits, 0.0)
    true_positives = count(is_predicted & is_positive)
    return jnp.sum(jnp.where(is_counted, loss, 0.0)), {
        f"{term}_accuracy": (count(is_predicted == is_positive), count(is_counted)),
        f"{term}_precision": (true_positives, count(is_predicted)),
        f"{term}_recall": (true_positives, count(is_positive)),
    }


def kl_divergence(teacher: jax.Array, student: jax.Array, temperature: float) -> jax.Array:
    """Return T^2 KL(teacher || student) in nats for logits [..., V] at temperature T > 0; float32 [...].

    T^2 keeps gradient size independent of the temperature (Hinton et al., 2015, section 2, arXiv 1503.02531).
    """
    # Vocabulary padding and masked places hold the lowest float. Divided by less than 1 it is -inf; -inf - -inf is NaN.
    scaled = (jnp.maximum(logits / temperature, jnp.finfo(jnp.float32).min) for logits in (teacher, student))
    teacher_log, student_log = map(jax.nn.log_softmax, scaled)
    return temperature**2 * jnp.sum(jnp.exp(teacher_log) * (teacher_log - student_log), axis=-1)


def cosine(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return cosine similarities of vectors [..., D]; [...]."""
    return jnp.sum(l2_normalize(first) * l2_normalize(second), axis=-1)


def cosine_distance(first: jax.Array, second: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weighted sum of 1 - cosine over vectors [..., D], computed in float32."""
    return jnp.sum((1.0 - cosine(first.astype(jnp.float32), second.astype(jnp.float32))) * weights)


def squared_error(predictions: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weighted sum of squared differences."""
    return jnp.sum(weights * (predictions - labels) ** 2)
