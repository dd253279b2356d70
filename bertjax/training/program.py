"""What is trained and on which devices: the objects that the loop, evaluation and compilation share.

Everything here follows from the configuration, the size of the vocabulary and the devices; no corpus is needed, and
where only shapes are asked for, a description of the devices will do.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import Config
from bertjax.models.config import EncoderConfig
from bertjax.models.vocabulary import count_parameters
from bertjax.objectives.base import Objective
from bertjax.objectives.shards import BATCH_AXES
from bertjax.training.attention import choose_attention
from bertjax.training.config import Stage
from bertjax.training.layout import Layout, choose_strategy, fill_mesh
from bertjax.training.optimizer import make_optimizer
from bertjax.training.schedules import learning_rate
from bertjax.training.shapes import batch_shapes
from bertjax.training.sharding import (
    ENCODER_RULES,
    HEAD_RULES,
    check_batch,
    make_mesh,
    replicated,
    shardings,
)
from bertjax.training.stages import Timetable, rises
from bertjax.training.state import State, abstract_state, init_state, new_state
from bertjax.training.step import StepContext, train_chunk


@dataclasses.dataclass(frozen=True)
class Program:
    """A run before its first step.

    Attributes:
      config: as given.
      vocab_size: V, of the tokenizer.
      devices: all that take part; those of JAX by default.
    """

    config: Config
    vocab_size: int
    devices: tuple[jax.Device, ...] = ()

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
        runtime, dtype = self.config.runtime, encoder.execution.dtype
        kind, dropout = self._devices[0].device_kind, encoder.attention_dropout
        path = choose_attention(runtime.attention, self.backend, kind, dropout, dtype, runtime.mesh.tensor)
        return dataclasses.replace(encoder, execution=dataclasses.replace(encoder.execution, attention=path))

    @functools.cached_property
    def layout(self) -> Layout:
        """The mesh and what lies where on it."""
        runtime, dtype = self.config.runtime, self.encoder.execution.dtype
        params = jax.eval_shape(self._init_params(self.objective.module(self.encoder)), jax.random.key(0))
        strategy = choose_strategy(runtime.strategy, count_parameters(params, self.encoder))
        mesh = make_mesh(fill_mesh(runtime.mesh, strategy, self.encoder, self._devices), self._devices)
        return Layout(
            mesh=mesh,
            rules=(*self.objective.sharding_rules, *ENCODER_RULES, *HEAD_RULES),
            strategy=strategy,
            dtype=dtype,
            reduction=dtype if runtime.reduction == "auto" else runtime.reduction,
        )

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    @property
    def objective(self) -> Objective:
        return self.config.task.objective

    @functools.cached_property
    def module(self) -> nn.Module:
        execution = dataclasses.replace(self.encoder.execution, whole_layer=self.layout.whole_layer)
        return self.objective.module(dataclasses.replace(self.encoder, execution=execution))

    @functools.cached_property
    def frozen(self) -> dict | None:
        """The objective's frozen params, laid out by the same table as the trained ones."""
        params = self.objective.frozen_params(self.encoder)
        return None if params is None else self.put(params)

    def put(self, params: dict) -> dict:
        """Params of the host, laid out on the mesh as those in training."""

        def put(leaf: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
            # Each process gives the shards of its own devices; device_put would compare whole arrays over all hosts.
            return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)

        return jax.tree.map(put, params, shardings(params, self.layout.rules, self.mesh))

    @property
    def timetable(self) -> Timetable:
        return Timetable(self.config.stages, self.config.task_name, bool(self.config.data.overfit))

    @functools.cached_property
    def context(self) -> StepContext:
        optimizer, runtime = self.config.optimizer, self.config.runtime
        return StepContext(
            objective=self.objective,
            module=self.module,
            optimizer=make_optimizer(optimizer),
            learning_rate=learning_rate(optimizer.schedule, rises(self.config.stages, optimizer)),
            seed=self.config.seed,
            layout=self.layout,
            frozen_paths=optimizer.frozen,
            hardware_bits=runtime.random_bits == "hardware" or (runtime.random_bits, self.backend) == ("auto", "tpu"),
            micro_tokens=runtime.micro_tokens,
            max_skipped=runtime.max_skipped,
        )

    @functools.cached_property
    def abstract_state(self) -> State:
        """Shapes, dtypes and shardings of the state."""
        return abstract_state(self._create_state, self.mesh, self.layout.rules)

    @property
    def abstract_frozen(self) -> dict | None:
        """Shapes, dtypes and shardings of `frozen`."""
        params = jax.eval_shape(lambda: self.objective.frozen_params(self.encoder))
        if params is None:
            return None
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            params,
            shardings(params, self.layout.rules, self.mesh),
        )

    def abstract_batches(self, stage: Stage, steps: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes, dtypes and shardings of the batches [steps, B, ...] of one dispatch."""
        batch = batch_shapes(self.config.task, self.vocab_size, stage.seq_len, stage.batch)
        sharding = NamedSharding(self.mesh, P(None, BATCH_AXES))
        return {
            name: jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype, sharding=sharding)
            for name, leaf in batch.items()
        }

    def jitted_chunk(self) -> jax.stages.Wrapped:
        """`train_chunk` of (state, frozen, batches), compiled for the mesh; the state that goes in is given up."""
        layout = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        return jax.jit(
            functools.partial(train_chunk, self.context),
            donate_argnums=0,
            out_shardings=(layout, replicated(self.mesh)),
        )

    def init_state(self) -> State:
        """The state at step 0."""
        return init_state(self._create_state, self.abstract_state, self.config.seed)

    @functools.cached_property
    def _create_state(self) -> Callable[[jax.Array], State]:
        return new_state(self._init_params(self.module), self.context.optimizer)

    def _init_params(self, module: nn.Module) -> Callable[[jax.Array], dict]:
        batch = batch_shapes(self.config.task, self.vocab_size, self.config.stages[-1].seq_len)
        return lambda key: module.lazy_init(key, batch)["params"]

    def check(self) -> None:
        """Raises UserError where devices do not divide the batch or the weights."""
        for index, stage in enumerate(self.config.stages):
            check_batch(f"stages.{index}.batch", stage.batch, self.mesh)
        _ = self.abstract_state
