"""A task of a run: its model, its loss and its compiled training steps."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.data.pipeline import filled_up
from bertjax.models.model import Model
from bertjax.objectives.base import Objective
from bertjax.runtime.mesh import BATCH_AXES
from bertjax.training.config import Stage
from bertjax.training.loss import Loss
from bertjax.training.optim.freezing import Freezing
from bertjax.training.parallel.sharding import replicated, shardings
from bertjax.training.schedules import learning_rate
from bertjax.training.shapes import batch_shapes
from bertjax.training.stages import warmup_segments
from bertjax.training.step import Step, train_chunk

if TYPE_CHECKING:
    from bertjax.training.program import Program


@dataclasses.dataclass(frozen=True)
class TaskProgram:
    """A task of a run before its first step.

    Attributes:
      program: the run that it belongs to.
      name: task name.
    """

    program: "Program"
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
        params = jax.eval_shape(lambda: self.objective.frozen_params(self.program.encoder))
        if params is None:
            return None
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            params,
            shardings(params, self.program.layout.rules, self.program.mesh),
        )

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
        shapes = self.batch_shapes(stage, filled_up(stage.batch, program.layout.shards))
        sharding = NamedSharding(program.mesh, P(None, BATCH_AXES))
        return {
            name: jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype, sharding=sharding)
            for name, leaf in shapes.items()
        }

    def batch_shapes(self, stage: Stage, rows: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes and dtypes for a batch [B, ...]; `rows` is B after padding to a multiple of the devices."""
        task = self.program.config.tasks[self.name].with_masking_rate(stage.masking_rate)
        return batch_shapes(task, self.program.vocab_size, stage.seq_len, rows or stage.batch)

    def freezing_at(self, stage: int) -> Freezing:
        """Return the parameters that the run or a stage freezes."""
        config, settings = self.program.config, self.program.config.stages[stage]
        own = settings.frozen or settings.frozen_layers
        paths = self.program.frozen_paths_at(stage) if own else frozenset()
        return Freezing(config.frozen, paths, settings.frozen_layers, depth=self.program.encoder.layers)

    @functools.cached_property
    def jitted(self) -> Callable[[Callable], jax.stages.Wrapped]:
        """`jitted(function)` is `function(loss, ...)` jitted, once for all evaluators of the task."""
        return functools.cache(lambda function: jax.jit(functools.partial(function, self.loss)))

    @functools.cached_property
    def chunk(self) -> jax.stages.Wrapped:
        """Jitted `train_chunk(state, frozen, batches)`; it donates `state`, so the caller must not use it again."""
        return self._compiled(self.step)

    def chunk_at(self, stage: int) -> jax.stages.Wrapped:
        """Return `chunk` for a stage; a stage that freezes parameters has its own compiled program."""
        settings = self.program.config.stages[stage]
        if not settings.frozen and not settings.frozen_layers:
            return self.chunk
        if stage not in self._chunks:
            self._chunks[stage] = self._compiled(self._with_freezing(self.freezing_at(stage)))
        return self._chunks[stage]

    @functools.cached_property
    def _chunks(self) -> dict[int, jax.stages.Wrapped]:
        return {}

    def _compiled(self, step: Step) -> jax.stages.Wrapped:
        state_shardings = jax.tree.map(lambda leaf: leaf.sharding, self.program.abstract_state)
        return jax.jit(
            functools.partial(train_chunk, step),
            donate_argnums=0,  # the new state reuses the old one's memory
            out_shardings=(state_shardings, replicated(self.program.mesh)),
        )
