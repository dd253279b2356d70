"""Masked diffusion: masked language modeling at every rate, weighted into a bound of the likelihood.

Nie et al. (2025), Large Language Diffusion Models, section 2.1 and equation 14 of appendix A (arXiv 2502.09992). Of n
tokens, l are masked and predicted, with l uniform from 1 to n. The loss of the example is n / l times their sum. Its
expectation bounds the negative log-likelihood of the text. It is the mean over all orders in which the tokens can be
predicted one after the other (Uria et al., 2014, A Deep and Tractable Density Estimator, arXiv 1310.1757).
"""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masking, UniformMasking, mask
from bertjax.objectives.host import Traits
from bertjax.objectives.pretraining.mlm import MaskedLM


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(MaskedLM):
    """Predict the masked tokens of examples masked at all rates. Terms: `diffusion`, in nats per token of the text.

    `diffusion_loss` bounds the loss of a whole text, like `clm_loss` of a causal model. It is not comparable with
    `mlm_loss`, which has most of the text to predict from.

    Attributes:
      masking: selects the tokens to predict. With another kind than `uniform`, or with a `rate` below 1, also of a
        stage, the loss is not a bound of a likelihood.
    """

    masking: Masking = UniformMasking()
    term: ClassVar[str] = "diffusion"
    traits: ClassVar[Traits] = dataclasses.replace(MaskedLM.traits, text_term="diffusion")

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        masked = mask(examples, draw, self.masking)
        features = self.masked_features(examples, masked.tokens, masked.chosen)
        # n / l of each example: a token that is predicted from little context is one of many, and counts less.
        ragged, number = examples.ragged, len(examples.ragged.ids)
        predicted_M = np.bincount(ragged.token_examples, masked.chosen, minlength=number)
        maskable_M = np.bincount(ragged.token_examples, ~ragged.special, minlength=number)
        weights_M = (maskable_M / np.maximum(predicted_M, 1)).astype(np.float32)
        weights_BT = examples.tokens_to_rows(ragged.spread(weights_M))
        features["diffusion_weights_BK"] *= np.take_along_axis(weights_BT, features["diffusion_positions_BK"], axis=1)
        return features
