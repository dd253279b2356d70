"""Stages that freeze parameters: what they keep, how training of it starts afterwards, and norms by layer."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.config.config import from_dict
from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model
from bertjax.runtime.errors import UserError
from bertjax.training.gradient_norms import gradient_norms
from bertjax.training.setup import Setup, compile_chunk, init_state
from bertjax.training.trace_checks import checked_setups
from tests import batches

NORM, KERNEL = "encoder/embeddings/norm/scale", "encoder/layers/intermediate/kernel"
SETTINGS = {
    "model": {"layers": 3, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16, "dropout": 0.0},
    "optimizer": {"warmup_steps": 0, "learning_rate": 1e-2, "clip_norm": 0.0},
    "runtime": {"mesh": {"data": 1, "fsdp": 1}, "gradient_norms": True},
}


def setup_of(*stages: dict, **settings) -> Setup:
    stages = [{"steps": 5, "seq_len": 16, "batch": 8} | stage for stage in stages]
    config = from_dict(SETTINGS | {"stages": stages} | settings)
    return checked_setups(config, batches.ENCODER.vocab_size, jax.devices()[:1])[0]


@pytest.fixture(scope="module")
def trained() -> list[tuple[dict, dict]]:
    """(state, metrics) at the start, after two steps that freeze layers 0 and 1 and the pooler, and after one more."""
    setup = setup_of({"frozen_layers": 2, "frozen": ["^encoder/pooler/"]}, {})
    state = init_state(setup)
    results = [(jax.device_get(state), {})]
    for stage, steps in ((0, 2), (1, 1)):
        draws = [batches.make(seed=10 * stage + step) for step in range(steps)]
        batch = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
        state, metrics = compile_chunk(setup, "bert", stage)(state, None, batch)
        results.append((jax.device_get(state), jax.device_get(metrics)))
    return results


def parts_of(state: dict) -> tuple[dict, dict, dict, dict]:
    """Params, both moments and counts, by path."""
    (adam,) = [part for part in state["opt_state"] if hasattr(part, "mu")]
    return tuple(flatten_dict(tree, sep="/") for tree in (state["params"], adam.mu, adam.nu, adam.count))


@pytest.mark.slow
def test_what_a_stage_freezes_does_not_change(trained):
    (params, *_), (after, mu, nu, counts) = (parts_of(trained[index][0]) for index in (0, 1))
    for path in params:
        is_frozen = path.startswith(("encoder/embeddings/", "encoder/pooler/"))
        frozen = np.s_[:2] if path.startswith("encoder/layers/") else np.s_[...] if is_frozen else np.s_[:0]
        if params[path].ndim:
            np.testing.assert_array_equal(after[path][frozen], params[path][frozen], err_msg=path)
            assert not mu[path][frozen].any() and not nu[path][frozen].any(), path
    assert counts[NORM] == counts["encoder/pooler/kernel"] == 0
    assert counts["heads/nsp/classifier/kernel"] == 2
    assert counts[KERNEL].ravel().tolist() == [0, 0, 2]
    assert (after[KERNEL][2] != params[KERNEL][2]).all()


@pytest.mark.slow
def test_norms_by_layer_add_up_and_are_zero_where_frozen(trained):
    for index, zero in ((1, 3), (2, 0)):
        metrics = trained[index][1]
        norms = {name: values for name, values in metrics.items() if name.startswith("grad_norm/")}
        assert norms.keys() == {
            *(f"grad_norm/encoder/layers/{layer}" for layer in range(3)),
            *(f"grad_norm/{group}" for group in ("encoder/embeddings", "encoder/pooler", "heads/mlm", "heads/nsp")),
        }
        total = np.sqrt(sum(values**2 for values in norms.values()))
        np.testing.assert_allclose(total, metrics["gradient_norm"], rtol=1e-5)
        frozen = [name for name, values in norms.items() if not values.any()]
        assert len(frozen) == (4 if zero else 0), frozen


def test_norms_are_those_of_the_definition():
    draw = np.random.default_rng(0)
    own, shared = draw.normal(size=(4, 3, 2)), draw.normal(size=(2, 5))
    head = draw.normal(size=7)
    gradient = {"encoder": {"layers": {"own": own, "shared": shared}}, "heads": {"a": {"kernel": head}}}
    gradient["generator"] = {"encoder": {"layers": {"own": shared}}}
    norms = gradient_norms(gradient, Model(EncoderConfig(layers=4), {}, EncoderConfig(layers=2)))
    expected = {f"grad_norm/encoder/layers/{layer}": (own[layer] ** 2).sum() for layer in range(4)}
    expected["grad_norm/encoder/layers/1"] += (shared[0] ** 2).sum()  # a row of two layers counts in the second
    expected["grad_norm/encoder/layers/3"] += (shared[1] ** 2).sum()
    expected |= {f"grad_norm/generator/encoder/layers/{layer}": (shared[layer] ** 2).sum() for layer in range(2)}
    expected["grad_norm/heads/a"] = (head**2).sum()
    assert norms.keys() == expected.keys()
    for name, square in expected.items():
        np.testing.assert_allclose(norms[name], np.sqrt(square), rtol=1e-5)


@pytest.mark.parametrize(
    "stage, message",
    [
        ({"frozen": ["embedings/"]}, "stages.0.frozen.0='embedings/' matches no parameter; the nearest paths are "),
        ({"frozen": ["("]}, r"stages.0.frozen.0='(' is not a regular expression"),
        ({"frozen_layers": 4}, "stages.0.frozen_layers=4 exceeds the 3 layers of the encoder; lower it, 3 freezes"),
        (
            {"frozen_layers": 3, "frozen": ["heads/", "pooler/"]},
            "stages.0.frozen=['heads/', 'pooler/'] with frozen_layers=3 leaves no parameter to train; freeze fewer",
        ),
    ],
)
def test_stages_that_do_not_fit_are_refused(stage, message):
    with pytest.raises(UserError) as error:
        setup_of(stage, {})
    assert str(error.value).startswith(message)
