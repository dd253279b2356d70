import jax
import jax.numpy as jnp
import numpy as np

from bertjax.objectives.bert import BERT
from bertjax.training.config import OptimizerConfig
from bertjax.training.optimizer import adamw, decay_mask, descend
from bertjax.training.paths import map_with_path
from tests import batches

CONFIG = OptimizerConfig(b1=0.8, b2=0.95, weight_decay=0.1, clip_norm=0.5)


def test_weight_decay_spares_biases_and_layer_norms():
    params = jax.eval_shape(BERT().module(batches.ENCODER).init, jax.random.key(0), batches.make(1))["params"]
    spared = []
    map_with_path(lambda path, decayed: decayed or spared.append(path), decay_mask(params))
    assert sorted(spared) == [
        "encoder/embeddings/norm/bias",
        "encoder/embeddings/norm/scale",
        "encoder/layers/attention/key/bias",
        "encoder/layers/attention/output/bias",
        "encoder/layers/attention/query/bias",
        "encoder/layers/attention/value/bias",
        "encoder/layers/attention_norm/bias",
        "encoder/layers/attention_norm/scale",
        "encoder/layers/intermediate/bias",
        "encoder/layers/output/bias",
        "encoder/layers/output_norm/bias",
        "encoder/layers/output_norm/scale",
        "encoder/pooler/bias",
        "heads/mlm/norm/bias",
        "heads/mlm/norm/scale",
        "heads/mlm/transform/bias",
        "heads/mlm/word_bias",
        "heads/nsp/classifier/bias",
    ]


def test_steps_are_those_of_the_paper():
    """Loshchilov & Hutter (2019), algorithm 2, after clipping; gradients on both sides of the clip norm."""
    draw = np.random.default_rng(0)
    params = {"kernel": draw.normal(size=(3, 2)), "bias": draw.normal(size=2)}
    optimizer = adamw(CONFIG)
    found = jax.tree.map(jnp.float32, params)
    state = optimizer.init(found)
    first = {name: np.zeros_like(value) for name, value in params.items()}
    second = {name: np.zeros_like(value) for name, value in params.items()}
    for step, size in enumerate((3.0, 0.01, 1.0, 0.05), start=1):
        gradient = {name: size * draw.normal(size=value.shape) for name, value in params.items()}
        direction, state = optimizer.update(jax.tree.map(jnp.float32, gradient), state, found)
        found, update = descend(found, direction, jnp.float32(0.1 / step))

        norm = np.sqrt(sum((value**2).sum() for value in gradient.values()))
        for name in params:
            clipped = gradient[name] * min(1.0, CONFIG.clip_norm / norm)
            first[name] = CONFIG.b1 * first[name] + (1 - CONFIG.b1) * clipped
            second[name] = CONFIG.b2 * second[name] + (1 - CONFIG.b2) * clipped**2
            unbiased = first[name] / (1 - CONFIG.b1**step), second[name] / (1 - CONFIG.b2**step)
            expected = unbiased[0] / (np.sqrt(unbiased[1]) + CONFIG.epsilon)
            expected += CONFIG.weight_decay * params[name] * (name == "kernel")
            np.testing.assert_allclose(update[name], -0.1 / step * expected, rtol=1e-4, atol=1e-7)
            params[name] = params[name] - 0.1 / step * expected
            np.testing.assert_allclose(found[name], params[name], rtol=1e-5, atol=1e-6)
