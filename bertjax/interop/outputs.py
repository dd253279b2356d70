"""Which outputs a model has outside of bertjax, and what its heads read."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.interop import names, sentence_transformers, task_heads
from bertjax.interop.family import MLM, NSP, PLM, POOLER, RTD, SOP
from bertjax.models.config import Execution
from bertjax.models.encoder import Encoder
from bertjax.models.heads import DetectionHead, MaskedLMHead, PairHead, VocabularyHead
from bertjax.models.layers import Dense
from bertjax.models.pooling import l2_normalize, mean_of_examples

HIDDEN, POOLED, SENTENCE = "last_hidden_state", "pooler_output", "sentence_embedding"
LOGITS, START, END = "logits", "start_logits", "end_logits"


class _Pretrained(NamedTuple):
    source: str
    module: type


_PRETRAINED = {
    MLM: _Pretrained(HIDDEN, MaskedLMHead),
    PLM: _Pretrained(HIDDEN, VocabularyHead),
    RTD: _Pretrained(HIDDEN, DetectionHead),
    NSP: _Pretrained(POOLED, PairHead),
    SOP: _Pretrained(POOLED, PairHead),
}
_READS_VOCABULARY = (MLM, PLM)


class Head(NamedTuple):
    """Where an output comes from.

    Attributes:
      head: name of the head.
      source: the output that the head reads.
      column: the one logit that the output is, without an axis for it; None for all logits.
    """

    head: str
    source: str
    column: int | None = None


@dataclasses.dataclass(frozen=True)
class Reading:
    """The outputs of a model.

    Attributes:
      outputs: their names, in order.
      heads: {output: its head} of those that a head computes.
      is_normalized: whether sentence embeddings have length 1.
    """

    outputs: tuple[str, ...]
    heads: Mapping[str, Head]
    is_normalized: bool = False

    @property
    def _needed(self) -> set[str]:
        return {*self.outputs, *(head.source for head in self.heads.values())}

    @property
    def has_pooler(self) -> bool:
        """Whether an output is the pooler's, or is computed from it."""
        return POOLED in self._needed

    @property
    def has_mean(self) -> bool:
        """Whether an output is the mean of the hidden states, or is computed from it."""
        return SENTENCE in self._needed

    def is_per_token(self, output: str) -> bool:
        """Whether an output is [B, T, ...], with values of no meaning at padding."""
        return (self.heads[output].source if output in self.heads else output) == HIDDEN


def reading_of(export: Export) -> Reading:
    """Return the outputs of a model: of a fine-tuned one its logits, of another one its states and all logits.

    Raises:
      UserError: it has a head that bertjax cannot write.
    """
    heads = export.params.get("heads", {})
    fine_tuned = [term for term in task_heads.TERMS if term in heads]
    if sentence_transformers.is_embedder(export.settings):
        return Reading((SENTENCE,), {}, sentence_transformers.is_normalized(export.settings))
    known = set(fine_tuned[:1]) or _PRETRAINED.keys()
    if unknown := heads.keys() - known:
        raise UserError(names.unnamed(f"heads/{name}" for name in unknown))
    if fine_tuned:
        return _fine_tuned(export, fine_tuned[0])
    computed = {
        f"{name}_logits": Head(name, own.source, column=0 if name == RTD else None)
        for name, own in _PRETRAINED.items()
        if name in heads
    }
    pooled = (POOLED,) if POOLER in export.params["encoder"] else ()
    return Reading((HIDDEN, *pooled, *computed), computed)


def values(export: Export, reading: Reading, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return bertjax's own outputs by name, computed in float32.

    Args:
      export: the model.
      reading: its outputs.
      inputs: `input_ids`, `attention_mask` and, if the encoder has segments, `token_type_ids`; int [B, T].
    """
    config = dataclasses.replace(export.encoder, execution=Execution())
    encoder, heads = export.params["encoder"], export.params.get("heads", {})
    tokens_BT, mask_BT = (inputs[name].astype(np.int32) for name in ("input_ids", "attention_mask"))
    segments_BT = inputs["token_type_ids"].astype(np.int32) if "token_type_ids" in inputs else None
    encoded = jax.jit(Encoder(config).apply)({"params": encoder}, tokens_BT, segments_BT, examples_BT=mask_BT)
    outputs = {HIDDEN: encoded.hidden}
    if reading.has_pooler:
        outputs[POOLED] = encoded.pooled_BND[:, 0]
    if reading.has_mean:
        mean_BD = mean_of_examples(encoded.hidden, mask_BT, slots=1)[:, 0]
        outputs[SENTENCE] = l2_normalize(mean_BD) if reading.is_normalized else mean_BD
    for name, (head, source, column) in reading.heads.items():
        if head in _PRETRAINED:
            word = (encoder["embeddings"]["word"],) if head in _READS_VOCABULARY else ()
            outputs[name] = _PRETRAINED[head].module(config).apply({"params": heads[head]}, outputs[source], *word)
            outputs[name] = outputs[name][..., : config.vocab_size] if word else outputs[name]
        else:
            logits = Dense(config, heads[head]["bias"].shape[0]).apply({"params": heads[head]}, outputs[source])
            outputs[name] = logits if column is None else logits[..., column]
    return {name: np.asarray(outputs[name]) for name in reading.outputs}


def _fine_tuned(export: Export, term: str) -> Reading:
    objective = task_heads.objective_of(export.settings, term)
    if term == task_heads.SPAN:
        return Reading((START, END), {START: Head(term, HIDDEN, 0), END: Head(term, HIDDEN, 1)})
    is_mean = objective.get("pooling", task_heads.CLS) != task_heads.CLS
    source = HIDDEN if term == task_heads.TAGGING else SENTENCE if is_mean else POOLED
    return Reading((LOGITS,), {LOGITS: Head(term, source)})
