"""A run's model, tasks, optimizer and mesh, shared by the loop, evaluation and ahead-of-time compilation.

They follow from the configuration, the vocabulary size and the devices; no corpus is needed. To compute shapes and to
compile, abstract devices are enough, such as those that describe an absent TPU.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import cast

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config.config import Config
from bertjax.data.pipeline import filled_up
from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model
from bertjax.models.vocabulary import count_parameters
from bertjax.objectives import OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.optional import flops_parts
from bertjax.objectives.slots import Slots, SlotValues, slots_of
from bertjax.runtime.mesh import BATCH_AXES
from bertjax.training.config import Stage
from bertjax.training.lora import add_factors
from bertjax.training.loss import Loss
from bertjax.training.model_params import ModelParams
from bertjax.training.optim.freezing import Freezing, frozen_in_stage
from bertjax.training.optim.optimizer import make_optimizer
from bertjax.training.parallel.attention import choose_attention
from bertjax.training.parallel.make_mesh import choose_strategy, fill_mesh, make_mesh
from bertjax.training.parallel.sharding import (
    COUNT_RULES,
    ENCODER_RULES,
    HEAD_RULES,
    check_batch,
    replicated,
    shardings,
)
from bertjax.training.parallel.strategy import Layout
from bertjax.training.param_paths import leaves_of, merge_params, with_heads_of
from bertjax.training.pruning import add_scores
from bertjax.training.schedules import learning_rate
from bertjax.training.shapes import batch_shapes
from bertjax.training.stages import Timetable, warmup_segments
from bertjax.training.state import State, abstract_state, init_state, new_state
from bertjax.training.step import Step, train_chunk
from bertjax.training.teachers import open_teachers
from bertjax.training.trace_checks import check_growth, check_objective


@dataclasses.dataclass(frozen=True)
class Program:
    """A run before its first step.

    Attributes:
      config: the configuration.
      vocab_size: V, the tokenizer's vocabulary size, without padding.
      devices: devices for the mesh; `jax.devices()` by default.
      model: architecture, if it differs from the configured one, as in early stages; None for the configured one.
    """

    config: Config
    vocab_size: int
    devices: tuple[jax.Device, ...] = ()
    model: EncoderConfig | None = None

    def __post_init__(self):
        # Idempotent: programs of other stages (`_by_stage`) share the opened teachers.
        object.__setattr__(self, "config", open_teachers(self.config))

    def at(self, stage: int) -> "Program":
        """Return the same run with the encoder of a stage; stages with equal encoders share what is compiled."""
        return self._by_stage[stage]

    def after(self, step: int) -> "Program":
        """Return the run with the encoder of the stage that trained the last of `step` steps."""
        return self.at(self.timetable.at(max(step - 1, 0)).stage)

    @functools.cached_property
    def _by_stage(self) -> list["Program"]:
        models = [self.config.model_at(stage) for stage in range(len(self.config.stages))]
        programs = {self.model or self.config.model: self}
        return [programs.setdefault(model, dataclasses.replace(self, model=model)) for model in models]

    @property
    def backend(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self._devices[0].platform

    @property
    def _devices(self) -> list[jax.Device]:
        return list(self.devices) or jax.devices()

    @functools.cached_property
    def encoder(self) -> EncoderConfig:
        own = self.config.encoder(self.vocab_size, self.backend)
        encoder = dataclasses.replace(self.model or own, vocab_size=self.vocab_size, execution=own.execution)
        runtime, kind = self.config.runtime, self._devices[0].device_kind
        attention = choose_attention(runtime.attention, encoder, self.backend, kind, runtime.mesh.tensor)
        return dataclasses.replace(encoder, execution=dataclasses.replace(encoder.execution, attention=attention))

    @functools.cached_property
    def tasks(self) -> dict[str, "TaskProgram"]:
        """{name: task}, in configuration order."""
        return {name: TaskProgram(self, name) for name in self.config.tasks}

    @property
    def task(self) -> "TaskProgram":
        """The first task."""
        return self.tasks[self.config.task_name]

    @functools.cached_property
    def layout(self) -> Layout:
        """The mesh and the sharding of params on it."""
        runtime, dtype = self.config.runtime, self.encoder.execution.dtype
        objectives = [task.objective for task in self.config.tasks.values()]
        parameters = count_parameters(self.param_shapes, self.encoder)
        strategy = choose_strategy(runtime.strategy, parameters, self.encoder.sharing)
        encoders = [part.encoder for objective in objectives for part in flops_parts(objective, self.encoder)]
        mesh = make_mesh(fill_mesh(runtime.mesh, strategy, encoders, self._devices), self._devices)
        own_rules = (rule for objective in objectives for rule in objective.traits.sharding_rules)
        return Layout(
            mesh=mesh,
            # The first matching rule applies: an objective's own rules override the encoder's.
            rules=(*COUNT_RULES, *own_rules, *ENCODER_RULES, *HEAD_RULES),
            strategy=strategy,
            dtype=dtype,
            reduction=dtype if runtime.reduction == "auto" else runtime.reduction,
        )

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    def put(self, params: dict) -> dict:
        """Put host params on the mesh, sharded by the same rules as trained ones."""

        def put(leaf: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
            # Each process provides its own devices' shards; device_put would compare full arrays over all hosts.
            return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)

        return jax.tree.map(put, params, shardings(params, self.layout.rules, self.mesh))

    @property
    def timetable(self) -> Timetable:
        weights = {name: cast(float, task.weight) for name, task in self.config.tasks.items()}
        return Timetable(self.config.stages, weights, bool(self.config.data.overfit), self.config.runtime.skip_rows)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        config = self.config
        has_frozen_stages = any(stage.frozen or stage.frozen_layers for stage in config.stages)
        # With one global count, Adam would treat the first gradient of a head that starts at step 2,000 as the mean of
        # 2,000 gradients and skip its bias correction. With b2=0.999, updates would be up to 6 times too large.
        return make_optimizer(
            dataclasses.replace(config.optimizer, frozen=config.frozen),
            counts_by_leaf=has_frozen_stages or any(map(self.idle_paths, config.tasks)),
        )

    def idle_paths(self, task: str) -> frozenset[str]:
        """Return the paths of params that only other tasks train, such as their heads."""
        if len(self.config.tasks) == 1:
            return frozenset()
        return frozenset().union(*self._trained_paths.values()) - self._trained_paths[task]

    @functools.cached_property
    def _trained_paths(self) -> dict[str, frozenset[str]]:
        """{task: paths of its model's params}."""
        shapes = {
            name: jax.eval_shape(functools.partial(self.params_of, name, task.model), jax.random.key(0))
            for name, task in self.tasks.items()
        }
        return {name: frozenset(leaves_of(params)) for name, params in shapes.items()}

    @functools.cached_property
    def param_shapes(self) -> dict:
        """Shapes and dtypes of all tasks' params."""
        # `layout` counts these to choose a strategy, so they must not depend on `TaskProgram.model`, which has a mesh.
        models = {name: task.objective.model(self.encoder) for name, task in self.config.tasks.items()}
        return jax.eval_shape(self._init_params(models), jax.random.key(0))

    @functools.cached_property
    def abstract_state(self) -> State:
        """Shapes, dtypes and shardings of the training state."""
        return abstract_state(self._create_state, self.mesh, self.layout.rules)

    def init_state(self) -> State:
        """Return the state at step 0."""
        return init_state(self._create_state, self.abstract_state, self.config.seed)

    @functools.cached_property
    def _create_state(self) -> Callable[[jax.Array], State]:
        models = {name: task.model for name, task in self.tasks.items()}
        return new_state(self._init_params(models), self.optimizer, self.init_slots)

    def init_slots(self, params: dict) -> dict[str, SlotValues]:
        """Return {task: slots at step 0} for tasks with slots."""
        params, has_own_heads = self.to_model_params(params, 0), self.config.has_own_heads
        slots = {
            name: slots_of(task.objective, with_heads_of(params, name if has_own_heads else ""))
            for name, task in self.config.tasks.items()
        }
        return {name: own for name, own in slots.items() if own}

    def _init_params(self, models: dict[str, Model]) -> Callable[[jax.Array], dict]:
        """Return a function from a key to all tasks' params. Equal paths are shared between tasks."""

        def init(key: jax.Array) -> dict:
            params: dict = {}
            for name, model in models.items():
                params = merge_params(params, self.params_of(name, model, key), name)
            return params

        return init

    def params_of(self, task: str, model: Model, key: jax.Array) -> dict:
        """Return initial params for a task's model, LoRA factors and pruning scores included."""
        batch = batch_shapes(self.config.tasks[task], self.vocab_size, self.config.stages[-1].seq_len)
        params = self.config.tasks[task].objective.init(model, key, batch)
        if self.config.has_own_heads:
            params = params | {"heads": {task: params.get("heads", {})}}
        config = self.config
        scored = add_scores(config.pruning, params, config.frozen, config.lora.adapts)
        return add_factors(config.lora, scored, key, config.frozen)

    def merged(self, state: State) -> dict:
        """Return an ordinary model's params: LoRA merged, pruned, rounded."""
        params = state["params"]
        return params if self.to_model_params.is_identity(params) else self._merge(params, state["step"])

    @property
    def to_model_params(self) -> ModelParams:
        """Function from (trained params, step) to the params that models run with."""
        config = self.config
        steps = sum(stage.steps or 0 for stage in config.stages)
        return ModelParams(config.lora, config.pruning, config.quantization, steps)

    @functools.cached_property
    def _merge(self) -> Callable[[dict, jax.Array], dict]:
        state = self.abstract_state
        shapes = jax.eval_shape(self.to_model_params, state["params"], state["step"])
        return jax.jit(self.to_model_params, out_shardings=shardings(shapes, self.layout.rules, self.mesh))

    def check(self) -> None:
        """Raise UserError unless user code can be traced, stages grow and train, and devices divide sharded axes."""
        for name, task in self.config.tasks.items():
            is_open = task.has_classes and not task.objective.classes  # until the training file is read
            of_stages = [self.config.task_at(index, name) for index in range(len(self.config.stages))]
            for index, each in enumerate([task, *of_stages]):
                kinds = (OBJECTIVES.kind_of(each.objective), each.kind, each.masking.kind if each.masking else "")
                if any(":" in kind for kind in kinds) and not is_open and each not in [task, *of_stages][:index]:
                    check_objective(name, each, self.encoder, self.config.stages[-1].seq_len)
        for index, stage in enumerate(self.config.stages):
            if stage.batch is not None and any(
                isinstance(self.config.tasks[name].objective, Slots) for name in stage.among(self.config.tasks)
            ):
                check_batch(f"stages.{index}.batch", stage.batch, self.mesh)  # padding rows must not reach the slots
            shardings(self.at(index).abstract_state, self.layout.rules, self.mesh)
            self.task.freezing_at(index)
        check_growth([self.at(index).abstract_state["params"] for index in range(len(self.config.stages))])
        if self.config.optimizer.is_outside:
            state = self.abstract_state
            jax.eval_shape(self.optimizer.update, state["params"], state["opt_state"], state["params"])


@dataclasses.dataclass(frozen=True)
class TaskProgram:
    """A task of a run before its first step.

    Attributes:
      program: the run that it belongs to.
      name: task name.
    """

    program: Program
    name: str

    @property
    def objective(self) -> Objective:
        return self.program.config.tasks[self.name].objective

    @functools.cached_property
    def model(self) -> Model:
        encoder = self.program.encoder
        execution = dataclasses.replace(
            encoder.execution,
            gather_layer=self.program.layout.gather_layer,
            task_type=self.program.config.tasks[self.name].task_type,
        )
        return self.objective.model(dataclasses.replace(encoder, execution=execution))

    @functools.cached_property
    def frozen(self) -> dict | None:
        """The objective's frozen params (a teacher's, for example), sharded by the same rules as trained ones."""
        params = self.objective.frozen_params(self.program.encoder)
        return None if params is None else self.program.put(params)

    @property
    def abstract_frozen(self) -> dict | None:
        """Shapes, dtypes and shardings of `frozen`."""
        encoder, layout = self.program.encoder, self.program.layout
        return abstract_state(lambda _: self.objective.frozen_params(encoder), layout.mesh, layout.rules)

    @functools.cached_property
    def loss(self) -> Loss:
        """The loss as training and evaluation compute it."""
        config = self.program.config
        own_heads = self.name if config.has_own_heads else ""
        return Loss(self.objective, self.model, self.program.layout, config.seed, own_heads)

    @functools.cached_property
    def step(self) -> Step:
        """The training step in stages that freeze nothing."""
        config, program = self.program.config, self.program
        return self._with_freezing(Freezing(config.frozen, depth=program.encoder.layers))

    def _with_freezing(self, freezing: Freezing) -> Step:
        config, program = self.program.config, self.program
        optimizer, runtime = config.optimizer, config.runtime
        # What only other tasks train is frozen in the steps of this one.
        freezing = dataclasses.replace(freezing, paths=freezing.paths | program.idle_paths(self.name))
        return Step(
            loss=self.loss,
            optimizer=freezing.hold(program.optimizer),
            learning_rate=learning_rate(optimizer.schedule, warmup_segments(config.stages, optimizer)),
            model_params=dataclasses.replace(program.to_model_params, freezing=freezing),
            task=self.name,
            prefix=f"{self.name}/" if len(config.tasks) > 1 else "",
            micro_tokens=runtime.micro_tokens,
            max_skipped=runtime.max_skipped,
            logs_gradient_norms=runtime.gradient_norms,
        )

    def abstract_batches(self, stage: Stage, steps: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes, dtypes and shardings for the batches [steps, B, ...] in one dispatch."""
        program = self.program
        shapes = self.batch_shapes(stage, filled_up(cast(int, stage.batch), program.layout.shards))
        sharding = NamedSharding(program.mesh, P(None, BATCH_AXES))
        return {
            name: jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype, sharding=sharding)
            for name, leaf in shapes.items()
        }

    def batch_shapes(self, stage: Stage, rows: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes and dtypes for a batch [B, ...]; `rows` is B after padding to a multiple of the devices."""
        task = self.program.config.tasks[self.name].in_stage(stage)
        return batch_shapes(task, self.program.vocab_size, stage.seq_len, rows or cast(int, stage.batch))

    def freezing_at(self, stage: int) -> Freezing:
        """Return the parameters that the run or a stage freezes.

        Raises:
          UserError: a pattern of the stage matches no parameter, or the stage leaves no parameter to train.
        """
        config, program = self.program.config, self.program.at(stage)
        return frozen_in_stage(stage, config.stages[stage], program.param_shapes, config.frozen, program.encoder.layers)

    @functools.cached_property
    def jitted(self) -> Callable[[Callable], jax.stages.Wrapped]:
        """`jitted(function)` is `function(loss, ...)` jitted, once for all evaluators of the task."""
        return functools.cache(lambda function: jax.jit(functools.partial(function, self.loss)))

    @functools.cached_property
    def chunk(self) -> jax.stages.Wrapped:
        """Jitted `train_chunk(state, frozen, batches)`; it donates `state`, so the caller must not use it again."""
        return self._compiled(self.step)

    @functools.cached_property
    def chunk_at(self) -> Callable[[int], jax.stages.Wrapped]:
        """`chunk_at(stage)` is `chunk` for a stage; a stage that freezes parameters has its own compiled program."""

        def chunk_at(stage: int) -> jax.stages.Wrapped:
            settings = self.program.config.stages[stage]
            is_frozen = settings.frozen or settings.frozen_layers
            return self._compiled(self._with_freezing(self.freezing_at(stage))) if is_frozen else self.chunk

        return functools.cache(chunk_at)

    def _compiled(self, step: Step) -> jax.stages.Wrapped:
        state_shardings = jax.tree.map(lambda leaf: leaf.sharding, self.program.abstract_state)
        return jax.jit(
            functools.partial(train_chunk, step),
            donate_argnums=0,  # the new state reuses the old one's memory
            out_shardings=(state_shardings, replicated(self.program.mesh)),
        )
