"""A small BERT and its step, on hand-made batches."""

import dataclasses
import functools

import jax
import numpy as np

from bertjax.models.bert import BertBlock, BertEmbeddings
from bertjax.models.blocks import Block
from bertjax.models.config import Execution
from bertjax.models.embeddings import Embeddings
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training.config import MeshConfig
from bertjax.training.loss import Loss
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.optim.optimizer import make_optimizer
from bertjax.training.parallel.sharding import ENCODER_RULES, HEAD_RULES, make_mesh, put_batches, replicated
from bertjax.training.parallel.strategy import Layout
from bertjax.training.schedules import Linear, WarmupSegment, learning_rate
from bertjax.training.state import abstract_state, init_state, new_state
from bertjax.training.step import Step, train_chunk
from tests import batches

STEPS = 20


ONE_DEVICE, BERT_BLOCK, BERT_EMBEDDINGS = MeshConfig(1, 1, 1), BertBlock(), BertEmbeddings()


@functools.cache
def make_step(
    dropout: float = 0.0,
    micro_tokens: int = 0,
    max_skipped: int = 0,
    mesh: MeshConfig = ONE_DEVICE,
    strategy: str = "gathered",
    remat: str = "none",
    attention: str = "plain",
    block: Block = BERT_BLOCK,
    embeddings: Embeddings = BERT_EMBEDDINGS,
) -> Step:
    """The step of a small BERT, on as many of the first devices as the mesh takes."""
    layout = Layout(
        mesh=make_mesh(mesh, jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor]),
        rules=(*ENCODER_RULES, *HEAD_RULES),
        strategy=strategy,
    )
    encoder = dataclasses.replace(
        batches.ENCODER,
        dropout=dropout,
        attention_dropout=dropout,
        block=block,
        embeddings=embeddings,
        execution=Execution(remat=remat, attention=attention, gather_layer=layout.gather_layer),
    )
    return Step(
        loss=Loss(BERT(), BERT().model(encoder), layout),
        optimizer=make_optimizer(OptimizerConfig()),
        learning_rate=learning_rate(Linear(), [WarmupSegment(0, STEPS, 1e-2, 5)]),
        micro_tokens=micro_tokens,
        max_skipped=max_skipped,
    )


@functools.cache
def _compiled(parts: Step):
    """(the state at step 0, a function that trains a chunk), compiled once for all tests."""
    create = new_state(lambda key: parts.loss.objective.init(parts.loss.model, key, batches.make(1)), parts.optimizer)
    abstract = abstract_state(create, parts.loss.layout.mesh, parts.loss.layout.rules)
    layout = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    run = jax.jit(functools.partial(train_chunk, parts), out_shardings=(layout, replicated(parts.loss.layout.mesh)))
    return init_state(create, abstract, parts.loss.seed), run


class Trainer:
    """A state, and steps that move it on.

    Args:
      parts: the static arguments of a step.
    """

    def __init__(self, parts: Step):
        self._mesh = parts.loss.layout.mesh
        state, self._run = _compiled(parts)
        self.state = dict(state)

    def train(self, *steps: dict, steps_per_call: int = 1) -> dict[str, np.ndarray]:
        """Train on one batch after the other; return the metrics, [steps] each."""
        calls = []
        for first in range(0, len(steps), steps_per_call):
            batch = put_batches(steps[first : first + steps_per_call], self._mesh)
            self.state, metrics = self._run(self.state, None, batch)
            calls.append(jax.device_get(metrics))
        return {name: np.concatenate([metrics[name] for metrics in calls]) for name in calls[0]}

    @property
    def params(self) -> dict:
        return jax.device_get(self.state["params"])
