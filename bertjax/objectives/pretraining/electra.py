"""ELECTRA: replaced token detection (Clark et al., 2020, arXiv 2003.10555).

A generator predicts the masked tokens (masked language modeling; section 2, equation 1). Samples from its predictions
replace them, and a discriminator classifies every token as original or replaced (equation 2). Both are trained jointly,
with min L_MLM + 50 L_disc; no gradient passes through the sampling. They share the embeddings (section 3.2), or only
the word embeddings and without the discriminator's gradient (`bertjax.models.disentangled_embeddings`, DeBERTa-v3).

The discriminator is the exported encoder. The generator is saved with the heads; only further pretraining needs it.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masking, TokenMasking
from bertjax.models import disentangled_embeddings
from bertjax.models.config import VOCABULARY_MULTIPLE, EncoderConfig
from bertjax.models.dropout import bits, split
from bertjax.models.flops import FlopsPart, head_products
from bertjax.models.heads import masked_lm_head
from bertjax.models.kernel_choice import with_possible_attention
from bertjax.models.model import HeadSpec, Model
from bertjax.models.other_heads import DetectionHead
from bertjax.objectives.base import Arrays, joined
from bertjax.objectives.losses import binary_term
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

# With 23 bits, a fraction in [0, 1) times a positive float32 is always strictly less than that float32.
_SHARE_BITS = 23


def sample(logits: jax.Array, key: jax.Array) -> jax.Array:
    """Sample a class from the softmax of each row of logits; int32 [B, ...].

    The cumulative distribution is inverted at one uniform number per row; the Gumbel trick would need one random number
    per class. A tile of classes is sampled first, then a class in the tile, which avoids a cumulative sum over the
    whole vocabulary. Classes with probability 0, such as vocabulary padding, are never drawn.

    Args:
      logits: float32, [B, ..., V], V a multiple of 128.
      key: one key, or keys [B], one per batch row.
    """
    *leading, classes = logits.shape
    tiles = classes // VOCABULARY_MULTIPLE
    # Subtract the maximum so that exp cannot overflow; the common factor cancels in the sampling.
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True)).reshape(*leading, tiles, VOCABULARY_MULTIPLE)
    share = (bits(key, tuple(leading)) >> (32 - _SHARE_BITS)).astype(jnp.float32) * 2.0**-_SHARE_BITS
    tile, rest = _invert(weights.sum(axis=-1), share)
    within = jnp.take_along_axis(weights, tile[..., None, None], axis=-2)[..., 0, :]
    return tile * VOCABULARY_MULTIPLE + _invert(within, rest)[0]


def _invert(weights: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the index of the entry of `weights` [..., n] at the fraction `share` [...] of the cumulative sum.

    Also return how far into that entry the fraction is, in [0, 1): it is uniform again and selects the class in the
    tile.
    """
    sums = jnp.cumsum(weights, axis=-1)
    target = share * sums[..., -1]
    entry = jnp.sum(sums <= target[..., None], axis=-1)
    chosen = jnp.take_along_axis(weights, entry[..., None], axis=-1)[..., 0]
    before = jnp.take_along_axis(sums, entry[..., None], axis=-1)[..., 0] - chosen
    return entry, jnp.clip((target - before) / chosen, 0.0, 1.0 - 2.0**-_SHARE_BITS)


DISENTANGLED = "gradient_disentangled"
EMBEDDING_SHARING = ("all", DISENTANGLED)


