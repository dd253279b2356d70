"""Masked language modeling (MLM; Devlin et al., 2019, section 3.1, task 1; arXiv 1810.04805)."""

import dataclasses
from typing import Any, ClassVar, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.masking import Masking, TokenMasking, gather_masked, mask
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoded
from bertjax.models.flops import FlopsPart, head_products
from bertjax.models.heads import masked_lm_head
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays, Objective, Terms, joined
from bertjax.objectives.host import Output, Sample, Traits
from bertjax.objectives.losses import classification_term

GUESSES = 5


class Labels(Protocol):
    """An additional term with its own head, trained together with masked tokens.

    Attributes:
      term: name of the term and head, and prefix for its features and metrics.
      reads_all_tokens: whether the head reads every token's hidden state instead of the pooled [CLS].
    """

    reads_all_tokens: ClassVar[bool]

    @property
    def term(self) -> str: ...

    @property
    def head(self) -> HeadSpec:
        """The head."""

    def logits(self, model: Model, encoded: Encoded) -> jax.Array:
        """Device: return the head's logits."""

    def features(self, examples: PlacedExamples) -> dict[str, np.ndarray]:
        """Host: return the labels."""

    def weight(self, batch: Arrays) -> jax.Array:
        """Device: return the term's normalizer W."""

    def terms(self, logits: Arrays, batch: Arrays) -> Terms:
        """Device: return the term and its metrics."""

    def baselines(self, batch: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, float]]:
        """Host: return `<term>_majority`, the accuracy of the best constant answer."""


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
    """Predict masked tokens from context on both sides. Terms: `mlm`, plus one per entry of `parts`.

    Attributes:
      masking: selects the tokens to predict.
      term: name of the token term, and prefix for its features and metrics.
      head: name of the vocabulary head.
      parts: additional terms that classify sentence pairs or tokens. Other objectives override methods instead.
    """

    masking: Masking = TokenMasking()
    traits: ClassVar[Traits] = Traits(
        text_term="mlm", sharding_rules=((r"heads/mlm/(transform|first|second)/kernel$", PartitionSpec("fsdp", None)),)
    )
    term: ClassVar[str] = "mlm"
    head: ClassVar[str] = "mlm"
    parts: ClassVar[tuple[Labels, ...]] = ()

    @property
    def best_metric(self) -> str:
        return f"{self.term}_loss"

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        return {self.head: HeadSpec(masked_lm_head(config))} | {part.term: part.head for part in self.parts}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Return {`<term>`: logits_BKV of the predicted tokens, and the logits of each part by its term}."""
        positions_BK, reads_all = batch[f"{self.term}_positions_BK"], any(part.reads_all_tokens for part in self.parts)
        # Only about 15% of the positions are predicted: the last layer and the vocabulary matmul skip the others.
        encoded = model.encode(batch, key, None if reads_all else positions_BK)
        predicted_BKD = take_columns(encoded.hidden, positions_BK) if reads_all else encoded.hidden
        logits = {self.term: model.head(self.head, predicted_BKD, model.word_VE)}
        return logits | {part.term: part.logits(model, encoded) for part in self.parts}

    def mlm_logits(self, model: Model, batch: Arrays, key: jax.Array | None = None, **streams: Any) -> jax.Array:
        """Device: return logits_BKV at `<term>_positions_BK`; `<term>_weights_BK` is the only other feature to read.

        Args:
          streams: see `Model.encode`.
        """
        hidden_BKD = model.encode(batch, key, batch[f"{self.term}_positions_BK"], **streams).hidden
        return model.head(self.head, hidden_BKD, model.word_VE)

    def flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        heads = {"predictions": head_products(config, self.heads(config)[self.head])}
        for part in self.parts:
            unit = "tokens" if part.reads_all_tokens else "examples"
            heads[unit] = heads.get(unit, 0) + head_products(config, part.head)
        # If a part reads every token, the last layer computes every token.
        return (FlopsPart(config, heads, read=None if "tokens" in heads else 1.0),)

    def bind(self, store: TokenStore | None) -> Self:
        return dataclasses.replace(self, masking=self.masking.bind(store))

    @property
    def fingerprints(self) -> dict[str, str]:
        return self.masking.fingerprints

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        masked = mask(examples, draw, self.masking)
        return self.masked_features(examples, masked.tokens, masked.chosen)

    def masked_features(
        self, examples: PlacedExamples, tokens: np.ndarray, chosen: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Host: return features of masked examples and of the parts.

        Args:
          examples: n tokens, before masking.
          tokens: int32 [n], encoder input.
          chosen: bool [n], tokens to predict.
        """
        _, seq_len, row_examples = examples.shape
        features = {"tokens_BT": examples.tokens_to_rows(tokens, fill=examples.vocabulary.pad_id)}
        # K is a fixed capacity, because XLA compiles for fixed shapes. Chosen tokens beyond it are dropped and counted.
        features |= token_features(self.term, examples, chosen, self.masking.capacity(seq_len, row_examples))
        for part in self.parts:
            features |= part.features(examples)
        return features

    def weights(self, batch: Arrays) -> Arrays:
        return {self.term: token_weight(self.term, batch)} | {part.term: part.weight(batch) for part in self.parts}

    def soft_logits(self, logits: Arrays, batch: Arrays) -> jax.Array:
        return logits[self.term]

    def soft_weights(self, batch: Arrays) -> jax.Array:
        return batch[f"{self.term}_weights_BK"]

    def terms_of(self, logits: Arrays, batch: Arrays) -> Terms:
        return joined(token_terms(self.term, logits, batch), *(part.terms(logits, batch) for part in self.parts))

    def outputs(self, model, params, batch, taps=None):
        """`<term>_guesses`, [B, K, 5]: the best token ids at each predicted position, best first."""
        logits = self.apply(model, params, batch, taps=taps)
        return {f"{self.term}_guesses": Output(jax.lax.top_k(logits[self.term], GUESSES)[1], per="row")}

    def baselines(self, batch, token_counts):
        """Unigram distribution (counts + 1), most frequent token, and the parts' baselines."""
        baselines = token_baselines(self.term, batch, token_counts)
        for part in self.parts:
            baselines |= part.baselines(batch)
        return baselines

    def samples(self, outputs, batch, tokenizer):
        names = ["tokens_BT", "examples_BT", *(f"{self.term}_{name}_BK" for name in ("labels", "weights"))]
        rows = zip(*(batch[name] for name in names), outputs[f"{self.term}_guesses"], strict=True)
        return [_sample(tokenizer, *row) for row in rows]


