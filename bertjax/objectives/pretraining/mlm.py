"""Masked language modeling (Devlin et al., 2019, section 3.1, task 1; arXiv 1810.04805)."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masked, Masking, TokenMasking, gather_masked, mask
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import Heads, MaskedLMHead
from bertjax.objectives.base import Arrays, Objective, Sample, encode
from bertjax.objectives.losses import classification_term

GUESSES = 5


class MaskedLMModule(nn.Module):
    """Encoder and the masked-LM head that shares its word embeddings."""

    config: EncoderConfig

    def setup(self):
        self.encoder = Encoder(self.config)
        self.heads = Heads({"mlm": functools.partial(MaskedLMHead, self.config)})

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`mlm`: logits_BKV at the predicted positions}."""
        encoded = encode(self.encoder, batch, key, batch["mlm_positions_BK"])
        return {"mlm": self.heads("mlm", encoded.hidden, self.encoder.embeddings.word)}


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
    """Predicts masked tokens from both sides. Terms: `mlm`.

    Attributes:
      masking: which tokens are predicted.
      token_term: the name of the term, with which the names of its features and metrics begin.
    """

    masking: Masking = TokenMasking()
    token_term: ClassVar[str] = "mlm"

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return MaskedLMModule(encoder)

    def reader(self, encoder: EncoderConfig) -> nn.Module:
        """What guesses masked tokens by encoder and head alone: a module that gives {`<token_term>`: logits_BKV}."""
        return MaskedLMModule(encoder)

    @property
    def sharding_rules(self):
        return ((r"heads/mlm/transform/kernel$", PartitionSpec("fsdp", None)),)

    def bind(self, store: TokenStore | None) -> "MaskedLM":
        return dataclasses.replace(self, masking=self.masking.bind(store))

    @property
    def fingerprints(self) -> dict[str, str]:
        return self.masking.fingerprints

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        return self.features_of(examples, draw, mask(examples, draw, self.masking))

    def features_of(self, examples: PlacedExamples, draw: Draw, masked: Masked) -> dict[str, np.ndarray]:
        """Host: the features of examples that are masked."""
        _, seq_len, row_examples = examples.shape
        capacity = self.masking.capacity(seq_len, row_examples)
        return {
            "tokens_BT": examples.tokens_to_rows(masked.tokens, fill=examples.vocabulary.pad_id),
            **{
                f"{self.token_term}_{name}": array
                for name, array in gather_masked(examples, masked.chosen, capacity).items()
            },
        }

    def weights(self, batch: Arrays) -> Arrays:
        return {self.token_term: jnp.sum(batch[f"{self.token_term}_weights_BK"])}

    def terms(self, module, params, frozen, batch, key, train):
        logits = module.apply({"params": params}, batch, key if train else None)
        return self.terms_of(logits, batch)

    def terms_of(self, logits: Arrays, batch: Arrays):
        """Terms and metrics from the heads' logits."""
        term, weights_BK = self.token_term, batch[f"{self.token_term}_weights_BK"]
        loss, right = classification_term(logits[term], batch[f"{term}_labels_BK"], weights_BK)
        predicted, dropped = jnp.sum(weights_BK), jnp.sum(batch[f"{term}_dropped_B"]).astype(jnp.float32)
        metrics = {f"{term}_accuracy": (right, predicted), f"{term}_dropped": (dropped, predicted + dropped)}
        return {term: loss}, metrics

    def outputs(self, module, params, batch):
        """`<token_term>_guesses_BK5`: the best token ids at each predicted position, best first."""
        logits = module.apply({"params": params}, batch)
        return {f"{self.token_term}_guesses_BK5": jax.lax.top_k(logits[self.token_term], GUESSES)[1]}

    def baselines(self, batch, token_counts):
        """The unigram distribution (counts + 1), and always guessing the most frequent token."""
        labels = batch[f"{self.token_term}_labels_BK"][batch[f"{self.token_term}_weights_BK"] > 0]
        smoothed = token_counts + 1
        losses = np.log(smoothed.sum()) - np.log(smoothed[labels])
        return {
            "unigram_loss": (float(losses.sum()), len(labels)),
            "majority_accuracy": (float(np.sum(labels == np.argmax(token_counts))), len(labels)),
        }

    def samples(self, outputs, batch, tokenizer):
        rows = zip(
            batch["tokens_BT"],
            batch["examples_BT"],
            *(batch[f"{self.token_term}_{name}_BK"] for name in ("positions", "labels", "weights")),
            outputs[f"{self.token_term}_guesses_BK5"],
            strict=True,
        )
        return [_sample(*row, tokenizer) for row in rows]


def _sample(tokens_T, examples_T, positions_K, labels_K, weights_K, guesses_K5, tokenizer) -> Sample:
    real_K = weights_K > 0
    return Sample(
        text=tokenizer.decode(tokens_T[examples_T > 0].tolist(), keep_special=True),
        answers=tuple(tokenizer.piece(int(label)) for label in labels_K[real_K]),
        guesses=tuple(tuple(tokenizer.piece(int(guess)) for guess in guesses) for guesses in guesses_K5[real_K]),
    )
