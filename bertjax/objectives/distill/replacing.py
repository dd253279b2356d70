"""BERT-of-Theseus: replace modules of a trained predecessor by smaller successor layers during training.

Xu et al. (2020), arXiv 2002.02925, section 3. A predecessor module is L / S consecutive layers; the successor has one
layer for it. At each step every module is replaced with probability p, which rises linearly, and the objective's own
loss is computed on the resulting model. There is no other loss, and a single forward pass.

Deviation: embeddings, pooler and heads are the successor's, initialized from the predecessor's, and they are trained.
The paper freezes them, as `optimizer.frozen` can.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.random import bits
from bertjax.models import cut
from bertjax.models.config import EncoderConfig
from bertjax.models.taps import LAYER_MASK
from bertjax.objectives.wrapper import Taught
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

SEED, RATE = "replacing_seed_B", "replacing_rate_B"
# Settings that do not affect layers. The vocabulary is compared later, when a tokenizer exists.
_MAY_DIFFER = ("layers", "vocab_size", "max_positions", "dropout", "attention_dropout", "init_stddev")


@dataclasses.dataclass(frozen=True)
class Replacing(Taught):
    """An objective whose model is partly the teacher (the predecessor) during training. Terms: those of the objective.

    The replacement probability at a step is min(1, first + (1 - first) * step / steps).

    Attributes:
      first: probability at step 0.
      steps: step at which it reaches 1; 0 replaces all modules from the start, which is fine-tuning the successor.
    """

    first: float = setting(0.3, least=0, most=1)
    steps: int = setting(1000, least=0)

    def rate(self, step: int) -> float:
        """Return the probability at a step, counted from 0."""
        return min(1.0, self.first + (1.0 - self.first) * step / self.steps) if self.steps else 1.0

    def features(self, examples, draw):
        """Return the objective's features, and the seed and the probability for a step, equal in all rows."""
        rows, step = examples.shape[0], draw.step or 0
        seed = bits(draw.seed, "replaced modules", step, 0, 0)
        own = {SEED: np.full(rows, seed, np.uint32), RATE: np.full(rows, self.rate(step), np.float32)}
        return super().features(examples, draw) | own

    def predecessor_config(self, successor: EncoderConfig) -> EncoderConfig:
        """Return the mixed model's architecture: the successor's, with as many layers as the predecessor.

        Raises:
          UserError: the successor's layers cannot replace modules of the predecessor.
        """
        predecessor, folder = self.bound_teacher.config, self.bound_teacher.folder
        if self.model(successor).reads_all_layers:
            raise UserError(
                "objective.kind=replacing and objective.objective.reads=mix do not go together: the mix is of fewer "
                "layers"
            )
        for name, (own, others) in successor.differences(predecessor).items():
            if name not in _MAY_DIFFER:
                raise UserError(
                    f"objective.teacher={folder} has model.{name}={others} and the successor {own}; they may differ in "
                    "model.layers only"
                )
        if predecessor.layers % successor.layers or predecessor.layers == successor.layers:
            raise UserError(
                f"objective.teacher={folder} has {predecessor.layers} layers, which {successor.layers} cannot replace "
                "in equal modules; set model.layers to half of them, for example"
            )
        if successor.sharing != "none":
            raise UserError(
                "objective.kind=replacing has no effect on layers that share parameters "
                f"(model.sharing={successor.sharing}); use objective.kind=distilled"
            )
        size = predecessor.layers // successor.layers
        # A layer's place in the mixed model is that of its module's first layer.
        if moved := cut.moved(successor, range(0, predecessor.layers, size)):
            raise UserError(
                "objective.kind=replacing trains the successor's layers in places of the predecessor's modules: "
                f"{moved}; choose a model.layers that keeps the pattern"
            )
        return dataclasses.replace(successor, layers=predecessor.layers)

    def frozen_params(self, config):
        """Return the predecessor's layers, which are not trained."""
        self.predecessor_config(config)
        return {"teacher": {"encoder": {"layers": self.bound_teacher.params["encoder"]["layers"]}}}

    def flops_parts(self, config):
        """Return the FLOPs of a step. All of the predecessor's layers are computed, even masked ones."""
        return self.objective.flops_parts(self.predecessor_config(config))

    def terms(self, model, params, frozen, batch, key, train, taps=None):
        """Device: return the objective's terms, in training computed on this step's mix of both models."""
        if not train:
            return super().terms(model, params, frozen, batch, key, train, taps)
        self.bound_teacher.check_vocabulary(model.config)
        predecessor = self.model(self.predecessor_config(model.config))
        # One draw per step: the seed is a feature, equal in all rows, so every device replaces the same modules.
        draws_S = jax.random.uniform(jax.random.key(batch[SEED][0]), (model.config.layers,))
        layers, layer_mask_L = mixed(
            params["encoder"]["layers"], frozen["teacher"]["encoder"]["layers"], draws_S < batch[RATE][0]
        )
        whole = params | {"encoder": params["encoder"] | {"layers": layers}}
        masks = {"encoder": {LAYER_MASK: layer_mask_L}}
        return self.terms_of(self.apply(predecessor, whole, batch, key, taps=masks), batch)


def mixed(successor: dict, predecessor: dict, is_replaced_S: jax.Array) -> tuple[dict, jax.Array]:
    """Device: return stacked layers [L, ...], some of them replaced, and a mask [L] of the active ones.

    Args:
      successor: stacked layers, [S, ...].
      predecessor: stacked layers, [L, ...].
      is_replaced_S: bool, modules to replace. The successor's layer becomes the first in its module.
    """
    count = len(is_replaced_S)
    size = len(jax.tree.leaves(predecessor)[0]) // count

    def mix(own: jax.Array, other: jax.Array) -> jax.Array:
        modules = other.reshape(count, size, *other.shape[1:])
        is_replaced = is_replaced_S.reshape(count, *[1] * (own.ndim - 1))
        # Only the first layer of a module can be the successor's.
        first = jnp.where(is_replaced, own, modules[:, 0])
        return jnp.concatenate([first[:, None], modules[:, 1:]], axis=1).reshape(other.shape)

    # A replaced module keeps its first layer (the successor's); `layer_mask` 0 turns the others into the identity.
    is_left_SK = jnp.concatenate(
        [jnp.ones((count, 1)), jnp.broadcast_to(1.0 - is_replaced_S[:, None], (count, size - 1))], axis=1
    )
    return jax.tree.map(mix, successor, predecessor), is_left_SK.reshape(-1)