@dataclasses.dataclass(frozen=True)
class Electra(MaskedLM):
    """Detect replaced tokens. Terms: `rtd` for the discriminator, over all tokens, and `generator`.

    The generator's masked language modeling term has its own name, because a smaller model's loss is not comparable
    with an encoder's `mlm`. A sampled token that equals the original counts as original (section 2).

    Attributes:
      generator_share: the generator's widths (hidden, inner and feed-forward) and number of heads relative to the
        encoder's (appendix A: 1/4 for the small and large models, 1/3 for the base model).
      generator_depth: the generator's number of layers relative to the encoder's. DeBERTa-v3 has generators of the same
        width and half the depth.
      embedding_sharing: `all`, or `gradient_disentangled`: the discriminator's word embeddings are the generator's,
        without a gradient, plus a trained difference.
      rtd_coefficient: weight of the discriminator's loss (section 2).
    """

    masking: Masking = TokenMasking(mask=1.0, random=0.0)
    generator_share: float = setting(0.25, above=0, most=1)
    generator_depth: float = setting(1.0, above=0, most=1)
    embedding_sharing: str = setting("all", choices=EMBEDDING_SHARING)
    rtd_coefficient: float = setting(50.0, least=0)
    best_metric: ClassVar[str] = "rtd_loss"  # few tokens are replaced, so "never" is already accurate
    baselines = MaskedLM.baselines  # for the generator, which predicts masked tokens

    @property
    def traits(self):
        # All encoders of a run read stop_gradient(E) + delta. Only this task's generator trains E, and delta is not a
        # parameter of the models of other tasks, so their steps leave it as it is.
        alone = f"embedding_sharing={DISENTANGLED}" if self._is_disentangled else ""
        return dataclasses.replace(MaskedLM.traits, text_term="generator", trains_words_alone=alone)

    def loss_weights(self, terms, step):
        return {"rtd": self.rtd_coefficient}

    def generator(self, config: EncoderConfig) -> EncoderConfig:
        """Return the generator's architecture.

        Raises:
          UserError: there is no such encoder, or embeddings are as wide as the encoder.
        """
        if config.embeddings.output_width(config) != config.embedded_width:
            raise UserError(
                "objective.kind=electra shares embeddings of another width than the generator's, and "
                f"model.embeddings.kind={config.embeddings.kind} makes them as wide as the encoder; set it to bert"
            )
        try:
            # A share of the widths and heads, reading the embeddings of the whole encoder.
            names = ("width", "feedforward", "heads")
            sizes = {name: max(1, round(getattr(config, name) * self.generator_share)) for name in names}
            parts = {"block": config.block.scaled(self.generator_share), "embeddings.width": config.embedded_width}
            scaled = config.replace(sizes | parts | {"layers": max(1, round(config.layers * self.generator_depth))})
        except UserError as error:
            problem, _, _ = str(error).partition(";")  # its remedy changes the encoder
            raise UserError(
                f"objective.generator_share={self.generator_share} with generator_depth={self.generator_depth} scales "
                f"the encoder to a generator that cannot exist ({problem}); choose others, 1 always exists"
            ) from error
        # ELECTRA-Small's generator has one head of width 64, which does not fill a tile of the fused kernel.
        return with_possible_attention(scaled)

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        return {"mlm": HeadSpec(masked_lm_head(config), on_generator=True), "rtd": HeadSpec(DetectionHead)}

    def model(self, config: EncoderConfig) -> Model:
        return Model(config, self.heads(config), self.generator(config), not self._is_disentangled)

    @property
    def _is_disentangled(self) -> bool:
        return self.embedding_sharing == DISENTANGLED

    def init(self, model: Model, key: jax.Array, batch: dict[str, Any]) -> dict:
        params = super().init(model, key, batch)
        return disentangled_embeddings.split(params) if self._is_disentangled else params

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`mlm`: `mlm_logits`, `rtd`: `rtd_logits`} for the batch as it is, without dropout."""
        return {"mlm": self.mlm_logits(model, batch), "rtd": self.rtd_logits(model, batch)}

    def mlm_logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return the generator's logits_BKV at the predicted positions."""
        hidden_BKD = model.encode_by_generator(batch, key, batch["mlm_positions_BK"]).hidden
        return model.head("mlm", hidden_BKD, model.generator_word_VE)

    def rtd_logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Return the discriminator's logits_BT; above 0 means "replaced"."""
        return model.head("rtd", model.encode(batch, key).hidden)

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        generator, heads = self.generator(config), self.heads(config)
        return (
            FlopsPart(config, {"tokens": head_products(config, heads["rtd"])}),
            FlopsPart(generator, {"predictions": head_products(generator, heads["mlm"])}, read=1.0),
        )

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return masked language modeling features; chosen tokens beyond the capacity K stay unmasked."""
        features = super().features(examples, draw)
        # Start from the original text and mask only the tokens that a place in K predicts: others have no replacement.
        tokens_BT = examples.tokens_to_rows(examples.ragged.tokens, fill=examples.vocabulary.pad_id)
        rows, places = np.nonzero(features["mlm_weights_BK"])
        columns = features["mlm_positions_BK"][rows, places]
        tokens_BT[rows, columns] = features["tokens_BT"][rows, columns]
        return features | {"tokens_BT": tokens_BT}

    def weights(self, batch):
        (predicted,) = super().weights(batch).values()
        return {"generator": predicted, "rtd": jnp.sum(batch["examples_BT"] > 0).astype(jnp.float32)}

    def terms(self, model, params, frozen, batch, key, train, taps=None):
        generator_key, sample_key, discriminator_key = split(key, 3)
        logits_BKV = self.apply(model, params, batch, generator_key if train else None, self.mlm_logits, taps)
        # Unlike a GAN, the generator is not trained to fool the discriminator (section 2).
        drawn_BK = sample(jax.lax.stop_gradient(logits_BKV), sample_key)
        filled, is_replaced_BT = replace(batch, drawn_BK)
        logits_BT = self.apply(model, params, filled, discriminator_key if train else None, self.rtd_logits, taps)

        loss, metrics = binary_term("rtd", logits_BT, is_replaced_BT, batch["examples_BT"] > 0)
        (_, tokens), (_, replaced) = metrics["rtd_accuracy"], metrics["rtd_recall"]
        rtd = {"rtd": loss}, metrics | {"replaced": (replaced, tokens)}
        # Its own metric names keep the generator apart from an encoder's `mlm`.
        generator, generator_metrics = self.terms_of({"mlm": logits_BKV}, batch)
        named = {name.replace("mlm_", "generator_"): value for name, value in generator_metrics.items()}
        return joined(rtd, ({"generator": generator["mlm"]}, named))


def replace(batch: Arrays, drawn_BK: jax.Array) -> tuple[Arrays, jax.Array]:
    """Replace the predicted positions by sampled tokens, and mark the tokens that differ from the original.

    Returns:
      The batch, and bool [B, T].
    """
    tokens_BT, positions_BK = jnp.asarray(batch["tokens_BT"]), batch["mlm_positions_BK"]
    is_place_BK = batch["mlm_weights_BK"] > 0
    rows_B1 = jnp.arange(len(tokens_BT))[:, None]
    # Add, do not set: unused places point to column 0, which another place may predict.
    change_BK = jnp.where(is_place_BK, drawn_BK - tokens_BT[rows_B1, positions_BK], 0)
    is_new_BK = (is_place_BK & (drawn_BK != batch["mlm_labels_BK"])).astype(jnp.int32)
    is_replaced_BT = jnp.zeros_like(tokens_BT).at[rows_B1, positions_BK].add(is_new_BK) > 0
    return batch | {"tokens_BT": tokens_BT.at[rows_B1, positions_BK].add(change_BK)}, is_replaced_BT
