"""The gradients of LoRA's factors on eight simulated devices; prints, as JSON, how they differ from those of one."""

import dataclasses
import functools
import json

import jax
import numpy as np

from bertjax.training.config import MeshConfig
from bertjax.training.model_params import ModelParams
from bertjax.training.optim.freezing import Freezing
from bertjax.training.step import gradients
from tests import batches
from tests.training.test_lora import CONFIG, FROZEN, with_factors
from tests.training.trainer import make_step

LAYOUTS = {
    "replicated": {"mesh": MeshConfig(8, 1, 1), "strategy": "replicated"},
    "gathered, data x fsdp": {"mesh": MeshConfig(2, 4, 1), "strategy": "gathered"},
    "fsdp, data x fsdp x tensor": {"mesh": MeshConfig(2, 2, 2), "strategy": "fsdp"},
}


def factors_of(**choices) -> np.ndarray:
    """Return the gradients of all factors of one batch as one vector.

    The factors have a deviation of 0.1. With 1, rounding alone is 3e-5 of the gradients of the merged model.
    """
    params = with_factors()
    params = params | {"lora": jax.tree.map(lambda leaf: 0.1 * leaf, params["lora"])}
    to_model_params = ModelParams(CONFIG, freezing=Freezing(FROZEN))
    step = dataclasses.replace(make_step(dropout=0.1, **choices), model_params=to_model_params)
    gradient, *_ = jax.jit(functools.partial(gradients, step))(params, None, batches.make(), 0)
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(gradient["lora"])])


def main() -> None:
    one = factors_of()
    many = {name: factors_of(**choices) for name, choices in LAYOUTS.items()}
    print(json.dumps({n: float(np.linalg.norm(grad - one) / np.linalg.norm(one)) for n, grad in many.items()}))


if __name__ == "__main__":
    main()
