"""Optimizer settings."""

import dataclasses
from typing import Any

from bertjax.runtime.errors import UserError
from bertjax.training.param_paths import check_pattern
from bertjax.training.schedules import Linear, Schedule

OPTIMIZERS = ("adamw", "stable_adamw", "lamb", "muon")
GROW_MOMENTS = ("copy", "reset")


@dataclasses.dataclass(frozen=True)
class Multiplier:
    """A learning rate factor for some parameters.

    Attributes:
      path: regular expression to search for in parameter paths, such as `encoder/embeddings/`.
      factor: multiplies the learning rate.
      by_layer: further factors, one per row of the stack `encoder/layers/`, which is one per layer unless layers share
        parameters. A layer with 0 does not move, but `frozen_layers` saves its cost as well.
    """

    path: str = ""
    factor: float = 1.0
    by_layer: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer settings; the defaults are BERT's, with a bias correction. A run prints its parameter paths first.

    Attributes:
      kind: `adamw` (Loshchilov & Hutter, 2019; arXiv 1711.05101); `stable_adamw`, which limits each parameter's update
        (Wortsman et al., 2023; arXiv 2304.13013); `lamb` (You et al., 2020; arXiv 1904.00962); `muon` for the kernels
        of layers with AdamW for the rest (`bertjax.training.optim.optimizer`); or `module:function`, such as
        `optax.contrib:muon` (`bertjax.training.optim.outside`), for which Adam's settings below mean nothing.
      arguments: arguments of that function by name.
      learning_rate: peak learning rate; None derives it from the encoder width
        (`bertjax.training.resolve.fine_tuning_rate`).
      warmup_steps: steps until the peak.
      warmup_share: warm-up as a share of all steps, in place of `warmup_steps`.
      warmup_tokens: warm-up in tokens of the batches, padding included, in place of `warmup_steps`.
      schedule: learning rate schedule, chosen by `kind` (`bertjax.training.schedule_kinds`).
      b1: first-moment decay rate.
      b2: second-moment decay rate.
      epsilon: added to the square root of the second moment.
      weight_decay: decoupled weight decay; biases and layer norms have none.
      bias_correction: correct the moments for their start at 0 (Kingma & Ba, 2015, arXiv 1412.6980). BERT's published
        optimizer does not.
      clip_norm: maximum global gradient norm; 0 does not clip.
      layer_decay: factor on the learning rate for every layer from the heads down to the embeddings (Howard & Ruder,
        2018, arXiv 1801.06146, section 3.2, where it is 1 / 2.6); 1 for none.
      layer_decay_offset: exponent of that factor at the last layer. It grows by 1 per layer and is L larger at the
        embeddings and at a decoder with a table of its own; other heads are not scaled. Howard & Ruder use 1, ELECTRA
        2 (`_get_layer_lrs`, google-research/electra).
      multipliers: further learning rate factors; the first one with a matching path applies.
      frozen: regular expressions; parameters with a matching path never change and have no moments.
      grow_moments: moments after progressive stacking: `copy` copies them along with the layers, `reset` sets all
        moments to 0 (gonglinyuan/StackingBERT, reproduce_bert.sh). `ema_decay`'s average is copied or restarts alike.
      ema_decay: decay rate of a moving average of the parameters (`bertjax.training.optim.ema`), which is evaluated and
        exported beside them, such as 0.999; 0 for none. It takes as much memory as the parameters.
    """

    kind: str = "adamw"
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    learning_rate: float | None = 1e-4
    warmup_steps: int = 10_000
    warmup_share: float = 0.0
    warmup_tokens: float = 0.0
    schedule: Schedule = Linear()
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True
    clip_norm: float = 1.0
    layer_decay: float = 1.0
    layer_decay_offset: int = 1
    multipliers: tuple[Multiplier, ...] = ()
    frozen: tuple[str, ...] = ()
    grow_moments: str = "copy"
    ema_decay: float = 0.0

    def __post_init__(self):
        if self.kind not in OPTIMIZERS and not self.is_outside:
            choices = ", ".join(OPTIMIZERS)
            raise UserError(
                f"optimizer.kind={self.kind!r} is unknown; choose one of {choices}, or name module:function"
            )
        if self.grow_moments not in GROW_MOMENTS:
            choices = ", ".join(GROW_MOMENTS)
            raise UserError(f"optimizer.grow_moments={self.grow_moments!r} is unknown; choose one of {choices}")
        self._check_arguments()
        if self.kind == "stable_adamw" and not self.bias_correction:
            raise UserError("optimizer.kind=stable_adamw needs optimizer.bias_correction=True; leave it out")
        for field in ("learning_rate", "epsilon"):
            if (value := getattr(self, field)) is not None and not value > 0.0:
                raise UserError(f"optimizer.{field}={value} must be above 0")
        if not 0.0 < self.layer_decay <= 1.0:
            raise UserError(f"optimizer.layer_decay={self.layer_decay} must be above 0 and at most 1")
        for field in ("b1", "b2", "warmup_share", "ema_decay"):
            # An average with decay rate 1 would never change; a warm-up over all steps would leave none for the decay.
            if not 0.0 <= getattr(self, field) < 1.0:
                raise UserError(f"optimizer.{field}={getattr(self, field)} must be in [0, 1)")
        if self.warmup_share and self.warmup_tokens:
            raise UserError(
                f"optimizer.warmup_share={self.warmup_share} and optimizer.warmup_tokens={self.warmup_tokens:g} both "
                "set the warm-up; leave one out"
            )
        for field in ("warmup_steps", "warmup_tokens", "weight_decay", "clip_norm", "layer_decay_offset"):
            if not getattr(self, field) >= 0:
                raise UserError(f"optimizer.{field}={getattr(self, field)} must not be negative")
        if self.layer_decay == 1.0 and self.layer_decay_offset != 1:
            raise UserError(
                f"optimizer.layer_decay_offset={self.layer_decay_offset} has no effect without optimizer.layer_decay; "
                "set both, such as layer_decay=0.8"
            )
        for index, multiplier in enumerate(self.multipliers):
            name = f"optimizer.multipliers.{index}"
            check_pattern(f"{name}.path", multiplier.path)
            # A frozen parameter needs no gradient and no moments; with factor 0 it would still cost both.
            if not multiplier.factor > 0.0:
                raise UserError(
                    f"{name}.factor={multiplier.factor} must be above 0; to freeze parameters use optimizer.frozen"
                )
            if multiplier.by_layer and not min(multiplier.by_layer) >= 0.0:
                raise UserError(f"{name}.by_layer={list(multiplier.by_layer)} must not be negative")
        for index, pattern in enumerate(self.frozen):
            check_pattern(f"optimizer.frozen.{index}", pattern)

    @property
    def is_outside(self) -> bool:
        """Whether `kind` names a function, `module:function`."""
        return ":" in self.kind

    def _check_arguments(self) -> None:
        if self.arguments and not self.is_outside:
            raise UserError(
                f"optimizer.arguments={self.arguments} has no effect with optimizer.kind={self.kind}; name a "
                "module:function, or use settings such as optimizer.b1"
            )
        for name in ("learning_rate", "weight_decay"):
            if name in self.arguments:
                raise UserError(f"optimizer.arguments.{name} is set by bertjax; set optimizer.{name}")
