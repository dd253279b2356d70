"""The page on what an objective may do: its code is used as it is printed, as modules outside of the repository."""

import dataclasses
import functools
import importlib
import json
import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.config import config_file, export
from bertjax.config.config import Config, from_dict, to_dict
from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.data.masking import TokenMasking
from bertjax.data.pipeline import LocalBatches
from bertjax.interop import huggingface
from bertjax.models import directions
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import Untrusted, UserError
from bertjax.training.feeds import Feeds
from bertjax.training.results.heldout_task import heldout_task
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.workdir import Workdir
from bertjax.training.setup import Setup, init_state, make_step, make_timetable
from bertjax.training.step import Step, gradients, train_step
from bertjax.training.trace_checks import checked_setups
from tests import batches, runs
from tests.interop import models
from tests.training import trainer

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "what_objectives_may_do.md"
MODEL = {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 32, "dropout": 0.0}


def write_mylab(folder: Path) -> None:
    """Write the package `mylab` with the modules of the page."""
    for name, code in re.findall(r"```python\n# (mylab/\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)


@pytest.fixture(scope="module", autouse=True)
def mylab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    write_mylab(folder)
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
    checked_setups(config, store.tokenizer.vocab_size, jax.devices()[:1])
    return LocalBatches(make_timetable(config).at, Feeds(config, store).train, (0,), 1)


def step_of(objective, **settings) -> Step:
    step = trainer.make_step(**settings)
    return dataclasses.replace(step, loss=dataclasses.replace(step.loss, objective=objective))


@pytest.mark.slow
def test_a_loss_weight_follows_the_step_with_micro_batches_too():
    """At each step the gradient is that of a constant loss weight of the same value."""
    annealed = module("annealed").Annealed(fall_steps=4)

    @dataclasses.dataclass(frozen=True)
    class Constant(type(annealed)):
        constant: float = 1.0

        def loss_weights(self, terms, step):
            return {"nsp": self.constant}

    batch, plain = batches.make(), trainer.make_step()
    params = batches.filled(batches.param_shapes(plain.loss.objective, plain.loss.model.config, batch))
    expected = {}
    for step in (1, 7):
        constant = step_of(Constant(constant=max(0.0, 1 - step / 4)))
        expected[step] = jax.jit(functools.partial(gradients, constant))(params, None, batch, jnp.int32(0))
    for micro_tokens in (0, 32):
        at = jax.jit(functools.partial(gradients, step_of(annealed, micro_tokens=micro_tokens)))
        for step, (other, same, *_) in expected.items():
            gradient, losses, *_ = at(params, None, batch, jnp.int32(step))
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


def test_what_opens_the_export_has_its_direction_or_refuses_it(directed, tmp_path, monkeypatch):
    direction, folder = directed
    recipe, sizes = "configs/finetune/glue.py:MRPC", [f"init_from={folder}", "stages.0.seq_len=32"]
    assert config_file.load(recipe, sizes).model.direction == direction
    with pytest.raises(UserError, match="^the model has model.direction=.* computes 'bidirectional' only"):
        huggingface.write(tmp_path, SavedModel(folder).export)
    assert SavedModel(folder).config.model.direction == direction
    if ":" not in direction:
        return
    monkeypatch.setattr(directions, "_trusted", set())  # as in a new process, which has imported the module
    with pytest.raises(Untrusted, match="^model.direction='mylab.blocks:blocks' names a function, which runs the code"):
        bertjax.load(folder)
    with pytest.raises(Untrusted, match="^init_from has .*; if you trust it, add --config.model.direction=mylab.bl"):
        config_file.load(recipe, sizes)
    assert config_file.load(recipe, [*sizes, f"model.direction={direction}"]).model.direction == direction
    opened = SavedModel(folder, trust_code=True)
    assert opened.export.encoder.direction == direction and direction in opened.config.foreign_kinds


def test_a_wrong_direction_is_one_line():
    for direction, message in {
        "left": "^model.direction='left' is unknown; choose one of bidirectional, left_to_right, prefix, or name",
        "mylab.blocks:block": "^model.direction='mylab.blocks:block' cannot be used: .* has no function 'block'",
        "mylab.blocks:jnp": "^model.direction='mylab.blocks:jnp' cannot be used: .* has no function 'jnp'",
        "bertjax.nano:step": "^model.direction='bertjax.nano:step' names a module of Python or of bertjax",
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


@pytest.mark.parametrize(
    "kind, stage, message",
    [
        ("causal", {"masking_rate": 0.3}, "^stages.0.masking_rate=0.3 has no effect on objective.kind=causal, which"),
        ("mlm", {"masking_rate": 1.5}, "^stages.0, tasks.mine: masking.rate=1.5 must be above 0 and below 1"),
        ("causal", {"masking": {"kind": "spans"}}, "^stages.0.masking.kind=spans has no effect on objective"),
        ("permutation", {"masking": {"kind": "tokens"}}, "^stages.0, tasks.mine: masking.mask=0.8 and masking.random"),
        ("mlm", {"masking": {"rate": 0.3}}, "^stages.0.masking has no kind; add --config.stages.0.masking.kind=KIND"),
        ("mlm", {"masking": {"kind": "spans"}, "masking_rate": 0.3}, "^stages.0.masking_rate=0.3 is not used beside s"),
    ],
)
def test_a_masking_of_a_stage_that_cannot_be_is_refused(kind, stage, message):
    with pytest.raises(UserError, match=message):
        config_of({"kind": kind}, stages=[{"steps": 2, "seq_len": 32, "batch": 8, **stage}])


@dataclasses.dataclass(frozen=True)
class Restless(MaskedLM):
    """Features that are another draw each time they are asked for."""

    def features(self, examples, draw):
        return super().features(examples, dataclasses.replace(draw, seed=int(np.random.randint(1 << 30))))


@dataclasses.dataclass(frozen=True)
class RestlessMasking(TokenMasking):
    """A choice that is another draw each time it is asked for."""

    def choose(self, placed, draw):
        return super().choose(placed, dataclasses.replace(draw, seed=int(np.random.randint(1 << 30))))


def test_features_that_draw_outside_of_their_draw_are_refused(store):
    stages = [{"steps": 8, "seq_len": 32, "batch": 8}]
    later = {"stages": [*stages, stages[0] | {"masking": {"kind": f"{__name__}:RestlessMasking"}}]}
    for config in (config_of({"kind": f"{__name__}:Restless"}), config_of({"kind": "mlm"}, **later)):
        with pytest.raises(UserError, match="^tasks.mine: features.. returns another 'tokens_BT' for the same rows"):
            Feeds(config, store).plan()
    Feeds(config_of({"kind": "mlm"}, stages=[{"epochs": 1.0, "seq_len": 32, "masking_rate": 0.3}]), store).plan()


@dataclasses.dataclass(frozen=True)
class Unbound(TokenMasking):
    """A masking that fails before its store is there."""

    def choose(self, placed, draw):
        raise TypeError("no counts yet")


def test_an_error_in_a_masking_names_the_masking():
    config = config_of({"kind": "mlm"}, stages=[{"seq_len": 32, "masking": {"kind": f"{__name__}:Unbound"}}])
    with pytest.raises(UserError, match=f"^tasks.mine: masking.kind='{__name__}:Unbound'.*choose"):
        checked_setups(config, 400, jax.devices()[:1])


def test_a_stage_trains_with_its_own_masking_and_evaluations_ask_what_the_objective_asks(store, tmp_path):
    """So runs with two maskings are compared on the same held-out tokens."""
    stages = [{"steps": 8, "seq_len": 32, "batch": 8}]
    (tmp_path / "phrases.txt").write_text("Ice age\n")
    own = {"masking": {"kind": "phrases", "rate": 0.4, "lexicon": str(tmp_path / "phrases.txt")}}
    plain, phrases = (config_of({"kind": "mlm"}, stages=[stages[0] | change]) for change in ({}, own))
    assert not heldout_task(to_dict(plain), {}, "mlm_loss").changes(heldout_task(to_dict(phrases), {}, "mlm_loss"))
    [(before, asked), (after, asked_too)] = (
        (feeds.train["mine", 32], feeds.heldout["mine"].batch(np.arange(8)))
        for feeds in (Feeds(plain, store), Feeds(phrases, store))
    )
    jax.tree.map(np.testing.assert_array_equal, asked, asked_too)
    predicted = [feed.batch(np.arange(64), step=0)["mlm_weights_BK"].sum() for feed in (before, after)]
    assert predicted[1] / predicted[0] == pytest.approx(0.4 / 0.15, rel=0.1)
    assert Feeds(plain, store).read == {} and list(Feeds(phrases, store).read) == ["stages.0/lexicon"]


@functools.cache
def momentum(micro_tokens: int = 0, devices: int = 1, strategy: str = "auto") -> tuple[Setup, Step]:
    """The run of the momentum objective on hand-made batches of 16 tokens."""
    config = config_of(
        {"kind": "mylab.momentum:Momentum", "decay": 0.75, "queue": 12},
        "full_sentences",
        stages=[{"steps": 8, "seq_len": 16, "batch": 8}],
        runtime={"micro_tokens": micro_tokens, "max_skipped": 2, "strategy": strategy},
    )
    [setup] = checked_setups(config, batches.ENCODER.vocab_size, jax.devices()[:devices])
    return setup, make_step(setup, "mine")


def after(micro_tokens: int, *steps: dict, devices: int = 1, strategy: str = "auto") -> list[dict]:
    """The states at step 0 and after each batch."""
    setup, parts = momentum(micro_tokens, devices, strategy)
    train = jax.jit(functools.partial(train_step, parts))
    states = [init_state(setup)]
    for batch in steps:
        states.append(train(states[-1], None, batch)[0])
    return jax.device_get(states)


@pytest.mark.slow
def test_slots_follow_the_params_and_the_batches():
    first, second = batches.make(seed=0), batches.make(seed=1)
    start, one, two = after(0, first, second)
    teacher = start["params"]["encoder"]
    for state in (one, two):
        teacher = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, teacher, state["params"]["encoder"])
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
        jax.tree.map(close, state["slots"]["mine"]["teacher"]["encoder"], teacher)
    objective, model = momentum()[1].loss.objective, momentum()[1].loss.model

    def keys(encoder: dict, batch: dict) -> np.ndarray:
        return objective.apply(model, start["params"] | {"encoder": encoder}, batch, method=objective.vectors)

    expected = [*keys(one["slots"]["mine"]["teacher"]["encoder"], second), *keys(start["params"]["encoder"], first)[:4]]
    np.testing.assert_allclose(two["slots"]["mine"]["queue"], expected, atol=1e-5)
    [_, other] = after(32, first)
    np.testing.assert_allclose(other["slots"]["mine"]["queue"], one["slots"]["mine"]["queue"], atol=1e-5)


@pytest.mark.slow
def test_a_run_with_slots_resumes_bit_for_bit_and_its_export_has_its_scores(flags, tmp_path):
    run = [
        *flags,
        "--config.tasks.bert.objective.kind=mylab.momentum:Momentum",
        "--config.tasks.bert.objective.queue=12",
        "--config.tasks.bert.examples.kind=full_sentences",
        "--config.stages=[{'steps': 4, 'seq_len': 32, 'batch': 8, 'masking': {'kind': 'spans', 'rate': 0.3}},"
        "{'steps': 4, 'seq_len': 32, 'batch': 8}]",
    ]
    assert runs.call(*run, f"--workdir={tmp_path / 'whole'}") == 0
    runs.train_here(run, tmp_path / "parted", at_edge=lambda step: True if step == 3 else None)
    assert runs.call(*run, f"--workdir={tmp_path / 'parted'}") == 0
    trees = [Checkpoints(Workdir(tmp_path / name).checkpoints).restore(8).tree for name in ("whole", "parted")]
    assert np.any(trees[0]["slots"]["bert"]["queue"])
    jax.tree.map(np.testing.assert_array_equal, *trees)
    assert runs.weights(tmp_path / "whole") == runs.weights(tmp_path / "parted")
    assert SavedModel(tmp_path / "whole").export.numbers["steps"] == 8, "a run opens without its maskings"
    losses = [record["train/mlm_loss"] for record in runs.records(tmp_path / "whole" / "metrics.jsonl")]
    assert len(losses) == 8
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())["eval"]
    assert runs.score_export(tmp_path / "whole")["eval"] == pytest.approx(summary, rel=1e-5)
