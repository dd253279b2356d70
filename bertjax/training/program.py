"""What is trained and on which devices: the objects that the loop, evaluation and compilation share.

Everything here follows from the configuration, the size of the vocabulary and the devices; no corpus is needed, and
where only shapes are asked for, a description of the devices will do.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import Config
from bertjax.errors import UserError
from bertjax.hardware.flops import training_flops
from bertjax.mesh import BATCH_AXES
from bertjax.models.config import EncoderConfig
from bertjax.models.vocabulary import count_parameters
from bertjax.objectives.base import Objective
from bertjax.training.config import Stage
from bertjax.training.optimizer import make_optimizer
from bertjax.training.parallel.attention import choose_attention
from bertjax.training.parallel.sharding import (
    ENCODER_RULES,
    HEAD_RULES,
    check_batch,
    make_mesh,
    replicated,
    shardings,
)
from bertjax.training.parallel.strategy import Layout, choose_strategy, fill_mesh
from bertjax.training.param_paths import paths_of
from bertjax.training.schedules import learning_rate
from bertjax.training.shapes import batch_shapes
from bertjax.training.stages import Timetable, warmup_segments
from bertjax.training.state import State, abstract_state, init_state, new_state
from bertjax.training.step import StepContext, train_chunk


@dataclasses.dataclass(frozen=True)
class Program:
    """A run before its first step.

    Attributes:
      config: as given.
      vocab_size: V, of the tokenizer.
      devices: all that take part; those of JAX by default.
      layers: of the encoder, where it is not yet as deep as configured; 0 for all of them.
    """

    config: Config
    vocab_size: int
    devices: tuple[jax.Device, ...] = ()
    layers: int = 0

    def at(self, stage: int) -> "Program":
        """The same run, with an encoder as deep as it is in a stage."""
        return self._of_depth[self.config.layers_at(stage)]

    @functools.cached_property
    def _of_depth(self) -> dict[int, "Program"]:
        depths = {self.config.layers_at(stage) for stage in range(len(self.config.stages))}
        return {
            depth: self if depth == self.encoder.layers else dataclasses.replace(self, layers=depth) for depth in depths
        }

    @property
    def backend(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self._devices[0].platform

    @property
    def _devices(self) -> list[jax.Device]:
        return list(self.devices) or jax.devices()

    @functools.cached_property
    def encoder(self) -> EncoderConfig:
        encoder = self.config.encoder(self.vocab_size, self.backend)
        encoder = dataclasses.replace(encoder, layers=self.layers or encoder.layers)
        runtime, dtype = self.config.runtime, encoder.execution.dtype
        kind, dropout = self._devices[0].device_kind, encoder.attention_dropout
        tensor, window, positions = runtime.mesh.tensor, encoder.window, encoder.positions
        path = choose_attention(runtime.attention, self.backend, kind, dropout, dtype, tensor, window, positions)
        return dataclasses.replace(encoder, execution=dataclasses.replace(encoder.execution, attention=path))

    @functools.cached_property
    def tasks(self) -> dict[str, "TaskProgram"]:
        """The tasks by name, in the order of the configuration."""
        return {name: TaskProgram(self, name) for name in self.config.tasks}

    @property
    def task(self) -> "TaskProgram":
        """The first task."""
        return self.tasks[self.config.task_name]

    @functools.cached_property
    def layout(self) -> Layout:
        """The mesh and what lies where on it."""
        runtime, dtype = self.config.runtime, self.encoder.execution.dtype
        objectives = [task.objective for task in self.config.tasks.values()]
        modules = {name: task.objective.module(self.encoder) for name, task in self.config.tasks.items()}
        params = jax.eval_shape(self._init_params(modules), jax.random.key(0))
        strategy = choose_strategy(runtime.strategy, count_parameters(params, self.encoder))
        encoders = [each.encoder for objective in objectives for each in objective.flops_parts(self.encoder)]
        mesh = make_mesh(fill_mesh(runtime.mesh, strategy, encoders, self._devices), self._devices)
        return Layout(
            mesh=mesh,
            rules=(*(rule for each in objectives for rule in each.sharding_rules), *ENCODER_RULES, *HEAD_RULES),
            strategy=strategy,
            dtype=dtype,
            reduction=dtype if runtime.reduction == "auto" else runtime.reduction,
        )

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    def put(self, params: dict) -> dict:
        """Params of the host, laid out on the mesh as those in training."""

        def put(leaf: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
            # Each process gives the shards of its own devices; device_put would compare whole arrays over all hosts.
            return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)

        return jax.tree.map(put, params, shardings(params, self.layout.rules, self.mesh))

    @property
    def timetable(self) -> Timetable:
        weights = {name: task.weight for name, task in self.config.tasks.items()}
        return Timetable(self.config.stages, weights, bool(self.config.data.overfit))

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.config.optimizer)

    @functools.cached_property
    def abstract_state(self) -> State:
        """Shapes, dtypes and shardings of the state."""
        return abstract_state(self._create_state, self.mesh, self.layout.rules)

    def init_state(self) -> State:
        """The state at step 0."""
        return init_state(self._create_state, self.abstract_state, self.config.seed)

    @functools.cached_property
    def _create_state(self) -> Callable[[jax.Array], State]:
        modules = {name: task.module for name, task in self.tasks.items()}
        return new_state(self._init_params(modules), self.optimizer)

    def _init_params(self, modules: dict[str, nn.Module]) -> Callable[[jax.Array], dict]:
        """Params of all tasks together, from a key. What two of them name alike is one: it begins alike, too."""

        def init(key: jax.Array) -> dict:
            params: dict = {}
            for name, module in modules.items():
                params = merge_params(params, self.params_of(name, module, key), name)
            return params

        return init

    def params_of(self, task: str, module: nn.Module, key: jax.Array) -> dict:
        """Those that the module of a task begins with."""
        batch = batch_shapes(self.config.tasks[task], self.vocab_size, self.config.stages[-1].seq_len)
        return module.lazy_init(key, batch)["params"]

    def check(self) -> None:
        """Raises UserError where devices do not divide the batch or the weights."""
        for index, stage in enumerate(self.config.stages):
            check_batch(f"stages.{index}.batch", stage.batch, self.mesh)
            _ = self.at(index).abstract_state


@dataclasses.dataclass(frozen=True)
class TaskProgram:
    """A task of a run before its first step.

    Attributes:
      program: the run.
      name: of the task.
    """

    program: Program
    name: str

    @property
    def objective(self) -> Objective:
        return self.program.config.tasks[self.name].objective

    @functools.cached_property
    def module(self) -> nn.Module:
        encoder = self.program.encoder
        execution = dataclasses.replace(
            encoder.execution,
            gather_layer=self.program.layout.gather_layer,
            task_type=self.program.config.tasks[self.name].task_type,
        )
        return self.objective.module(dataclasses.replace(encoder, execution=execution))

    @functools.cached_property
    def frozen(self) -> dict | None:
        """The objective's frozen params, laid out by the same table as the trained ones."""
        params = self.objective.frozen_params(self.program.encoder)
        return None if params is None else self.program.put(params)

    @property
    def abstract_frozen(self) -> dict | None:
        """Shapes, dtypes and shardings of `frozen`."""
        params = jax.eval_shape(lambda: self.objective.frozen_params(self.program.encoder))
        if params is None:
            return None
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            params,
            shardings(params, self.program.layout.rules, self.program.mesh),
        )

    @functools.cached_property
    def context(self) -> StepContext:
        config, program = self.program.config, self.program
        optimizer, runtime = config.optimizer, config.runtime
        bits = (runtime.random_bits, program.backend)
        return StepContext(
            objective=self.objective,
            module=self.module,
            optimizer=program.optimizer,
            learning_rate=learning_rate(optimizer.schedule, warmup_segments(config.stages, optimizer)),
            seed=config.seed,
            layout=program.layout,
            frozen_paths=optimizer.frozen,
            idle_paths=self._idle_paths(),
            prefix=f"{self.name}/" if len(config.tasks) > 1 else "",
            hardware_bits="hardware" in bits or bits == ("auto", "tpu"),
            micro_tokens=runtime.micro_tokens,
            max_skipped=runtime.max_skipped,
        )

    def _idle_paths(self) -> frozenset[str]:
        """Those of params that only other tasks train."""
        if len(self.program.config.tasks) == 1:
            return frozenset()
        own = jax.eval_shape(lambda key: self.program.params_of(self.name, self.module, key), jax.random.key(0))
        return frozenset(paths_of(self.program.abstract_state["params"])) - frozenset(paths_of(own))

    def abstract_batches(self, stage: Stage, steps: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes, dtypes and shardings of the batches [steps, B, ...] of one dispatch."""
        program = self.program
        batch = batch_shapes(program.config.tasks[self.name], program.vocab_size, stage.seq_len, stage.batch)
        sharding = NamedSharding(program.mesh, P(None, BATCH_AXES))
        return {
            name: jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype, sharding=sharding)
            for name, leaf in batch.items()
        }

    def flops(self, tokens: float, token_pairs: float, predictions: float) -> float:
        """Operations of training, by formula, for what `step.consumption` counts."""
        passes = self.objective.flops_parts(self.program.encoder)
        return sum(
            each.share * training_flops(each.encoder, tokens, token_pairs, predictions * each.predicts)
            for each in passes
        )

    def batch_flops(self, batches: dict[str, jax.Array | jax.ShapeDtypeStruct]) -> float:
        """Of batches [steps, B, ...] with all their padding, those of the head at every slot."""
        steps, rows, seq_len = batches["tokens_BT"].shape
        slots = sum(batches[name].shape[2] for name in batches if name.endswith("_weights_BK"))
        tokens = float(steps * rows * seq_len)
        return self.flops(tokens, tokens * seq_len, steps * rows * slots)

    @functools.cached_property
    def chunk(self) -> jax.stages.Wrapped:
        """`train_chunk` of (state, frozen, batches), compiled for the mesh; the state that goes in is given up."""
        layout = jax.tree.map(lambda leaf: leaf.sharding, self.program.abstract_state)
        return jax.jit(
            functools.partial(train_chunk, self.context),
            donate_argnums=0,
            out_shardings=(layout, replicated(self.program.mesh)),
        )


def merge_params(params: dict, others: dict, task: str) -> dict:
    """Params of both; those of the first where both have them.

    Raises:
      UserError: both have them, in different shapes; `task` is named, whose the others are.
    """
    first, second = flatten_dict(params, sep="/"), flatten_dict(others, sep="/")
    for path in first.keys() & second.keys():
        if first[path].shape != second[path].shape:
            raise UserError(
                f"tasks.{task} has {path} with shape {second[path].shape} and another task {first[path].shape}; "
                "heads of the same name are one: let both be alike, or give one of them another name"
            )
    return unflatten_dict(second | first, sep="/")
