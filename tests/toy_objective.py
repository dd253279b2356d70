"""An objective from outside of bertjax: it uses every part of the contract that BERT does not need."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bertjax.models.encoder import Encoder
from bertjax.objectives.base import Objective


class ToyModule(nn.Module):
    config: object

    def setup(self):
        self.encoder = Encoder(self.config)
        self.second = nn.Sequential([nn.Embed(self.config.padded_vocab_size, 8), nn.Dense(self.config.width)])

    def __call__(self, batch):
        tokens_BT, examples_BT = batch["tokens_BT"], batch["examples_BT"]
        encoded = self.encoder(tokens_BT, batch["segments_BT"], batch["positions_BT"], examples_BT)
        return encoded.pooled_BND[:, 0], jnp.mean(self.second(tokens_BT), axis=1)


@dataclasses.dataclass(frozen=True)
class Toy(Objective):
    """The encoder imitates a frozen teacher, a second network imitates the encoder."""

    teacher_seed: int = 7
    sharding_rules = ((r"(^|/)(second|teacher)/", P()),)
    coefficients = {"second": 0.5}

    def module(self, encoder):
        return ToyModule(encoder)

    def frozen_params(self, encoder):
        key = jax.random.key(self.teacher_seed)
        return {"teacher": {"table": 0.1 * jax.random.normal(key, (encoder.padded_vocab_size, encoder.width))}}

    def features(self, examples, draw):
        return {"real_B": (examples.examples_to_rows(examples.ragged.ids, fill=-1)[:, 0] >= 0).astype(np.float32)}

    def weights(self, batch):
        return {"teacher": jnp.sum(batch["real_B"]), "second": jnp.sum(batch["real_B"])}

    def terms(self, module, params, frozen, batch, key, train):
        first_BD, second_BD = module.apply({"params": params}, batch)
        target_BD = jnp.mean(frozen["teacher"]["table"][batch["tokens_BT"]], axis=1)
        pairs = {"teacher": (first_BD, target_BD), "second": (second_BD, jax.lax.stop_gradient(first_BD))}
        return {name: jnp.sum(batch["real_B"][:, None] * (a - b) ** 2) for name, (a, b) in pairs.items()}, {}

    def outputs(self, module, params, batch):
        return {"norm_BN": jnp.linalg.norm(module.apply({"params": params}, batch)[0], axis=-1)[:, None]}

    def score(self, outputs, examples, records):
        return {"mean_norm": float(np.mean(outputs["norm_BN"])), "scored": float(len(examples.ids))}
