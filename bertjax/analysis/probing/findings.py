"""Measures and probes of this package applied to one `Subject`. Results are plain numbers.

Probes read the hidden states after each layer many times, in small slices. The states of words or texts are computed
once and kept in a temporary file, which is memory-mapped: that bounds memory use.
"""

import contextlib
import dataclasses
import functools
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.analysis.material import Encoded, Material
from bertjax.analysis.probing import linear_probe, similarity, structural_probe, tasks
from bertjax.analysis.probing.linear_probe import Labels
from bertjax.analysis.probing.similarity import grams_of
from bertjax.analysis.probing.tasks import LabeledTask, Units, sentences_of, units_of
from bertjax.analysis.reduce import Function, Progress, put, reduce
from bertjax.analysis.subject import Subject
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.encoder import Encoder
from bertjax.models.heads import masked_lm_head
from bertjax.models.mixing import CAPTURES, all_layers, encode_layers
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.losses import Sums
from bertjax.objectives.pretraining.mlm import MaskedLM, take_columns
from bertjax.runtime.errors import UserError

# Seed for samples, control tasks, random weights and batch order.
SEED = 0
# Number of words compared by CKA.
_COMPARED = 4096
# Fraction of the usual batch rows, because the states of all layers are copied to the host.
_SHARE = 0.25

Numbers = dict[str, Any]


class Texts(NamedTuple):
    """Measurements on texts.

    Attributes:
      grams: input of `similarity.cka`.
      key: equal keys mean that models were measured on the same tokens.
      numbers: measures by layer: `contextuality`, and `lens` if the model has a masked-LM head.
    """

    grams: list[np.ndarray]
    key: tuple
    numbers: Numbers


def on_texts(subject: Subject, material: Material, progress: Progress) -> Texts:
    """Measure a model's states on the texts of a material: contextuality, input for CKA, and logit lens.

    Raises:
      UserError: a text does not suit the model.
    """
    encoded = material.encoded(subject)
    words = similarity.sample(encoded.ragged, encoded.vocabulary, SEED)
    starts = np.flatnonzero(similarity.word_starts(encoded.ragged, encoded.vocabulary))
    compared = np.random.default_rng(SEED).permutation(starts)[:_COMPARED]
    # Only states that some measure reads are stored.
    tokens = np.union1d(words.tokens, compared)
    unit_of = np.full(len(encoded.ragged.tokens), -1, np.int64)
    unit_of[tokens] = np.arange(len(tokens))
    with _states(subject, encoded, unit_of, f"{subject.label}, {material.name}", progress) as states:
        grams = grams_of(states[unit_of[compared]])
        sampled = unit_of[words.tokens]
        layers = [similarity.contextuality(states[sampled, layer], words) for layer in range(states.shape[1])]
    numbers: Numbers = {"contextuality": {name: [layer[name] for layer in layers] for name in layers[0]}}
    objective = material.objective(subject)
    if not without_lens(subject, objective):
        function = _lens_function(objective, subject.encoder)
        means = reduce(subject, material, function, progress, with_objective=True)
        # The geometric mean of the ranks is the exponential of their mean logarithm.
        numbers["lens"] = means | {"geometric_mean_rank": np.exp(means.pop("log_rank"))}
    tokens_hash = hashlib.sha256(encoded.ragged.tokens.tobytes()).hexdigest()
    return Texts(grams, (subject.tokenizer.fingerprint, tokens_hash), numbers)


def without_lens(subject: Subject, objective: Objective | None) -> str:
    """Return why there is no logit lens, as the end of a sentence about the model; empty if there is one."""
    if not isinstance(objective, MaskedLM):
        return "has no masked-LM head"
    head = objective.heads(subject.encoder).get("mlm")
    if head is None or head.kind is not masked_lm_head(subject.encoder) or head.on_generator:
        return "has no masked-LM head that reads its encoder"
    return ""


