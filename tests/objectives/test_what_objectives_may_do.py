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

import bertjax
from bertjax import config_file, export
from bertjax.config import Config, from_dict, to_dict
from bertjax.data.pipeline import LocalBatches
from bertjax.errors import Untrusted, UserError
from bertjax.export import Export
from bertjax.interop import huggingface
from bertjax.opening import SavedModel
from bertjax.training.feeds import Feeds
from bertjax.training.program import Program
from bertjax.training.step import StepContext, gradients
from tests import batches
from tests.interop import models
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


SEGMENTS = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
COLUMNS = np.arange(10)
SEES = {
    "prefix": (SEGMENTS == 0) | ((SEGMENTS[:, None] == 1) & (COLUMNS[:, None] >= COLUMNS)),
    "mylab.blocks:blocks": COLUMNS[:, None] // 4 >= COLUMNS // 4,
}


@pytest.fixture(scope="module", params=SEES)
def directed(request, mylab, tmp_path_factory):
    """The direction and the folder of an export of the prefix objective."""
    tokens = models.trained()
    config = config_of({"kind": "mylab.prefix:PrefixLM"}, model=MODEL | {"direction": request.param})
    encoder, objective = config.encoder(tokens.vocab_size, "cpu"), config.task.objective
    shapes = batches.param_shapes(objective, dataclasses.replace(encoder, dropout=0.0))
    folder = tmp_path_factory.mktemp("directed")
    export.write(folder, Export(to_dict(config), encoder, batches.filled(shapes), tokens, {}))
    return request.param, folder


def test_a_loaded_encoder_sees_what_the_direction_shows(directed):
    """By derivatives: the position table has a row for each token of an example of ten."""
    direction, folder = directed
    encoder, params, _ = bertjax.load(folder)

    def hidden_T(position_TD):
        embeddings = params["embeddings"] | {"position": position_TD}
        hidden_BTD = encoder.apply({"params": params | {"embeddings": embeddings}}, 7 + COLUMNS[None], SEGMENTS[None])
        return jnp.einsum("td,d->t", hidden_BTD.hidden[0], jnp.sin(jnp.arange(16)))

    derivatives_TTD = jax.jit(jax.jacrev(hidden_T))(jnp.asarray(params["embeddings"]["position"]))
    sees_TT = np.abs(derivatives_TTD).sum(axis=-1)[:, :10] > 0
    np.testing.assert_array_equal(sees_TT, np.broadcast_to(SEES[direction], (10, 10)))


def test_what_opens_the_export_has_its_direction_or_refuses_it(directed, tmp_path):
    direction, folder = directed
    recipe, sizes = "configs/finetune/glue.py:MRPC", [f"init_from={folder}", "stages.0.seq_len=32"]
    assert config_file.load(recipe, sizes).model.direction == direction
    with pytest.raises(UserError, match="^the model has model.direction=.* computes 'bidirectional' only"):
        huggingface.write(tmp_path, SavedModel(folder).export)
    assert SavedModel(folder).config.model.direction == direction
    if ":" not in direction:
        return
    del sys.modules["mylab.blocks"]
    with pytest.raises(Untrusted, match="^model.direction='mylab.blocks:blocks' asks to import .* import the module"):
        bertjax.load(folder)
    with pytest.raises(Untrusted, match="^init_from has .*; if you trust it, add --config.model.direction=mylab.bl"):
        config_file.load(recipe, sizes)
    assert config_file.load(recipe, [*sizes, f"model.direction={direction}"]).model.direction == direction
    assert SavedModel(folder, trust_code=True).export.encoder.direction == direction


def test_a_wrong_direction_is_one_line():
    for direction, message in {
        "left": "^model.direction='left' is unknown; choose one of bidirectional, left_to_right, prefix, or name",
        "mylab.blocks:block": "^model.direction='mylab.blocks:block' cannot be used: .* has no function 'block'",
        "mylab.none:blocks": "^model.direction='mylab.none:blocks' cannot be imported: .* PYTHONPATH",
    }.items():
        with pytest.raises(UserError, match=message):
            config_of({"kind": "mylab.prefix:PrefixLM"}, model=MODEL | {"direction": direction})
    with pytest.raises(UserError, match="set model.direction=prefix"):
        module("prefix").PrefixLM().heads(batches.ENCODER)


def test_only_tokens_after_the_prefix_are_predicted(store):
    batch = batches_of(config_of({"kind": "mylab.prefix:PrefixLM"}, model=MODEL | {"direction": "prefix"}), store)(0)
    is_predicted_BT = np.roll(batch["clm_weights_BK"], 1, axis=1) > 0
    assert np.all(batch["segments_BT"][is_predicted_BT] == 1) and is_predicted_BT.sum() > 50
    np.testing.assert_array_equal(
        batch["tokens_BT"][is_predicted_BT], np.roll(batch["clm_labels_BK"], 1, 1)[is_predicted_BT]
    )
