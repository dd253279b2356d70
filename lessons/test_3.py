"""Grade lesson 3: `pytest lessons/test_3.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from lesson import HERE  # noqa: F401 - it finds bertjax

from bertjax import nano

K, V = 5, 7
DRAW = np.random.default_rng(0)
LOGITS = jnp.array(3 * DRAW.normal(size=(K, V)), jnp.float32)
LABELS, WEIGHTS = jnp.array([1, 6, 0, 3, 0]), jnp.array([1.0, 1, 1, 0, 0])
EXACT = np.exp(np.float64(LOGITS)) / np.exp(np.float64(LOGITS)).sum(axis=1, keepdims=True)
PICKED = -np.log(EXACT[np.arange(K), LABELS])


def test_empty_places_do_not_count(cross_entropy):
    loss = float(cross_entropy(LOGITS, LABELS, WEIGHTS))
    right = PICKED[:3].mean()
    assert not np.isclose(loss, PICKED.mean(), rtol=1e-4), "places with weight 0 count in the sum"
    assert not np.isclose(loss, PICKED[:3].sum() / K, rtol=1e-4), "divide by the sum of the weights, not by K"
    assert not np.isclose(loss, -right, rtol=1e-4), "the sign is wrong: a loss is positive"
    assert np.isclose(loss, right, rtol=1e-4), f"the loss is {loss:.4f} and should be {right:.4f}"


def test_large_logits_are_exact(cross_entropy):
    loss = float(cross_entropy(LOGITS + 1000, LABELS, WEIGHTS))
    assert np.isfinite(loss), "logits near 1,000 give infinity or nan: exp overflows. Use jax.nn.log_softmax"
    before = float(cross_entropy(LOGITS, LABELS, WEIGHTS))
    assert np.isclose(loss, before, rtol=1e-3), "a constant that is added to all logits changes the loss"
    wrong = float(cross_entropy(jnp.array([[0.0, 200.0]]), jnp.array([0]), jnp.ones(1)))
    assert np.isclose(wrong, 200, rtol=1e-3), f"-log p of a token with p = exp(-200) is 200, not {wrong}: p became 0"


def test_the_gradient_is_that_of_jax(logits_gradient):
    gradient_KV = logits_gradient(LOGITS, LABELS, WEIGHTS)
    assert gradient_KV.shape == (K, V), "return one derivative for each logit, [K, V]"
    assert not jnp.any(gradient_KV[WEIGHTS == 0]), "empty places have no gradient: multiply by the weights"
    right_KV = jax.grad(lambda x: nano.cross_entropy(x, LABELS, WEIGHTS))(LOGITS)
    assert not jnp.allclose(gradient_KV, -right_KV, atol=1e-5), "the sign is wrong: a gradient points uphill"
    assert not jnp.allclose(gradient_KV, 3 * right_KV, atol=1e-5), "the loss is a mean: divide by the sum of weights"
    assert jnp.allclose(gradient_KV, right_KV, atol=1e-5), "it differs from jax.grad"
    assert jnp.allclose(gradient_KV.sum(axis=1), 0, atol=1e-5), "the derivatives of a place sum to 0"


PARAM, RATE = jnp.array(DRAW.normal(size=4), jnp.float32), 0.1
GRADIENTS = [jnp.array(DRAW.normal(size=4), jnp.float32) for _ in range(3)]


def steps(adamw, decay, count=3):
    param, mean, square = PARAM, jnp.zeros(4), jnp.zeros(4)
    for step in range(1, count + 1):
        param, mean, square = adamw(param, GRADIENTS[step - 1], mean, square, step, RATE, decay)
    return param, mean, square


def optax_steps(transformation, count=3):
    param, state = PARAM, transformation.init(PARAM)
    for gradient in GRADIENTS[:count]:
        updates, state = transformation.update(gradient, state, param)
        param = optax.apply_updates(param, updates)
    return param


def close(a, b):
    return bool(jnp.allclose(a, b, rtol=1e-4, atol=1e-5))


def test_the_first_step_has_the_length_of_the_learning_rate(adamw):
    param, mean, square = steps(adamw, 0.0, 1)
    moved = jnp.abs(param - PARAM)
    biased = RATE * (1 - nano.BETA1) / np.sqrt(1 - nano.BETA2)
    assert not close(moved, biased), "the averages start at 0: divide them by 1 - beta^step"
    assert close(moved, RATE), f"each number should move by {RATE}, and moves by {np.round(moved, 4)}"
    assert close(mean, (1 - nano.BETA1) * GRADIENTS[0]), "return the averages without the correction: it is used once"
    assert (jnp.sign(PARAM - param) == jnp.sign(GRADIENTS[0])).all(), "the sign is wrong: subtract the step"
    still, _, _ = adamw(PARAM, jnp.zeros(4), jnp.zeros(4), jnp.zeros(4), 1, RATE, 0.0)
    assert close(still, PARAM), "a number without a gradient must not move, nor become nan: epsilon is missing"
    tiny = nano.EPSILON * jnp.ones(4)
    half, _, _ = adamw(PARAM, tiny, jnp.zeros(4), jnp.zeros(4), 1, RATE, 0.0)
    assert close(half, PARAM - RATE / 2), "epsilon is added to the root, not inside it"
    assert close(square, (1 - nano.BETA2) * GRADIENTS[0] ** 2), "`square` is the average of the squared gradients"


def test_the_decay_is_beside_adam(adamw):
    param, _, _ = steps(adamw, 0.3)
    betas = nano.BETA1, nano.BETA2, nano.EPSILON
    into_gradient = optax.chain(optax.add_decayed_weights(0.3), optax.adam(RATE, *betas))
    assert not close(param, optax_steps(into_gradient)), (
        "the decay is added to the gradient, where Adam divides it away. Add it to the step (section 2 of AdamW)"
    )
    alone = optax.chain(optax.scale_by_adam(*betas), optax.scale(-RATE), optax.add_decayed_weights(-0.3))
    assert not close(param, optax_steps(alone)), "the decay is multiplied by the learning rate as well"
    assert close(param, optax_steps(optax.adamw(RATE, *betas, weight_decay=0.3))), "it differs from optax.adamw"