@functools.lru_cache(maxsize=16)
def _lens_function(objective: MaskedLM, encoder: EncoderConfig) -> Function:
    """Return one function object per architecture and objective, so that it is compiled once."""
    return functools.partial(lens, objective, encoder)


def on_task(subject: Subject, task: LabeledTask, rank: int, progress: Progress) -> dict[str, Numbers]:
    """Probe a model's states, which are computed once.

    Returns:
      `probe`: linear probes for the labels and, if units are words, for a control task. `trees`: structural probes with
      this rank, if the task has trees.
    """
    if task.reads_cls and (direction := subject.encoder.direction) != BIDIRECTIONAL:
        raise UserError(
            f"{subject.label} has model.direction={direction}, so that its [CLS] does not see the whole text; probe it "
            "with --pooling=mean"
        )
    train, heldout = (
        units_of(task, records, subject.tokenizer, subject.encoder.max_positions)
        for records in (task.train, task.heldout)
    )
    title = f"{subject.label}, {task.name}"
    with (
        _states(subject, _encoded(subject, train.ragged), train.unit_of, title, progress) as states,
        _states(subject, _encoded(subject, heldout.ragged), heldout.unit_of, title, progress) as scored,
    ):
        with progress(f"{title}, labels", linear_probe.work(len(states))) as bar:
            found = {"probe": _labels(task, (train, heldout), (states, scored), bar.update)}
        if task.has_trees:
            with progress(f"{title}, trees", structural_probe.work(sentences_of(task.train))) as bar:
                found["trees"] = _trees(task, (states, scored), rank, bar.update)
    return found


def _labels(task: LabeledTask, units: tuple[Units, Units], states: tuple, on_words: Callable[[int], object]) -> Numbers:
    train, heldout = units
    labels = [part.labels[:, None] for part in units]
    if train.types:
        # Both files together: a word must have the same random label in training and in evaluation.
        control = linear_probe.control_labels(train.types + heldout.types, train.labels, SEED)
        parts = np.split(control[:, None], [len(train.labels)])
        labels = [np.concatenate(pair, axis=1) for pair in zip(labels, parts, strict=True)]
    pairs = map(Labels, states, labels)
    probed = linear_probe.probe(*pairs, len(task.classes), SEED, on_words)
    numbers: Numbers = {
        "classes": len(task.classes),
        "train": len(train.labels),
        "heldout": len(heldout.labels),
        "majority": probed["majority"][0],
        "accuracy": probed["accuracy"][:, 0],
        "bits": probed["bits"][:, 0] / len(train.labels),
        "uniform_bits": probed["uniform_bits"] / len(train.labels),
        "compression": probed["compression"][:, 0],
    }
    if train.types:
        numbers |= {
            "control_accuracy": probed["accuracy"][:, 1],
            "selectivity": probed["accuracy"][:, 0] - probed["accuracy"][:, 1],
            "control_compression": probed["compression"][:, 1],
        }
    return numbers


def _trees(task: LabeledTask, states: tuple, rank: int, on_words: Callable[[int], object]) -> Numbers:
    train, heldout = (sentences_of(records) for records in (task.train, task.heldout))
    projections = structural_probe.fit(states[0], train, rank, SEED, on_words)
    parsed, chain = structural_probe.score(states[1], heldout, projections), structural_probe.score_chain(heldout)
    numbers: Numbers = {"rank": rank, "train": len(train), "heldout": len(heldout)} | parsed
    return numbers | {f"chain_{name}": values[0] for name, values in chain.items()}


def on_senses(subject: Subject, name: str, records: list[Record], progress: Progress) -> Numbers:
    """Predict word senses by nearest neighbors."""
    ragged, places = tasks.encode_senses(records, subject.tokenizer, subject.encoder.max_positions)
    unit_of = np.full(len(ragged.tokens), -1, np.int64)
    unit_of[places] = np.arange(len(places))
    with _states(subject, _encoded(subject, ragged), unit_of, f"{subject.label}, {name}", progress) as states:
        accuracy, baseline = tasks.score_senses(states, records)
    return {"occurrences": len(records), "accuracy": accuracy, "most_frequent": baseline}


