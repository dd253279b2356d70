"""What a run computes with: its encoder, mesh, models, optimizer and compiled steps.

    encoder = resolve_encoder(config, vocab_size)
    setup = make_setup(config, encoder)
    state = init_state(setup)
    state, metrics = compile_chunk(setup, task, stage)(state, init_frozen([setup])[setup][task], batches)

All of it follows from the configuration, the vocabulary size and the devices; no corpus is needed. To compute shapes
and to compile, abstract devices are enough, such as those that describe an absent TPU.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config.config import Config, Task
from bertjax.data.pipeline import filled_up
from bertjax.models.config import EncoderConfig
from bertjax.models.fixed import start_at_neighbors
from bertjax.models.kernel_choice import choose_attention
from bertjax.models.model import Model
from bertjax.models.vocabulary import count_parameters
from bertjax.objectives.base import OBJECTIVES, Objective
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.slots import SlotValues, slots_of
from bertjax.objectives.wrapper import Taught
from bertjax.runtime.devices import BATCH_AXES
from bertjax.runtime.errors import UserError
from bertjax.training import state as training_state
from bertjax.training.compression import add_scores
from bertjax.training.lora import add_factors
from bertjax.training.loss import Loss
from bertjax.training.model_params import ModelParams
from bertjax.training.optim.freezing import Freezing, frozen_in_stage
from bertjax.training.optim.optimizer import make_optimizer
from bertjax.training.parallel.sharding import (
    COUNT_RULES,
    ENCODER_RULES,
    HEAD_RULES,
    choose_strategy,
    fill_mesh,
    make_mesh,
    replicated,
    shardings,
    shardings_of,
)
from bertjax.training.parallel.strategy import Layout
from bertjax.training.param_paths import leaves_of, merge_params
from bertjax.training.schedules import learning_rate
from bertjax.training.shapes import batch_shapes
from bertjax.training.stages import Timetable, stage_at, warmup_segments
from bertjax.training.state import State
from bertjax.training.step import Step, train_chunk


def open_teachers(config: Config) -> Config:
    """Return the configuration with every objective's teacher opened. Teachers that are already open are kept.

    Raises:
      UserError: no teacher is named, its folder is not an export or is damaged, or unlabeled texts have no teacher.
    """
    tasks = {name: _with_teacher(task) for name, task in config.tasks.items()}
    if all(task is config.tasks[name] for name, task in tasks.items()):
        return config
    return dataclasses.replace(config, tasks=tasks)


def _with_teacher(task: Task) -> Task:
    objective = task.objective
    unlabeled = getattr(task.examples, "unlabeled", "")
    if unlabeled and not (isinstance(objective, Distilled) and any(loss.factor for loss in objective.losses.values())):
        raise UserError(
            f"examples.unlabeled={unlabeled} needs a teacher, which labels it; set objective.kind=distilled, "
            "objective.teacher and objective.losses"
        )
    if not isinstance(objective, Taught) or objective.bound_teacher is not None:
        return task
    if not objective.teacher:
        raise UserError(
            f"objective.kind={OBJECTIVES.kind_of(objective)} needs a teacher; set objective.teacher to an export folder"
        )
    # Reading the export now reveals a wrong folder before the corpus is prepared.
    bound = objective.bind_teacher(Teacher.read(objective.teacher))
    return dataclasses.replace(task, objective=cast(Objective, bound))


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What the stages with one encoder compute with.

    Attributes:
      config: the configuration; its teachers are open.
      encoder: the architecture, resolved for the vocabulary and the devices.
      layout: the mesh and the sharding of params on it.
      losses: {task: its objective and model}, in the order of the configuration.
      optimizer: turns gradients into updates, not yet scaled by the learning rate.
      idle: {task: paths of params that only other tasks train, such as their heads}.
      model_params: a function from (trained params, step) to the params that models run with.
      create_state: a function from a key to the state at step 0.
      shapes: shapes, dtypes and shardings of the state.
      jitted: functions that are compiled once for all their users, see `once`.
    """

    config: Config
    encoder: EncoderConfig
    layout: Layout
    losses: Mapping[str, Loss]
    optimizer: optax.GradientTransformation
    idle: Mapping[str, frozenset[str]]
    model_params: ModelParams
    create_state: Callable[[jax.Array], State]
    shapes: State
    jitted: dict[tuple, jax.stages.Wrapped] = dataclasses.field(default_factory=dict, repr=False)

    def once(self, make: Callable[[], jax.stages.Wrapped], *key: object) -> jax.stages.Wrapped:
        """Return what `make` returned at the first call with this key."""
        if key not in self.jitted:
            self.jitted[key] = make()
        return self.jitted[key]


