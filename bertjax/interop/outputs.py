"""The outputs of an exported model and the inputs of its heads."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.interop import names, task_heads
from bertjax.interop.family import MLM, POOLER, PRETRAINED, RTD
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.models.pooling import l2_normalize, mean_of_examples
from bertjax.runtime.errors import UserError

HIDDEN, POOLED, SENTENCE = "last_hidden_state", "pooler_output", "sentence_embedding"
LOGITS, START, END = "logits", "start_logits", "end_logits"


# {`objective.pooling`: the output that the head reads}
_SOURCES = {task_heads.CLS: POOLED, task_heads.MEAN: SENTENCE, task_heads.LATE: HIDDEN}
# Arrays of a core batch, in the argument order of `Encoder.__call__`.
_ENCODED = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")


class Head(NamedTuple):
    """The source of one output.

    Attributes:
      head: name of the head that computes it.
      source: the output that the head reads.
      column: index of a single logit, whose axis is dropped; None for all logits.
      is_late: whether the output is the mean over the logits of all tokens.
    """

    head: str
    source: str
    column: int | None = None
    is_late: bool = False


@dataclasses.dataclass(frozen=True)
class Reading:
    """The outputs of a model.

    Attributes:
      outputs: output names, in order.
      heads: {output: its head}, for outputs that a head computes.
      is_normalized: whether sentence embeddings have length 1.
    """

    outputs: tuple[str, ...]
    heads: Mapping[str, Head]
    is_normalized: bool = False

    def needs(self, source: str) -> bool:
        """Return whether any output is, or is computed from, this one."""
        return source in {*self.outputs, *(head.source for head in self.heads.values())}

    def is_per_token(self, output: str) -> bool:
        """Whether an output has shape [B, T, ...]; its values at padding are meaningless."""
        if output not in self.heads:
            return output == HIDDEN
        return self.heads[output].source == HIDDEN and not self.heads[output].is_late


def reading_of(export: Export) -> Reading:
    """Return a model's outputs: only logits if it is fine-tuned, otherwise hidden states and all logits.

    Raises:
      UserError: bertjax cannot export one of its heads.
    """
    heads = export.params.get("heads", {})
    fine_tuned = [term for term in task_heads.TERMS if term in heads]
    if export.is_embedder:
        return Reading((SENTENCE,), {}, export.is_normalized)
    # A fine-tuned model has exactly one head; a pretrained one may have several.
    known = set(fine_tuned[:1]) or PRETRAINED.keys()
    if unknown := heads.keys() - known:
        raise UserError(names.unnamed(f"heads/{name}" for name in unknown))
    if fine_tuned:
        return _fine_tuned(export, fine_tuned[0])
    # ELECTRA's `mlm` head belongs to the generator, a separate encoder that only pretraining needs.
    left_out = {MLM} if RTD in heads else set()
    computed = {
        f"{name}_logits": Head(name, POOLED if own.reads_pooler else HIDDEN, column=0 if name == RTD else None)
        for name, own in PRETRAINED.items()
        if name in heads.keys() - left_out
    }
    # As in transformers' classes: if no head reads the pooler, it was never trained.
    has_pooled = POOLER in export.params["encoder"] and (
        not computed or POOLED in {head.source for head in computed.values()}
    )
    return Reading((HIDDEN, *[POOLED] * has_pooled, *computed), computed)


def values(export: Export, reading: Reading, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return bertjax's own outputs by name, computed in float32 as `bertjax predict` does.

    A fine-tuned model's logits come from its objective. Poolers read [CLS] where the batch has it.

    Args:
      export: the model.
      reading: its outputs.
      batch: a core batch with one example per row.
    """
    # Exports are float32 and do not round activations.
    config = dataclasses.replace(export.encoder, execution=Execution(), activation_bits=0)
    if reading.outputs in ((LOGITS,), (START, END)):
        return _logits(export, config, reading, batch)
    encoder, heads = export.params["encoder"], export.params.get("heads", {})
    arrays = (batch[name] for name in _ENCODED)
    encoded = jax.jit(Encoder(config).apply)({"params": encoder}, *arrays)
    outputs = {HIDDEN: encoded.hidden}
    if reading.needs(POOLED):
        outputs[POOLED] = encoded.pooled_BND[:, 0]
    if reading.needs(SENTENCE):
        mean_BD = mean_of_examples(encoded.hidden, batch["examples_BT"], slots=1)[:, 0]
        outputs[SENTENCE] = l2_normalize(mean_BD) if reading.is_normalized else mean_BD
    for name, (head, source, *_) in reading.heads.items():
        word = (encoder["embeddings"]["word"],) if PRETRAINED[head].reads_words else ()
        # The padding of the vocabulary has logits as well, which are cut off.
        logits = PRETRAINED[head].module(config).apply({"params": heads[head]}, outputs[source], *word)
        outputs[name] = logits[..., : config.vocab_size] if word else logits
    return {name: np.asarray(outputs[name]) for name in reading.outputs}


def _logits(
    export: Export, config: EncoderConfig, reading: Reading, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return a fine-tuned model's logits, computed by its own objective."""
    objective = config_of(export).task.objective
    if objective.traits.group > 1:  # in training all choices of a question share a row; here each is a row
        objective = dataclasses.replace(cast(Any, objective), classes=objective.classes[:1])
    logits = np.asarray(jax.jit(functools.partial(objective.apply, objective.model(config)))(export.params, batch))
    if not reading.is_per_token(reading.outputs[0]):
        return {LOGITS: logits.reshape(len(logits), -1)}
    return {name: logits if head.column is None else logits[..., head.column] for name, head in reading.heads.items()}


def _fine_tuned(export: Export, term: str) -> Reading:
    objective = task_heads.objective_of(export.settings, term)
    if term == task_heads.SPAN:
        return Reading((START, END), {START: Head(term, HIDDEN, 0), END: Head(term, HIDDEN, 1)})
    if term == task_heads.TAGGING:
        return Reading((LOGITS,), {LOGITS: Head(term, HIDDEN)})
    source = _SOURCES[objective.get("pooling", task_heads.CLS)]
    return Reading((LOGITS,), {LOGITS: Head(term, source, is_late=source == HIDDEN)})