def with_random_weights(subject: Subject) -> Subject:
    """Return the model with freshly initialized weights, the baseline of a probe."""
    tokens_BT = np.zeros((1, 8), np.int32)
    params = jax.jit(Encoder(subject.encoder).init)(jax.random.key(SEED), tokens_BT)["params"]
    export = subject.export._replace(params={"encoder": jax.device_get(params)})
    return dataclasses.replace(subject, label=f"{subject.label}, random weights", export=export)


def _encoded(subject: Subject, ragged: Ragged) -> Encoded:
    longest = min(subject.encoder.max_positions, int(ragged.lengths.max()))
    return Encoded(ragged, [], np.arange(len(ragged.ids)), None, subject.vocabulary, longest)


@contextlib.contextmanager
def _states(
    subject: Subject, encoded: Encoded, unit_of: np.ndarray, title: str, progress: Progress
) -> Iterator[np.ndarray]:
    """Open the states of units, see `computed`."""
    batches = map(put, encoded.batches(subject.encoder, share=_SHARE))
    with contextlib.ExitStack() as stack:
        with progress(title, encoded.tokens) as bar:  # the bar closes before the states are read
            opened = computed(subject.encoder, subject.params, batches, encoded.ragged, unit_of, bar.update)
            states = stack.enter_context(opened)
        yield states


@contextlib.contextmanager
def computed(
    encoder: EncoderConfig,
    params: dict,
    batches: Iterable[Arrays],
    ragged: Ragged,
    unit_of: np.ndarray,
    on_tokens: Callable[[int], object] = lambda tokens: None,
) -> Iterator[np.ndarray]:
    """Open the units' states, float32 [units, L + 1, D], in a temporary file: embeddings first, then each layer.

    Args:
      encoder: the architecture.
      params: parameters with the root `encoder`.
      batches: core batches with all examples, rows packed or not; `example_ids_BN` are indices into `ragged`.
      ragged: the examples.
      unit_of: int64 [n], each token's unit, -1 for none. A unit's state is the mean over its tokens, which are all in
        one example: one token for a word, all tokens for a text.
      on_tokens: called with each batch's token count.
    """
    counts = np.bincount(unit_of[unit_of >= 0])
    shape = len(counts), encoder.layers + 1, encoder.width
    # The file has no name: the system deletes it even if the process is killed.
    with tempfile.TemporaryFile() as file:
        # A file of 0 bytes cannot be mapped.
        states = np.memmap(file, np.float32, "w+", shape=shape) if len(counts) else np.zeros(shape, np.float32)
        for batch in batches:
            rows, columns, sources = _cells(batch, ragged)
            wanted = unit_of[sources] >= 0
            if wanted.any():
                hidden_LBTD = np.asarray(hidden(encoder, params, batch))
                values = np.moveaxis(hidden_LBTD[:, rows[wanted], columns[wanted]], 0, 1)
                # `reduceat` adds consecutive rows, so tokens are sorted by unit.
                order = np.argsort(unit_of[sources[wanted]], kind="stable")
                units, starts = np.unique(unit_of[sources[wanted]][order], return_index=True)
                states[units] = np.add.reduceat(values[order], starts, axis=0) / counts[units, None, None]
            on_tokens(len(sources))
        yield states


@functools.partial(jax.jit, static_argnames="encoder")
def hidden(encoder: EncoderConfig, params: dict, batch: Arrays) -> jax.Array:
    """Return embeddings and states after each layer; float32 [L + 1, B, T, D]."""
    names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT")
    variables = {"params": params["encoder"], taps.CAPTURED: {"hidden": None}}
    encoded, state = Encoder(encoder).apply(variables, *(batch[name] for name in names), mutable=[taps.CAPTURED])
    return all_layers(state[taps.CAPTURED]["hidden"], encoded.hidden).astype(np.float32)