def resolve_encoder(
    config: Config, vocab_size: int, devices: Sequence[jax.Device] = (), model: EncoderConfig | None = None
) -> EncoderConfig:
    """Return the architecture with its vocabulary size, and with all that the devices decide.

    Args:
      config: the configuration.
      vocab_size: V, the tokenizer's vocabulary size, without padding.
      devices: devices for the mesh; `jax.devices()` by default.
      model: the architecture, if it differs from the configured one, as in early stages.
    """
    device, runtime = (devices or jax.devices())[0], config.runtime
    own = config.encoder(vocab_size, device.platform)
    encoder = dataclasses.replace(model or own, vocab_size=vocab_size, execution=own.execution)
    attention = choose_attention(runtime.attention, encoder, device.platform, device.device_kind, runtime.mesh.tensor)
    return dataclasses.replace(encoder, execution=dataclasses.replace(encoder.execution, attention=attention))


def make_setup(config: Config, encoder: EncoderConfig, devices: Sequence[jax.Device] = ()) -> Setup:
    """Return what stages with an encoder compute with.

    Raises:
      UserError: a teacher cannot be opened, tasks have different params of one name, no sharding rule covers a
        parameter, or the devices do not divide its axes.
    """
    config = open_teachers(config)
    objectives = {name: task.objective for name, task in config.tasks.items()}
    # The sharding strategy depends on the number of params, and the models with which the run computes on the strategy.
    unsharded = {name: objective.model(encoder) for name, objective in objectives.items()}
    inits = {name: functools.partial(_init_params, config, name, model) for name, model in unsharded.items()}
    of_tasks = {name: jax.eval_shape(init, jax.random.key(0)) for name, init in inits.items()}
    layout = _make_layout(config, encoder, _united(of_tasks), list(devices) or jax.devices())
    losses = {name: _make_loss(config, name, encoder, layout) for name in objectives}
    trained = {name: frozenset(leaves_of(of_task)) for name, of_task in of_tasks.items()}
    idle = {name: frozenset().union(*trained.values()) - own for name, own in trained.items()}
    optimizer = _make_optimizer(config, any(idle.values()))
    steps = sum(stage.steps or 0 for stage in config.stages)
    model_params = ModelParams(config.lora, config.pruning, config.quantization, steps)

    def create_params(key: jax.Array) -> dict:
        return _united({name: _init_params(config, name, loss.model, key) for name, loss in losses.items()})

    create = training_state.new_state(create_params, optimizer, functools.partial(init_slots, losses, model_params))
    shapes = training_state.abstract_state(create, layout.mesh, layout.rules)
    return Setup(config, encoder, layout, losses, optimizer, idle, model_params, create, shapes)


def make_setups(config: Config, vocab_size: int, devices: Sequence[jax.Device] = ()) -> tuple[Setup, ...]:
    """Return the setup of each stage; stages with equal encoders have one in common.

    The last one is that of the finished model.

    Args:
      config: the configuration.
      vocab_size: V.
      devices: devices for the mesh; `jax.devices()` by default.

    Raises:
      UserError: see `make_setup`.
    """
    config = open_teachers(config)
    models = (config.model_at(stage) for stage in range(len(config.stages)))
    encoders = [resolve_encoder(config, vocab_size, devices, model) for model in models]
    made = {encoder: make_setup(config, encoder, devices) for encoder in dict.fromkeys(encoders)}
    return tuple(made[encoder] for encoder in encoders)


def setup_after(setups: Sequence[Setup], step: int) -> Setup:
    """Return the setup of the stage that trained the last of `step` steps."""
    stage, _ = stage_at(setups[-1].config.stages, max(step - 1, 0))
    return setups[stage]


def init_state(setup: Setup) -> State:
    """Return the state at step 0, sharded."""
    return training_state.init_state(setup.create_state, setup.shapes, setup.config.seed)


def init_slots(losses: Mapping[str, Loss], model_params: ModelParams, params: dict) -> dict[str, SlotValues]:
    """Return {task: slots at step 0} for tasks with slots, given the params of that step."""
    params = model_params(params, 0)
    slots = {name: slots_of(loss.objective, loss.own(params)) for name, loss in losses.items()}
    return {name: own for name, own in slots.items() if own}


