"""ELECTRA: replaced token detection (Clark et al., 2020, arXiv 2003.10555).

A generator, trained by masked language modeling, guesses the masked tokens (section 2, equation 1). What it draws
takes their place, and the discriminator says of every token of the text whether it is the original (equation 2). Both
are trained together, and no gradient passes through the draw: min L_MLM + 50 L_disc. They share the embeddings (3.2).

The discriminator is the encoder that is exported; the generator goes with the heads, and is only needed to go on.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masking, TokenMasking
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import DetectionHead, Heads, MaskedLMHead
from bertjax.models.random import split
from bertjax.models.sampling import sample
from bertjax.objectives.base import Arrays, FlopsPart, encode
from bertjax.objectives.losses import binary_term
from bertjax.objectives.pretraining.mlm import MaskedLM


class Generator(nn.Module):
    """A narrow encoder on the discriminator's embeddings."""

    config: EncoderConfig
    embeddings: nn.Module

    def setup(self):
        self.encoder = Encoder(self.config, self.embeddings)

    def __call__(self, batch: Arrays, key: jax.Array | None) -> jax.Array:
        """Returns the hidden states at the predicted positions, [B, K, D]."""
        return encode(self.encoder, batch, key, batch["mlm_positions_BK"]).hidden


class ElectraModule(nn.Module):
    """Discriminator (`encoder`), generator, and a head on each."""

    config: EncoderConfig
    generator_config: EncoderConfig

    def setup(self):
        self.encoder = Encoder(self.config)
        self.generator = Generator(self.generator_config, self.encoder.embeddings)
        self.heads = Heads(
            {
                "mlm": functools.partial(MaskedLMHead, self.generator_config),
                "rtd": functools.partial(DetectionHead, self.config),
            }
        )

    def __call__(self, batch: Arrays) -> Arrays:
        """Returns {`mlm`: `guess`, `rtd`: `detect`}, of the batch as it is, without dropout."""
        return {"mlm": self.guess(batch), "rtd": self.detect(batch)}

    def guess(self, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """The generator's logits_BKV at the predicted positions."""
        return self.heads("mlm", self.generator(batch, key), self.encoder.embeddings.word)

    def detect(self, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """The discriminator's logits_BT: above 0 where a token seems to be replaced."""
        return self.heads("rtd", encode(self.encoder, batch, key).hidden)


@dataclasses.dataclass(frozen=True)
class Electra(MaskedLM):
    """Detects replaced tokens. Terms: `rtd`, the discriminator's, over all tokens, and `mlm`, the generator's.

    A token that is drawn and happens to be the original counts as original (section 2).

    Attributes:
      generator_share: of the encoder's width, feed-forward width and heads, which the generator has (appendix A: 1/4
        for the small and the large model, 1/3 for the base model); it is as deep as the encoder.
      rtd_coefficient: the weight of the discriminator's loss (section 2).
    """

    masking: Masking = TokenMasking(mask=1.0, random=0.0)
    generator_share: float = 0.25
    rtd_coefficient: float = 50.0
    best_metric: ClassVar[str] = "rtd_accuracy"

    def __post_init__(self):
        if not 0.0 <= self.rtd_coefficient < math.inf:
            raise UserError(
                f"objective.rtd_coefficient={self.rtd_coefficient} must be a number and not negative; 50 is ELECTRA's"
            )
        if not 0.0 < self.generator_share <= 1.0:
            raise UserError(
                f"objective.generator_share={self.generator_share} must be above 0 and at most 1; a generator wider "
                "than the discriminator leaves it nothing to find"
            )

    @property
    def coefficients(self) -> dict[str, float]:
        return {"rtd": self.rtd_coefficient}

    def generator(self, encoder: EncoderConfig) -> EncoderConfig:
        """The generator's architecture.

        Raises:
          UserError: its width is not divisible by its heads.
        """
        sizes = {
            field: max(1, round(getattr(encoder, field) * self.generator_share))
            for field in ("width", "feedforward", "heads")
        }
        if sizes["width"] % sizes["heads"]:
            raise UserError(
                f"objective.generator_share={self.generator_share} makes a generator of width {sizes['width']} and "
                f"{sizes['heads']} heads, which do not divide it; choose a share that model.width={encoder.width} and "
                f"model.heads={encoder.heads} allow, such as {1 / encoder.heads:g}"
            )
        return dataclasses.replace(encoder, embedding_width=encoder.embedded_width, **sizes)

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return ElectraModule(encoder, self.generator(encoder))

    def reader(self, encoder: EncoderConfig) -> nn.Module:
        """The generator guesses."""
        return self.module(encoder)

    def flops_parts(self, encoder: EncoderConfig) -> tuple[FlopsPart, ...]:
        return FlopsPart(encoder, predicts=False), FlopsPart(self.generator(encoder))

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Those of masked language modeling, but that what found no place to be predicted stays as it was."""
        features = super().features(examples, draw)
        tokens_BT = examples.tokens_to_rows(examples.ragged.tokens, fill=examples.vocabulary.pad_id)
        rows, places = np.nonzero(features["mlm_weights_BK"])
        columns = features["mlm_positions_BK"][rows, places]
        tokens_BT[rows, columns] = features["tokens_BT"][rows, columns]
        return features | {"tokens_BT": tokens_BT}

    def weights(self, batch):
        return super().weights(batch) | {"rtd": jnp.sum(batch["examples_BT"] > 0).astype(jnp.float32)}

    def terms(self, module, params, frozen, batch, key, train):
        generator_key, sample_key, discriminator_key = split(key, 3)
        logits_BKV = module.apply({"params": params}, batch, generator_key if train else None, method="guess")
        drawn_BK = sample(jax.lax.stop_gradient(logits_BKV), sample_key)
        filled, is_replaced_BT = replace(batch, drawn_BK)
        logits_BT = module.apply({"params": params}, filled, discriminator_key if train else None, method="detect")

        losses, metrics = self.terms_of({"mlm": logits_BKV}, batch)
        loss, rtd_metrics = binary_term("rtd", logits_BT, is_replaced_BT, batch["examples_BT"] > 0)
        (_, tokens), (_, replaced) = rtd_metrics["rtd_accuracy"], rtd_metrics["rtd_recall"]
        return {"rtd": loss} | losses, metrics | rtd_metrics | {"replaced": (replaced, tokens)}


def replace(batch: Arrays, drawn_BK: jax.Array) -> tuple[Arrays, jax.Array]:
    """The batch with the tokens that were drawn at the predicted positions, and where they are not the originals.

    Returns:
      The batch, and bool [B, T].
    """
    tokens_BT, positions_BK = jnp.asarray(batch["tokens_BT"]), batch["mlm_positions_BK"]
    is_place_BK = batch["mlm_weights_BK"] > 0
    rows_B1 = jnp.arange(len(tokens_BT))[:, None]
    # Added, not set: a place without a prediction points to a column that another may have drawn.
    change_BK = jnp.where(is_place_BK, drawn_BK - tokens_BT[rows_B1, positions_BK], 0)
    is_new_BK = (is_place_BK & (drawn_BK != batch["mlm_labels_BK"])).astype(jnp.int32)
    is_replaced_BT = jnp.zeros_like(tokens_BT).at[rows_B1, positions_BK].add(is_new_BK) > 0
    return batch | {"tokens_BT": tokens_BT.at[rows_B1, positions_BK].add(change_BK)}, is_replaced_BT