def token_features(term: str, examples: PlacedExamples, chosen: np.ndarray, capacity: int) -> dict[str, np.ndarray]:
    """Host: return `<term>_{positions,labels,weights}_BK` and `<term>_dropped_B` for the chosen tokens (bool [n])."""
    return {f"{term}_{name}": array for name, array in gather_masked(examples, chosen, capacity).items()}


def token_weight(term: str, batch: Arrays) -> jax.Array:
    """Device: return the number of predicted tokens."""
    return jnp.sum(batch[f"{term}_weights_BK"])


def token_terms(term: str, logits: Arrays, batch: Arrays) -> Terms:
    """Device: return the predicted tokens' term, its accuracy, and the share of chosen tokens beyond the capacity."""
    weights_BK = batch[f"{term}_weights_BK"]
    loss, correct = classification_term(logits[term], batch[f"{term}_labels_BK"], weights_BK)
    predicted, dropped = jnp.sum(weights_BK), jnp.sum(batch[f"{term}_dropped_B"]).astype(jnp.float32)
    metrics = {f"{term}_accuracy": (correct, predicted), f"{term}_dropped": (dropped, predicted + dropped)}
    return {term: loss}, metrics


def take_columns(hidden_BTD: jax.Array, columns_BK: jax.Array) -> jax.Array:
    """Return [B, K, D]: the hidden states at these columns of each row."""
    return jnp.take_along_axis(hidden_BTD, columns_BK[..., None], axis=1)


def _sample(tokenizer, tokens_T, examples_T, labels_K, weights_K, guesses_K5) -> Sample:
    real_K = weights_K > 0
    return Sample(
        text=tokenizer.decode(tokens_T[examples_T > 0].tolist(), keep_special=True),
        answers=tuple(tokenizer.piece(int(label)) for label in labels_K[real_K]),
        guesses=tuple(tuple(tokenizer.piece(int(guess)) for guess in guesses) for guesses in guesses_K5[real_K]),
    )


def token_baselines(
    term: str, batch: dict[str, np.ndarray], token_counts: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Host: return the unigram distribution's loss (counts + 1) and the accuracy of always guessing the top token."""
    labels = batch[f"{term}_labels_BK"][batch[f"{term}_weights_BK"] > 0]
    # Add-one smoothing: held-out tokens may be missing from the training split.
    smoothed = token_counts + 1
    losses = np.log(smoothed.sum()) - np.log(smoothed[labels])
    return {
        "unigram_loss": (float(losses.sum()), len(labels)),
        "majority_accuracy": (float(np.sum(labels == np.argmax(token_counts))), len(labels)),
    }


def majority(term: str, labels: np.ndarray, num_labels: int) -> dict[str, tuple[np.ndarray, float]]:
    """Return the baseline `<term>_majority`: number of correct answers for each constant answer."""
    # One count per possible answer; the best one is selected after all batches are added.
    return {f"{term}_majority": (np.bincount(labels, minlength=num_labels), len(labels))}