def _cells(batch: Arrays, ragged: Ragged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, column and index in `ragged.tokens` for each token of a batch."""
    rows, slots = np.nonzero(np.asarray(batch["example_ids_BN"]) >= 0)
    examples = np.asarray(batch["example_ids_BN"])[rows, slots]
    lengths = ragged.lengths[examples]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # The batch stores the column of [CLS]. It is an example's first token or, in XLNet's layout, its last.
    starts = np.asarray(batch["summary_positions_BN"])[rows, slots] - ragged.cls_index[examples]
    columns = np.repeat(starts, lengths) + within
    return np.repeat(rows, lengths), columns, np.repeat(ragged.offsets[examples], lengths) + within


def lens(objective: MaskedLM, encoder: EncoderConfig, params: dict, batch: Arrays) -> dict[str, Sums]:
    """Device: return the sums of a logit lens over masked tokens, for the embeddings and each layer; [L + 1].

    The model's head reads every layer's states as if they were the last ones (nostalgebraist, 2020, "interpreting GPT:
    the logit lens"; for masked models, the untrained case of Belrose et al., 2023, arXiv 2303.08112). In an encoder
    with a norm after its last layer, that norm is applied to each layer's states first.

    `accuracy`: whether the masked token is the most probable one. `reciprocal_rank`: 1 / rank, where the most probable
    token has rank 1 and equal logits share the best rank. `log_rank`: natural logarithm of the rank; its mean gives the
    geometric mean rank. `loss`: cross-entropy in nats.

    Args:
      objective: the model's masked-LM objective.
      encoder: the architecture.
      params: parameters with the roots `encoder` and `heads`.
      batch: the core batch with the objective's features.
    """
    model, variables = objective.model(encoder), {"params": params}
    columns_BK, labels_BK, weights_BK = (
        batch[f"{objective.term}_{name}_BK"] for name in ("positions", "labels", "weights")
    )
    hidden_LBTD, _ = model.apply(variables | CAPTURES, batch, method=encode_layers, mutable=[taps.CAPTURED])
    # Only masked positions are predicted: a head on all T tokens would cost T / K times as much.
    states_LBKD = jax.vmap(take_columns, in_axes=(0, None))(hidden_LBTD, columns_BK)
    is_last = jnp.arange(len(states_LBKD)) == encoder.layers

    def head(model: Model, state_BKD: jax.Array, is_last: jax.Array) -> jax.Array:
        if encoder.block.has_final_norm:  # the last states have already passed this norm
            state_BKD = jnp.where(is_last, state_BKD, model.encoder.final_norm(state_BKD))
        return model.head("mlm", state_BKD, model.word_VE)

    def sums(layer: tuple[jax.Array, jax.Array]) -> Arrays:
        scores = _scores(model.apply(variables, *layer, method=head), labels_BK)
        return {name: jnp.sum(value * weights_BK) for name, value in scores.items()}

    # One layer at a time: the logits of all layers at once would take L + 1 times the memory.
    totals = jax.lax.map(sums, (states_LBKD, is_last))
    return {name: (total_L, jnp.sum(weights_BK)) for name, total_L in totals.items()}


def _scores(logits_BKV: jax.Array, labels_BK: jax.Array) -> Arrays:
    of_label_BK1 = jnp.take_along_axis(logits_BKV, labels_BK[..., None], axis=-1)
    rank_BK = 1 + jnp.sum(logits_BKV > of_label_BK1, axis=-1)
    return {
        "accuracy": (jnp.argmax(logits_BKV, axis=-1) == labels_BK) * 1.0,
        "reciprocal_rank": 1 / rank_BK,
        "log_rank": jnp.log(rank_BK),
        "loss": jax.nn.logsumexp(logits_BKV, axis=-1) - of_label_BK1[..., 0],
    }
