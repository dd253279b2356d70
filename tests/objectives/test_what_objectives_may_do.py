"""The page on what an objective may do: its code is used as it is printed, as modules outside of the repository."""

import dataclasses
import functools
import importlib
import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import Config, from_dict
from bertjax.data.pipeline import LocalBatches
from bertjax.training.feeds import Feeds
from bertjax.training.program import Program
from bertjax.training.step import StepContext, gradients
from tests import batches
from tests.training import trainer

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "what_objectives_may_do.md"
MODEL = {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 32, "dropout": 0.0}


@pytest.fixture(scope="module", autouse=True)
def mylab(tmp_path_factory):
    """The package `mylab` with the modules of the page."""
    folder = tmp_path_factory.mktemp("lab")
    for name, code in re.findall(r"```python\n# (mylab/\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


def module(name: str) -> types.ModuleType:
    return importlib.import_module(f"mylab.{name}")


def config_of(objective: dict, examples: str = "segment_pairs", **settings) -> Config:
    """A run of an objective of the page."""
    task = {"objective": objective, "examples": {"kind": examples}}
    stages = [{"steps": 8, "seq_len": 32, "batch": 8}]
    run = {"model": MODEL, "tasks": {"mine": task}, "stages": stages, "optimizer": {"warmup_steps": 0}}
    return from_dict(run | settings, trust_code=True)


def batches_of(config: Config, store) -> LocalBatches:
    program = Program(config, store.tokenizer.vocab_size, tuple(jax.devices()[:1]))
    program.check()
    return LocalBatches(program.timetable.at, Feeds(config, store).train, (0,), 1)


def context_of(objective, **settings) -> StepContext:
    return dataclasses.replace(trainer.context(**settings), objective=objective)


def test_a_masking_rate_follows_the_step(store):
    annealed = {"kind": "mylab.annealed:Annealed", "masking": {"rate": 0.4}, "last_rate": 0.1, "fall_steps": 4}
    config = config_of(annealed)
    make = batches_of(config, store)

    def rate(batch: dict) -> float:
        return batch["mlm_weights_BK"].sum() / (batch["examples_BT"] > 0).sum()

    rates = [rate(make(step)) for step in range(6)]
    assert rates[0] > 0.3 > rates[2] > 0.2 > 0.13 > rates[4] and rates[5] < 0.13
    batches.assert_equal(make(3), batches_of(config, store)(3))  # a run that resumes reads the same batch
    assert rate(Feeds(config, store).heldout["mine"].batch(np.arange(16))) < 0.13


def test_a_coefficient_follows_the_step_with_micro_batches_too():
    """At each step the gradient is that of a constant coefficient of the same value."""
    annealed = module("annealed").Annealed(fall_steps=4)

    @dataclasses.dataclass(frozen=True)
    class Constant(type(annealed)):
        factor: float = 1.0

        def coefficients_at(self, step):
            return {"nsp": self.factor}

    batch, plain = batches.make(), trainer.context()
    params = batches.filled(batches.param_shapes(plain.objective, plain.model.config, batch))
    for micro_tokens in (0, 32):
        at = jax.jit(functools.partial(gradients, context_of(annealed, micro_tokens=micro_tokens)))
        for step in (1, 7):
            expected = jax.jit(functools.partial(gradients, context_of(Constant(factor=max(0.0, 1 - step / 4)))))
            gradient, losses, *_ = at(params, None, batch, jnp.int32(step))
            other, same, *_ = expected(params, None, batch, jnp.int32(0))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient, other)
            assert losses["nsp"] > 0
            np.testing.assert_allclose(losses["nsp"], same["nsp"], rtol=1e-5)
