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
from bertjax.data.pipeline import LocalBatches
from bertjax.interop import huggingface
from bertjax.models import directions
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import Untrusted, UserError
from bertjax.training.feeds import Feeds
from bertjax.training.init_from import Source, state_from
from bertjax.training.program import Program
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.workdir import Workdir
from bertjax.training.step import Step, gradients, train_step
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
    program = Program(config, store.tokenizer.vocab_size, tuple(jax.devices()[:1]))
    program.check()
    return LocalBatches(program.timetable.at, Feeds(config, store).train, (0,), 1)


def step_of(objective, **settings) -> Step:
    step = trainer.make_step(**settings)
    return dataclasses.replace(step, loss=dataclasses.replace(step.loss, objective=objective))


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


def test_a_stage_has_its_masking_rate(store):
    """The shapes of a stage are those of its rate, which a compiled step needs; evaluations have the task's own."""
    stages = [{"steps": 2, "seq_len": 32, "batch": 8, "masking_rate": 0.4}, {"steps": 2, "seq_len": 32, "batch": 8}]
    config = config_of({"kind": "mylab.mixed:Mixed"}, "full_sentences", stages=stages)
    make = batches_of(config, store)
    program = Program(config, store.tokenizer.vocab_size, tuple(jax.devices()[:1]))
    shares = []
    for step in range(4):
        batch = make(step)
        expected = program.task.abstract_batches(config.stages[step // 2], 1)
        assert batch["mlm_weights_BK"].shape == expected["mlm_weights_BK"].shape[1:]
        shares.append(batch["mlm_weights_BK"].sum() / (batch["examples_BT"] > 0).sum())
    assert min(shares[:2]) > 0.3 and max(shares[2:]) < 0.2
    plain = batches_of(config_of({"kind": "mylab.mixed:Mixed"}, "full_sentences"), store)
    batches.assert_equal(make(3), plain(3))  # order, places and masks are those of a run without the setting
    heldout = Feeds(config, store).heldout["mine"].batch(np.arange(8))
    assert heldout["mlm_weights_BK"].sum() / (heldout["examples_BT"] > 0).sum() < 0.2


@pytest.mark.parametrize(
    "kind, rate, message",
    [
        ("causal", 0.3, "^stages.0.masking_rate=0.3 has no effect on objective.kind=causal, which has no masking"),
        ("mlm", 1.5, "^stages.0, tasks.mine: masking.rate=1.5 must be above 0 and below 1"),
    ],
)
def test_a_masking_rate_that_cannot_be_is_refused(kind, rate, message):
    with pytest.raises(UserError, match=message):
        config_of({"kind": kind}, stages=[{"steps": 2, "seq_len": 32, "batch": 8, "masking_rate": rate}])


def test_a_task_without_masking_ignores_the_rate_of_its_stage(store):
    """GPT-BERT lowers the rate of its masked steps, and its causal steps are those of a run without the setting."""
    tasks = {
        "masked": {"objective": {"kind": "masked_next_token"}, "examples": {"kind": "full_sentences"}},
        "causal": {"objective": {"kind": "next_token"}, "examples": {"kind": "full_sentences"}},
    }
    stage = {"steps": 4, "seq_len": 32, "batch": 8}
    config = config_of({"kind": "mlm"}, tasks=tasks, stages=[stage | {"masking_rate": 0.4}, stage])
    make, plain = batches_of(config, store), batches_of(config_of({"kind": "mlm"}, tasks=tasks, stages=[stage]), store)
    program = Program(config, store.tokenizer.vocab_size, tuple(jax.devices()[:1]))
    shares = []
    for step in range(4):
        batch, name = make(step), program.timetable.at(step).task
        expected = program.tasks[name].abstract_batches(config.stages[0], 1)
        [key] = [key for key in batch if key.endswith("_weights_BK")]
        assert batch[key].shape == expected[key].shape[1:]
        if name == "causal":
            batches.assert_equal(batch, plain(step))
        else:
            shares.append(batch[key].sum() / (batch["examples_BT"] > 0).sum())
    assert len(shares) == 2 and min(shares) > 0.3


@functools.cache
def momentum(micro_tokens: int = 0, devices: int = 1, strategy: str = "auto") -> tuple[Program, Step]:
    """The run of the momentum objective on hand-made batches of 16 tokens."""
    config = config_of(
        {"kind": "mylab.momentum:Momentum", "decay": 0.75, "queue": 12},
        "full_sentences",
        stages=[{"steps": 8, "seq_len": 16, "batch": 8}],
        runtime={"micro_tokens": micro_tokens, "max_skipped": 2, "strategy": strategy},
    )
    program = Program(config, batches.ENCODER.vocab_size, tuple(jax.devices()[:devices]))
    program.check()
    return program, program.task.step


def after(micro_tokens: int, *steps: dict, devices: int = 1, strategy: str = "auto") -> list[dict]:
    """The states at step 0 and after each batch."""
    program, parts = momentum(micro_tokens, devices, strategy)
    train = jax.jit(functools.partial(train_step, parts))
    states = [program.init_state()]
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
def test_several_devices_have_the_slots_of_one():
    """The queue holds the rows of the global batch in their order, whichever device computes them."""
    results = runs.on_devices(8, "tests.objectives.slots_on_devices")
    assert len(results) == 3
    for differences in results.values():
        assert differences["teacher"] < 1e-5 > differences["queue"]


def test_a_step_that_is_skipped_leaves_slots_as_they_are():
    bad = batches.make()
    bad = bad | {"mlm_weights_BK": np.where(bad["mlm_weights_BK"] > 0, np.nan, 0).astype(np.float32)}
    before, skipped = after(0, bad)
    assert skipped["skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, skipped["slots"], before["slots"])


def test_slots_are_sharded_like_params_and_absent_without_an_objective_that_has_them():
    state = momentum()[0].abstract_state
    specs, own = (
        jax.tree.map(lambda leaf: leaf.sharding.spec, tree)
        for tree in (state["params"]["encoder"], state["slots"]["mine"]["teacher"]["encoder"])
    )
    assert specs == own and state["slots"]["mine"]["queue"].sharding.spec == jax.sharding.PartitionSpec()
    config = config_of({"kind": "mlm"}, "full_sentences")
    plain = Program(config, batches.ENCODER.vocab_size, tuple(jax.devices()[:1]))
    assert plain.abstract_state.keys() == {"step", "params", "opt_state", "skipped"}


def test_slots_of_other_shapes_are_refused_before_the_first_step():
    @dataclasses.dataclass(frozen=True)
    class Growing(module("momentum").Momentum):
        def update_slots(self, slots, params, kept):
            return slots | {"queue": jnp.concatenate([slots["queue"], kept["keys_BD"]])}

    config = momentum()[0].config
    tasks = {"mine": dataclasses.replace(config.task, objective=Growing())}
    with pytest.raises(UserError, match="update_slots.. changes queue; return arrays of the same shapes and dtypes"):
        Program(dataclasses.replace(config, tasks=tasks), 100, tuple(jax.devices()[:1])).check()


@pytest.mark.slow
def test_a_run_with_slots_resumes_bit_for_bit_and_its_export_has_its_scores(flags, tmp_path):
    run = [
        *flags,
        "--config.tasks.bert.objective.kind=mylab.momentum:Momentum",
        "--config.tasks.bert.objective.queue=12",
        "--config.tasks.bert.examples.kind=full_sentences",
        "--config.stages=[{'steps': 4, 'seq_len': 32, 'batch': 8, 'masking_rate': 0.3},"
        "{'steps': 4, 'seq_len': 32, 'batch': 8}]",
    ]
    assert runs.call(*run, f"--workdir={tmp_path / 'whole'}") == 0
    runs.train_here(run, tmp_path / "parted", at_edge=lambda step: True if step == 3 else None)
    assert runs.call(*run, f"--workdir={tmp_path / 'parted'}") == 0
    trees = [Checkpoints(Workdir(tmp_path / name).checkpoints).restore(8).tree for name in ("whole", "parted")]
    assert np.any(trees[0]["slots"]["bert"]["queue"])
    jax.tree.map(np.testing.assert_array_equal, *trees)
    assert runs.weights(tmp_path / "whole") == runs.weights(tmp_path / "parted")
    losses = [record["train/mlm_loss"] for record in runs.records(tmp_path / "whole" / "metrics.jsonl")]
    assert len(losses) == 8
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())["eval"]
    assert runs.score_export(tmp_path / "whole")["eval"] == pytest.approx(summary, rel=1e-5)


@pytest.mark.slow
def test_embeddings_in_the_place_of_tokens():
    """A share of 0 is the objective without mixing; of 1, that of the rows in reverse order; a half is neither."""
    objective, plain = module("mixed").Mixed(share=0.0), MaskedLM()
    model, batch = plain.model(batches.ENCODER), batches.make()
    params = batches.filled(batches.param_shapes(plain, batches.ENCODER))

    def logits(objective, batch):
        return jax.jit(lambda batch: objective.apply(model, params, batch)["mlm"])(batch)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(logits(objective, batch), logits(plain, batch))
    other = batch | {name: batch[name][::-1] for name in ("tokens_BT", "positions_BT", "segments_BT")}
    mixed = {share: logits(module("mixed").Mixed(share=share), batch) for share in (0.5, 1.0)}
    close(mixed[1.0], logits(plain, other))
    assert np.abs(mixed[0.5] - mixed[1.0]).max() > 0.1 < np.abs(mixed[0.5] - logits(plain, batch)).max()
    assert batches.param_shapes(objective, batches.ENCODER) == batches.param_shapes(plain, batches.ENCODER)


def test_slots_start_from_the_weights_of_init_from():
    program, _ = momentum()
    path = "encoder/embeddings/position"
    values = np.full((32, 16), 0.5, np.float32)
    state = state_from(Source({path: values}, ""), program)
    teacher = state["slots"]["mine"]["teacher"]["encoder"]
    np.testing.assert_array_equal(teacher["embeddings"]["position"], values)
    jax.tree.map(np.testing.assert_array_equal, teacher, state["params"]["encoder"])
