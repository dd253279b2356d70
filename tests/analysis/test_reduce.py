"""Sums over all examples: those of a loop over single examples, in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis.reduce import reduce
from bertjax.analysis.subject import captured


def test_a_mean_over_examples_of_any_length(pretrained, texts):
    def function(params, batch):
        real_BT = batch["examples_BT"] > 0
        hidden = captured(pretrained.encoder, params, batch, ["hidden"])["hidden"][-1]
        total = jnp.sum(jnp.where(real_BT[..., None], hidden, 0.0), axis=(0, 1))
        return {"mean": (total, real_BT.sum()), "none": (jnp.zeros(2), jnp.zeros(2))}

    result = reduce(pretrained, texts, function)
    alone = jax.jit(lambda batch: captured(pretrained.encoder, pretrained.params, batch, ["hidden"])["hidden"][-1, 0])
    encoded, total, count = texts.encoded(pretrained), np.zeros(32), 0
    for index, length in enumerate(encoded.ragged.lengths):
        hidden = alone(encoded.batch(np.array([[index]]), int(encoded.ragged.lengths.max())))[:length]
        total += np.asarray(hidden, np.float64).sum(axis=0)
        count += len(hidden)
    np.testing.assert_allclose(result["mean"], total / count, atol=1e-5)
    assert np.isnan(result["none"]).all() and result["mean"].dtype == np.float64