# {setup: {task: the objective's frozen params on the devices, a teacher's, for example; None if it has none}}.
Frozen = Mapping[Setup, Mapping[str, dict | None]]


def init_frozen(setups: Iterable[Setup]) -> Frozen:
    """Return the frozen params of each setup; what several have in common is on the devices once."""
    host = {
        setup: {name: loss.objective.frozen_params(setup.encoder) for name, loss in setup.losses.items()}
        for setup in dict.fromkeys(setups)
    }
    copies: dict[tuple, jax.Array] = {}  # by the identity of arrays that `host` keeps
    return {
        setup: {name: put(setup, own, copies) for name, own in of_tasks.items()} for setup, of_tasks in host.items()
    }


def shapes_of_frozen(setup: Setup, task: str) -> dict | None:
    """Return shapes, dtypes and shardings of a task's frozen params."""
    objective, layout = setup.losses[task].objective, setup.layout
    return training_state.abstract_state(lambda _: objective.frozen_params(setup.encoder), layout.mesh, layout.rules)


def put(setup: Setup, params: dict | None, copies: dict[tuple, jax.Array] | None = None) -> dict | None:
    """Put host params on the mesh, sharded by the same rules as trained ones.

    Args:
      params: the params; None for none.
      copies: {(identity, sharding) of an array: its copy on the mesh}, to which new ones are added.
    """
    copies = {} if copies is None else copies

    def copy(leaf: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
        # Each process provides its own devices' shards; device_put would compare full arrays over all hosts.
        if (key := (id(leaf), sharding)) not in copies:
            copies[key] = jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)
        return copies[key]

    return jax.tree.map(copy, params, shardings(params, setup.layout.rules, setup.layout.mesh))


def merged(setup: Setup, state: State) -> dict:
    """Return an ordinary model's params: tables summed, LoRA merged, pruned, rounded."""
    to_model_params, layout = setup.model_params, setup.layout
    if to_model_params.is_identity(state["params"]):
        return state["params"]

    def merge() -> jax.stages.Wrapped:
        shapes = jax.eval_shape(to_model_params, setup.shapes["params"], 0)
        return jax.jit(to_model_params, out_shardings=shardings(shapes, layout.rules, layout.mesh))

    return setup.once(merge, "merged")(state["params"], state["step"])


def freezing_at(setup: Setup, stage: int) -> Freezing:
    """Return the parameters that the run or a stage freezes.

    Raises:
      UserError: a pattern of the stage matches no parameter, or the stage leaves no parameter to train.
    """
    config, params = setup.config, setup.shapes["params"]
    return frozen_in_stage(stage, config.stages[stage], params, config.frozen, setup.encoder.layers)


def make_step(setup: Setup, task: str, freezing: Freezing | None = None) -> Step:
    """Return the training step of a task.

    Args:
      freezing: what a stage freezes; by default, what the run freezes in all of them.
    """
    config, runtime = setup.config, setup.config.runtime
    freezing = freezing or Freezing(config.frozen, depth=setup.encoder.layers)
    # What only other tasks train is frozen in the steps of this one.
    freezing = dataclasses.replace(freezing, paths=freezing.paths | setup.idle[task])
    return Step(
        loss=setup.losses[task],
        optimizer=freezing.hold(setup.optimizer),
        learning_rate=learning_rate(config.optimizer.schedule, warmup_segments(config.stages, config.optimizer)),
        model_params=dataclasses.replace(setup.model_params, freezing=freezing if freezing.is_used else None),
        task=task,
        prefix=f"{task}/" if len(config.tasks) > 1 else "",
        micro_tokens=runtime.micro_tokens,
        max_skipped=runtime.max_skipped,
        logs_gradient_norms=runtime.gradient_norms,
    )


def compile_chunk(setup: Setup, task: str, stage: int) -> jax.stages.Wrapped:
    """Return the jitted `train_chunk(state, frozen, batches)` of a task's steps in a stage.

    It donates `state`, so the caller must not use it again. Stages that freeze nothing have one in common.
    """
    settings = setup.config.stages[stage]
    freezes = bool(settings.frozen or settings.frozen_layers)

    def compiled() -> jax.stages.Wrapped:
        step = make_step(setup, task, freezing_at(setup, stage) if freezes else None)
        return jax.jit(
            functools.partial(train_chunk, step),
            donate_argnums=0,  # the new state reuses the old one's memory
            out_shardings=(shardings_of(setup.shapes), replicated(setup.layout.mesh)),
        )

    return setup.once(compiled, "chunk", task, stage if freezes else None)


