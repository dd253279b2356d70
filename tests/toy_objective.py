"""An objective from outside of bertjax: it uses every part of the contract that BERT does not need."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bertjax.models.config import EncoderConfig
from bertjax.models.model import HeadSpec
from bertjax.objectives.base import Objective
from bertjax.objectives.host import Output, Traits


class Second(nn.Module):
    """A network of its own beside the encoder."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, tokens_BT):
        return nn.Dense(self.config.width)(nn.Embed(self.config.padded_vocab_size, 8)(tokens_BT))


@dataclasses.dataclass(frozen=True)
class Toy(Objective):
    """The encoder imitates a frozen teacher, a second network imitates the encoder."""

    teacher_seed: int = 7
    traits = Traits(sharding_rules=((r"(^|/)(second|teacher)/", P()),))
    best_metric = "teacher_loss"

    def heads(self, config):
        return {"second": HeadSpec(Second)}

    def logits(self, model, batch, key=None):
        first_BD = model.encode(batch, key).pooled_BND[:, 0]
        return first_BD, jnp.mean(model.head("second", batch["tokens_BT"]), axis=1)

    def frozen_params(self, encoder):
        key = jax.random.key(self.teacher_seed)
        return {"teacher": {"table": 0.1 * jax.random.normal(key, (encoder.padded_vocab_size, encoder.width))}}

    def features(self, examples, draw):
        return {"real_B": (examples.examples_to_rows(examples.ragged.ids, fill=-1)[:, 0] >= 0).astype(np.float32)}

    def weights(self, batch):
        return {"teacher": jnp.sum(batch["real_B"]), "second": jnp.sum(batch["real_B"])}

    def terms(self, model, params, frozen, batch, key, train):
        first_BD, second_BD = self.apply(model, params, batch)
        target_BD = jnp.mean(frozen["teacher"]["table"][batch["tokens_BT"]], axis=1)
        pairs = {"teacher": (first_BD, target_BD), "second": (second_BD, jax.lax.stop_gradient(first_BD))}
        return {name: jnp.sum(batch["real_B"][:, None] * (a - b) ** 2) for name, (a, b) in pairs.items()}, {}

    def loss_weights(self, terms, step):
        return {"second": 0.5}

    def outputs(self, model, params, batch):
        return {"norm": Output(jnp.linalg.norm(self.apply(model, params, batch)[0], axis=-1)[:, None], per="example")}

    def score(self, outputs, examples, records):
        return {"mean_norm": float(np.mean(outputs["norm"])), "scored": float(len(examples.ids))}
