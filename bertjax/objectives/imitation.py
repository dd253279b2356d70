"""Teacher losses: run student and teacher on the batch, compare them, and add the losses to the objective's own terms.

The teacher does not run if all losses compare only parameters. Captured are exactly the values and layers that some
loss reads, if any.
"""

import zlib
from typing import Any

import jax

from bertjax.models import mixing
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart
from bertjax.models.model import Model
from bertjax.objectives.losses import Sums
from bertjax.objectives.teacher_losses.base import TeacherLoss, Values
from bertjax.runtime.errors import UserError, shorten

# Parameter root of teacher losses; exports leave it out (`bertjax.config.export.exported`).
PROJECTIONS = "projections"

Losses = dict[str, TeacherLoss]
Arrays = dict[str, jax.Array]


def teacher_config(objective: Any, student: EncoderConfig) -> EncoderConfig:
    """Return the architecture of an objective's teacher, with the student's execution settings.

    Raises:
      UserError: the losses cannot compare the two architectures.
    """
    teacher, names = objective.bound_teacher, captures_of(objective.teacher_losses)
    teacher.check(student)
    if needs_logits(objective.teacher_losses) and objective.classes:
        teacher.outputs_of(objective.classes)  # other classes are an error before anything is read
    for name, config in (("student", student), ("teacher", teacher.config)):
        if names and config.block.has_query_stream:
            raise UserError(
                f"the {name} has model.block.kind={config.block.kind}, whose second stream teacher losses that read "
                f"{shorten(names)} do not support; use kind=logits only"
            )
        if lacking := [capture for capture in names if capture not in config.block.captures]:
            raise UserError(
                f"the {name} has model.block.kind={config.block.kind}, which has no {shorten(lacking)} for teacher "
                "losses to read; use kind=logits or kind=hidden"
            )
    for loss in objective.teacher_losses.values():
        loss.check(student, teacher.config)
        loss.pairs(student, teacher.config)
    return teacher.config_beside(student)


def needs_logits(losses: Losses) -> bool:
    """Return whether any loss compares logits, so that the teacher needs the head."""
    return any(loss.needs_logits for loss in losses.values())


def reads_text(losses: Losses) -> bool:
    """Return whether the teacher runs; it also does without `teacher_losses`."""
    return not losses or any(loss.reads_text for loss in losses.values())


def captures_of(losses: Losses) -> tuple[str, ...]:
    """Return the names of the captured values that the losses read from both models."""
    return tuple(dict.fromkeys(name for loss in losses.values() for name in loss.captures))


def layers_of(losses: Losses, student: EncoderConfig, teacher: EncoderConfig) -> tuple[tuple[int, ...], ...]:
    """Return the student's and the teacher's layers to capture for the losses, counted from 0, increasing."""
    pairs = [pair for loss in losses.values() if loss.captures for pair in loss.pairs(student, teacher)]
    if not pairs:
        return (), ()
    # Embeddings (layer 0) always come with the hidden states, but a capture must name at least one layer.
    read = (sorted({max(layer - 1, 0) for layer in layers}) for layers in zip(*pairs))
    # Groups of layers that share parameters run as one scan, which captures every layer or none.
    return tuple(
        tuple(layers if config.sharing_groups == 1 else range(config.layers))
        for layers, config in zip(read, (student, teacher))
    )


def init(losses: Losses, key: jax.Array, student: EncoderConfig, teacher: EncoderConfig) -> dict:
    """Return {`projections`: {loss: its own trained parameters}}; empty if no loss has any."""
    # Seed by name, so that adding a loss does not change the initial values of the others.
    keys = {name: jax.random.fold_in(key, zlib.crc32(name.encode())) for name in losses}
    params = {name: loss.init(keys[name], student, teacher) for name, loss in losses.items()}
    params = {name: values for name, values in params.items() if values}
    return {PROJECTIONS: params} if params else {}