def shapes_of_batch(setup: Setup, task: str, stage: int, rows: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and dtypes for a batch [B, ...]; `rows` is B after padding to a multiple of the devices."""
    at = setup.config.stages[stage]
    in_stage = setup.config.tasks[task].in_stage(at)
    return batch_shapes(in_stage, setup.encoder.vocab_size, at.seq_len, rows or cast(int, at.batch))


def shapes_of_batches(setup: Setup, task: str, stage: int, steps: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes, dtypes and shardings for the batches [steps, B, ...] in one dispatch."""
    layout = setup.layout
    shapes = shapes_of_batch(setup, task, stage, filled_up(cast(int, setup.config.stages[stage].batch), layout.shards))
    sharding = NamedSharding(layout.mesh, P(None, BATCH_AXES))
    return {
        name: jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype, sharding=sharding) for name, leaf in shapes.items()
    }


def make_timetable(config: Config) -> Timetable:
    """Return the stages of a run and the turns of its tasks."""
    weights = {name: cast(float, task.weight) for name, task in config.tasks.items()}
    return Timetable(config.stages, weights, config.runtime.skip_rows)


def _init_params(config: Config, task: str, model: Model, key: jax.Array) -> dict:
    """Return initial params for a task's model, LoRA factors and pruning scores included."""
    objective = config.tasks[task].objective
    batch = batch_shapes(config.tasks[task], model.config.vocab_size, config.stages[-1].seq_len)
    params = objective.init(model, key, batch)
    if config.init_neighbors:
        params = start_at_neighbors(model.config, params, key)
    if config.has_own_heads:
        params = params | {"heads": {task: params.get("heads", {})}}
    scored = add_scores(config.pruning, params, config.frozen, config.lora.adapts)
    return add_factors(config.lora, scored, key, config.frozen)


def _united(of_tasks: Mapping[str, dict]) -> dict:
    """Return all tasks' params. Equal paths are shared between tasks."""
    params: dict = {}
    for name, of_task in of_tasks.items():
        params = merge_params(params, of_task, name)
    return params


def _make_layout(config: Config, encoder: EncoderConfig, shapes: dict, devices: list[jax.Device]) -> Layout:
    runtime, dtype = config.runtime, encoder.execution.dtype
    objectives = [task.objective for task in config.tasks.values()]
    strategy = choose_strategy(runtime.strategy, count_parameters(shapes, encoder), encoder.sharing)
    encoders = [part.encoder for objective in objectives for part in objective.flops_parts(encoder)]
    own_rules = (rule for objective in objectives for rule in objective.traits.sharding_rules)
    return Layout(
        mesh=make_mesh(fill_mesh(runtime.mesh, strategy, encoders, devices), devices),
        # The first matching rule applies: an objective's own rules override the encoder's.
        rules=(*COUNT_RULES, *own_rules, *ENCODER_RULES, *HEAD_RULES),
        strategy=strategy,
        dtype=dtype,
        reduction=dtype if runtime.reduction == "auto" else runtime.reduction,
    )


def _make_loss(config: Config, name: str, encoder: EncoderConfig, layout: Layout) -> Loss:
    task = config.tasks[name]
    execution = dataclasses.replace(encoder.execution, gather_layer=layout.gather_layer, task_type=task.task_type)
    model = task.objective.model(dataclasses.replace(encoder, execution=execution))
    return Loss(task.objective, model, layout, config.seed, name if config.has_own_heads else "")


def _make_optimizer(config: Config, has_idle: bool) -> optax.GradientTransformation:
    has_frozen_stages = any(stage.frozen or stage.frozen_layers for stage in config.stages)
    # With one global count, Adam would treat the first gradient of a head that starts at step 2,000 as the mean of
    # 2,000 gradients and skip its bias correction. With b2=0.999, updates would be up to 6 times too large.
    return make_optimizer(
        dataclasses.replace(config.optimizer, frozen=config.frozen), counts_by_leaf=has_frozen_stages or has_idle
    )
