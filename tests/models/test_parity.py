"""The whole of BERT against its plain numpy form."""

import dataclasses
import functools

import jax
import numpy as np

from bertjax.objectives.pretraining.sentence_pairs import BERT
from tests import batches
from tests.models import reference


def test_logits_are_those_of_the_papers():
    config, batch = batches.ENCODER, batches.make(4)
    module = BERT().model(config)
    params = batches.filled(batches.param_shapes(BERT(), module.config, batch))
    logits = jax.jit(functools.partial(BERT().apply, module))(params, batch)
    mlm_BKV, nsp_B2 = reference.bert(params, config, batch)
    assert mlm_BKV.std() > 0.1 and nsp_B2.std() > 0.01
    np.testing.assert_allclose(logits["mlm"][..., : config.vocab_size], mlm_BKV, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits["nsp"][:, 0], nsp_B2, rtol=1e-5, atol=1e-5)


def test_every_compared_parameter_matters():
    """Otherwise a part that both leave out would not be noticed."""
    config, batch = dataclasses.replace(batches.ENCODER, layers=2), batches.make(4)
    module = BERT().model(config)
    params = batches.filled(batches.param_shapes(BERT(), module.config, batch))

    def number(params):
        logits = BERT().apply(module, params, batch)
        return (logits["mlm"][..., : config.vocab_size] ** 2).sum() + (logits["nsp"] ** 2).sum()

    largest = jax.tree.map(lambda leaf: float(np.abs(leaf).max()), jax.jit(jax.grad(number))(params))
    # Softmax is invariant to a constant in all keys, so only the bias of the keys has no effect.
    assert largest["encoder"]["layers"]["attention"]["key"].pop("bias") < 1e-3
    assert min(jax.tree.leaves(largest)) > 1e-3