def frozen_params(objective: Any, student: EncoderConfig) -> dict:
    """Return the teacher parameters that the losses read: the encoder, and for logits also its heads."""
    config, teacher = teacher_config(objective, student), objective.bound_teacher
    if not reads_text(objective.teacher_losses):
        teacher.check_vocabulary(student, reads_text=False)
        return {"teacher": {"encoder": teacher.encoder_params(student)}}
    heads = {name: teacher.head(name) for name in _teacher_heads(objective, config)}
    if heads and objective.classes:
        # Published classifiers order their classes as they like, and runs sort them.
        places = teacher.outputs_of(objective.classes)
        if places != sorted(places):
            heads[objective.term] = {leaf: array[..., places] for leaf, array in heads[objective.term].items()}
    return {"teacher": {"encoder": teacher.params["encoder"], "heads": heads}}


def flops_parts(objective: Any, student: EncoderConfig) -> tuple[FlopsPart, ...]:
    """Return the FLOPs of student and teacher; if layers are captured, both compute their last layer for all tokens."""
    config = teacher_config(objective, student)
    parts = objective.flops_parts(student)
    if not reads_text(objective.teacher_losses):
        return parts
    others: tuple[FlopsPart, ...] = (FlopsPart(config),)
    if needs_logits(objective.teacher_losses):
        others = objective.as_its_teacher().flops_parts(config)
    if captures_of(objective.teacher_losses):
        # Captured layers are computed for every token.
        parts, others = (tuple(part._replace(read=None) for part in both) for both in (parts, others))
    return *parts, *(part._replace(has_backward=False) for part in others)


def terms(
    objective: Any, model: Model, params: dict, frozen: dict, batch: Arrays, key: jax.Array | None, taps: Any
) -> tuple[Arrays, dict[str, Sums]]:
    """Device: return terms and metrics of an objective and its teacher losses.

    Args:
      objective: an objective with a bound teacher.
      model: the student's module.
      params: the student's parameters, including those from `init`.
      frozen: result of `frozen_params`.
      batch: core batch and features.
      key: the student's dropout key; the teacher has no dropout.
      taps: masks on the student's heads and channels.
    """
    losses = objective.teacher_losses
    config = teacher_config(objective, model.config)
    own_layers, target_layers = layers_of(losses, model.config, config)
    logits, student = _values(objective, model, params, batch, key, own_layers, losses, taps=taps)
    if reads_text(losses):
        # The configuration may leave vocab_size to the tokenizer; here it is known.
        objective.bound_teacher.check_vocabulary(model.config)
        module = Model(config, _teacher_heads(objective, config), computes_all=bool(captures_of(losses)))
        other, has_head = objective.as_its_teacher(), needs_logits(losses)
        _, teacher = _values(other, module, frozen["teacher"], batch, None, target_layers, losses, has_head)
    # Losses on parameters alone: no forward pass of the teacher, so tokenizers may differ.
    else:
        teacher = Values(config, None, {}, (), frozen["teacher"]["encoder"])

    sums, metrics = objective.terms_of(logits, batch)
    soft_weights = objective.soft_weights(batch) if needs_logits(losses) else None
    for name, loss in losses.items():
        own_params = params.get(PROJECTIONS, {}).get(name, {})
        total, more = loss.terms(student, teacher, batch, own_params, soft_weights)
        sums, metrics = sums | {name: total}, metrics | more
    return sums, metrics


def _values(
    objective: Any,
    model: Model,
    params: dict,
    batch: Arrays,
    key: jax.Array | None,
    layers: tuple[int, ...],
    losses: Losses,
    has_head: bool = True,
    taps: Any = None,
) -> tuple[Any, Values]:
    """Run a model; return its logits and the values that the losses read.

    Args:
      has_head: False to run only the encoder.
    """
    names = captures_of(losses)
    # The head's layer mix reads every layer, also if no loss does.
    if objective.reads_all_layers and has_head:
        names, layers = tuple(dict.fromkeys(("hidden", *names))), tuple(range(model.config.layers))
    variables = {"params": params} | ({"taps": taps} if taps else {})
    method = objective.logits if has_head else Model.encode
    logits, captured = mixing.apply_capturing(model, variables, batch, key, method=method, names=names, layers=layers)
    soft = objective.soft_logits(logits, batch) if needs_logits(losses) else None
    return logits, Values(model.config, soft, captured, layers, params["encoder"])


def _teacher_heads(objective: Any, config: EncoderConfig) -> dict:
    return objective.as_its_teacher().heads(config) if needs_logits(objective.teacher_losses) else {}
