"""Distillation: train any objective with losses against a teacher's values (Hinton et al., 2015, arXiv 1503.02531).

Student and teacher run on the same batch, the teacher frozen and without dropout. It does not run if all losses compare
only parameters. Captured are exactly the values and layers that some loss reads, if any.
"""

import collections
import dataclasses
import functools
import itertools
import zlib
from collections.abc import Collection
from typing import Any

import jax

from bertjax.models import mixing
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart, head_products
from bertjax.models.model import HeadSpec, Model
from bertjax.models.other_heads import with_outputs
from bertjax.models.taps import HIDDEN
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.distill.losses import TeacherLoss, Values
from bertjax.objectives.distill.losses.logits import HEAD
from bertjax.objectives.losses import Sums
from bertjax.objectives.wrapper import Taught
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.setting import setting

# Parameter root of teacher losses; exports leave it out (`bertjax.config.export.exported`).
PROJECTIONS = "projections"


@dataclasses.dataclass(frozen=True)
class Distilled(Taught):
    """An objective with losses against a teacher. Terms: those of the objective, and one per entry of `losses`.

    Attributes:
      losses: {name: loss against the teacher}, see `bertjax.objectives.distill.losses`.
      own_factor: weight of the objective's own terms next to `losses`; 0 learns only from the teacher.
    """

    losses: dict[str, TeacherLoss] = dataclasses.field(default_factory=dict, hash=False)
    own_factor: float = setting(1.0, least=0)

    def __post_init__(self):
        super().__post_init__()
        named = f"objective.losses={shorten(list(self.losses))}"
        if not self.losses:
            raise UserError(
                "objective.kind=distilled has no objective.losses; set objective.losses={'soft': {'kind': 'logits'}}, "
                "for example"
            )
        if self.own_factor == 0.0 and not any(loss.factor for loss in self.losses.values()):
            raise UserError(
                f"objective.own_factor=0 leaves nothing to learn: every loss of {named} has factor=0; raise one of them"
            )
        if self._any("needs_logits") and type(self.objective).soft_logits is Objective.soft_logits:
            raise UserError(
                f"{type(self.objective).__name__} has no logits for a teacher loss of kind=logits; use kind=hidden, "
                "attention or relations"
            )

    @property
    def reads_text(self) -> bool:
        return self._any("reads_text")

    def _any(self, need: str) -> bool:
        """Return whether an attribute of `TeacherLoss` is true for some loss."""
        return any(getattr(loss, need) for loss in self.losses.values())

    @property
    def _captures(self) -> tuple[str, ...]:
        """Names of the captured values that the losses read from both models."""
        return tuple(dict.fromkeys(name for loss in self.losses.values() for name in loss.captures))

    @property
    def of_teacher(self) -> Objective:
        """The objective that computes the teacher's logits, with the settings of the teacher's own head."""
        # A head must read hidden states as it was trained to, with the same pooling, for example.
        names = (field.name for field in dataclasses.fields(self.objective) if field.metadata.get("is_of_head"))
        own = self.bound_teacher.objective
        return dataclasses.replace(self.objective, **{name: own[name] for name in names if name in own})

    def teacher_config(self, student: EncoderConfig) -> EncoderConfig:
        """Return the teacher's architecture, with the student's execution settings.

        Raises:
          UserError: the losses cannot compare the two architectures.
        """
        teacher = self.bound_teacher
        teacher.check(student)
        if self._any("needs_logits") and self.classes:
            teacher.outputs_of(self.classes)  # other classes are an error before anything is read
        # The student's states would be those of predicted tokens, and the teacher's those of all tokens.
        if self._captures and any(part.queries for part in self.objective.flops_parts(student)):
            raise UserError(
                f"{type(self.objective).__name__} predicts from a second stream, which teacher losses that read "
                f"{shorten(self._captures)} do not support; use kind=logits"
            )
        for loss in self.losses.values():
            loss.check(student, teacher.config)
        return teacher.config_beside(student)

    def teacher_heads(self, teacher: EncoderConfig) -> dict:
        """Return the heads that the losses read from a teacher with this architecture."""
        if self._any("needs_token_logits") and HEAD not in self.objective.heads(teacher):
            raise UserError(
                f"{type(self.objective).__name__} has no masked-LM head, which a teacher loss of kind=token_logits "
                "compares; use kind=logits"
            )
        if self._any("needs_logits"):
            return self.of_teacher.heads(teacher)
        return {HEAD: self.objective.heads(teacher)[HEAD]} if self._any("needs_token_logits") else {}

    def layers(self, student: EncoderConfig, teacher: EncoderConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the student's and the teacher's layers to capture, counted from 0, increasing."""
        pairs = [pair for loss in self.losses.values() if loss.captures for pair in loss.pairs(student, teacher)]
        if not pairs:
            return (), ()
        # Embeddings (layer 0) always come with the hidden states, but a capture must name at least one layer.
        read = (sorted({max(layer - 1, 0) for layer in layers}) for layers in zip(*pairs))
        # Groups of layers that share parameters run as one scan, which captures every layer or none.
        return tuple(
            tuple(layers if config.sharing_groups == 1 else range(config.layers))
            for layers, config in zip(read, (student, teacher))
        )

    def model(self, config):
        model = self.objective.model(config)
        # Captured layers are computed for every token.
        return model.clone(computes_all=True) if self._captures else model

    def init(self, model, key, batch):
        """Return the objective's initial parameters, and {`projections`: {loss: its own}} if a loss has any."""
        student, teacher = model.config, self.bound_teacher.config
        # Seed by name, so that adding a loss does not change the initial values of the others.
        keys = {name: jax.random.fold_in(key, zlib.crc32(name.encode())) for name in self.losses}
        own = {name: loss.init(keys[name], student, teacher) for name, loss in self.losses.items()}
        own = {name: values for name, values in own.items() if values}
        return super().init(model, key, batch) | ({PROJECTIONS: own} if own else {})

    def frozen_params(self, config):
        """Return the teacher's parameters that the losses read: the encoder, and for logits also its heads."""
        of_teacher, teacher = self.teacher_config(config), self.bound_teacher
        if not self.reads_text:
            teacher.check_vocabulary(config, reads_text=False)
            return {"teacher": {"encoder": teacher.encoder_params(config)}}
        heads = {name: teacher.head(name) for name in self.teacher_heads(of_teacher)}
        if self._any("needs_logits") and self.classes:
            # Published classifiers order their classes as they like, and runs sort them.
            places, term = teacher.outputs_of(self.classes), self.objective.term
            if places != sorted(places):
                heads[term] = with_outputs(heads[term], places)
        return {"teacher": {"encoder": teacher.params["encoder"], "heads": heads}}

    def flops_parts(self, config):
        """Return the FLOPs of student and teacher; if layers are captured, both compute their last layer entirely."""
        of_teacher, parts = self.teacher_config(config), super().flops_parts(config)
        if not self.reads_text:
            return parts
        others = self.of_teacher.flops_parts(of_teacher) if self._any("needs_logits") else (FlopsPart(of_teacher),)
        if self._captures:
            parts, others = (tuple(part._replace(read=None) for part in both) for both in (parts, others))
        if self._any("needs_token_logits"):
            head = self.objective.heads(config)[HEAD]
            parts, others = (_with_head_on_tokens(both, head) for both in (parts, others))
        return *parts, *(part._replace(has_backward=False) for part in others)

    def weights(self, batch):
        own = super().weights(batch)
        if taken := sorted(own.keys() & self.losses.keys()):
            raise UserError(f"objective.losses has the name {taken[0]!r} of a term; choose another name")
        # Normalizers depend only on the batch, so they are known before any model runs.
        soft_weights = self._soft_weights(batch)
        return own | {name: loss.weight(batch, soft_weights) for name, loss in self.losses.items()}

    def loss_weights(self, terms, step):
        names = [term for term in terms if term not in self.losses]
        own = super().loss_weights(names, step)
        of_losses = {name: loss.factor for name, loss in self.losses.items()}
        return {term: self.own_factor * own.get(term, 1.0) for term in names} | of_losses

    def terms(self, model, params, frozen, batch, key, train, taps=None):
        of_teacher = self.teacher_config(model.config)
        own_layers, target_layers = self.layers(model.config, of_teacher)
        key = key if train else None
        logits, student = self._run(self.objective, model, params, batch, key, own_layers, taps=taps)
        if self.reads_text:
            # The configuration may leave vocab_size to the tokenizer; here it is known.
            self.bound_teacher.check_vocabulary(model.config)
            module = Model(of_teacher, self.teacher_heads(of_teacher), computes_all=bool(self._captures))
            # Only logits need more of the teacher than its encoder.
            method = self.of_teacher.logits if self._any("needs_logits") else Model.encode
            _, teacher = self._run(self.of_teacher, module, frozen["teacher"], batch, None, target_layers, method)
        # Losses on parameters alone: no forward pass of the teacher, so tokenizers may differ.
        else:
            teacher = Values(of_teacher, None, {}, (), frozen["teacher"]["encoder"])

        sums, metrics = self.terms_of(logits, batch)
        soft_weights, metrics_of = self._soft_weights(batch), {}
        for name, loss in self.losses.items():
            own_params = params.get(PROJECTIONS, {}).get(name, {})
            total, metrics_of[name] = loss.terms(student, teacher, batch, own_params, soft_weights)
            sums |= {name: total}
        return sums, metrics | _named(metrics_of, metrics)

    def _soft_weights(self, batch: Arrays) -> jax.Array | None:
        return self.objective.soft_weights(batch) if self._any("needs_logits") else None

    def _run(
        self,
        objective: Objective,
        model: Model,
        params: dict,
        batch: Arrays,
        key: jax.Array | None,
        layers: tuple[int, ...],
        method: Any = None,
        taps: Any = None,
    ) -> tuple[Any, Values]:
        """Run a model; return its logits and the values that the losses read.

        Args:
          objective: the student's or the teacher's.
          layers: layers to capture.
          method: method of the model to run; by default the objective's logits.
        """
        names = self._captures
        # The head's layer mix reads every layer, also if no loss does.
        if model.reads_all_layers:
            names, layers = tuple(dict.fromkeys((HIDDEN, *names))), tuple(range(model.config.layers))
        variables = {"params": params} | ({"taps": taps} if taps else {})
        logits, captured = mixing.apply_capturing(
            model, variables, batch, key, method=method or objective.logits, names=names, layers=layers
        )
        soft = objective.soft_logits(logits, batch) if self._any("needs_logits") else None
        head = functools.partial(_token_logits, model, params) if self._any("needs_token_logits") else None
        return logits, Values(model.config, soft, captured, layers, params["encoder"], head)


def _token_logits(model: Model, params: dict, hidden_BTD: jax.Array) -> jax.Array:
    """Return logits_BTV."""
    variables = {"params": params}
    return model.apply(variables, hidden_BTD, method=lambda bound, states: bound.head(HEAD, states, bound.word_VE))


def _named(metrics_of: dict[str, dict[str, Sums]], taken: Collection[str]) -> dict[str, Sums]:
    """Return the metrics of all losses. A name that is not unique gets the name of its loss as a prefix.

    Args:
      metrics_of: {loss: its metrics}.
      taken: metric names of the objective.
    """
    counts = collections.Counter([*taken, *itertools.chain.from_iterable(metrics_of.values())])
    return {
        metric if counts[metric] == 1 else f"{loss}_{metric}": sums
        for loss, metrics in metrics_of.items()
        for metric, sums in metrics.items()
    }


def _with_head_on_tokens(parts: tuple[FlopsPart, ...], head: HeadSpec) -> tuple[FlopsPart, ...]:
    """Add a head's products at every token to the first encoder's FLOPs."""
    first, *others = parts
    tokens = first.heads.get("tokens", 0) + head_products(first.encoder, head)
    return first._replace(heads={**first.heads, "tokens": tokens}), *others
