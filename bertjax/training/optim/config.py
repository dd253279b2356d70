"""Optimizer settings."""

import dataclasses
from typing import Any

from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check, setting
from bertjax.training.schedules import Linear, Schedule

OPTIMIZERS = ("adamw", "stable_adamw", "lamb", "muon")


@dataclasses.dataclass(frozen=True)
class Multiplier:
    """A learning rate factor for some parameters.

    Attributes:
      path: regular expression to search for in parameter paths, such as `encoder/embeddings/`.
      factor: multiplies the learning rate.
      by_layer: further factors, one per row of the stack `encoder/layers/`, which is one per layer unless layers share
        parameters. A layer with 0 does not move, but `frozen_layers` saves its cost as well.
    """

    path: str = setting("", is_pattern=True, filled="write .* to match every parameter")
    factor: float = setting(1.0, above=0, hint="to freeze parameters use optimizer.frozen")  # 0 would cost moments
    by_layer: tuple[float, ...] = setting((), least=0)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer settings; the defaults are BERT's, with a bias correction. A run prints its parameter paths first.

    Attributes:
      kind: `adamw` (Loshchilov & Hutter, 2019; arXiv 1711.05101); `stable_adamw`, which limits each parameter's update
        (Wortsman et al., 2023; arXiv 2304.13013); `lamb` (You et al., 2020; arXiv 1904.00962); `muon` for the kernels
        of layers with AdamW for the rest (`bertjax.training.optim.adam`); or `module:function`, such as
        `optax.contrib:muon` (`bertjax.training.optim.outside`), for which Adam's settings below mean nothing.
      arguments: arguments of that function by name.
      block: with `muon`, inner neurons of a kernel that are orthogonalized together, such as 64, the width of a head:
        columns of a kernel, or rows of one named `output`; 0 for whole kernels.
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
    block: int = setting(0, least=0)
    learning_rate: float | None = setting(1e-4, above=0)
    warmup_steps: int = setting(10_000, least=0)
    warmup_share: float = setting(0.0, least=0, below=1, excludes="warmup_tokens")  # 1 leaves no decay
    warmup_tokens: float = setting(0.0, least=0)
    schedule: Schedule = Linear()
    b1: float = setting(0.9, least=0, below=1)
    b2: float = setting(0.999, least=0, below=1)
    epsilon: float = setting(1e-6, above=0)
    weight_decay: float = setting(0.01, least=0)
    bias_correction: bool = True
    clip_norm: float = setting(1.0, least=0)
    layer_decay: float = setting(1.0, above=0, most=1)
    layer_decay_offset: int = setting(1, least=0, needs="layer_decay", hint="layer_decay=0.8 is usual")
    multipliers: tuple[Multiplier, ...] = ()
    frozen: tuple[str, ...] = setting((), is_pattern=True)
    grow_moments: str = setting("copy", choices=("copy", "reset"))
    ema_decay: float = setting(0.0, least=0, below=1)  # with 1 the average would never change

    def __post_init__(self):
        if self.kind not in OPTIMIZERS and not self.is_outside:
            choices = ", ".join(OPTIMIZERS)
            raise UserError(
                f"optimizer.kind={self.kind!r} is unknown; choose one of {choices}, or name module:function"
            )
        check(self, "optimizer")
        if self.arguments and not self.is_outside:
            raise UserError(
                f"optimizer.arguments={self.arguments} has no effect with optimizer.kind={self.kind}; name a "
                "module:function, or use settings such as optimizer.b1"
            )
        if self.block and self.kind != "muon":
            raise UserError(f"optimizer.block={self.block} has no effect with optimizer.kind={self.kind}; set it to 0")
        for name in self.arguments.keys() & {"learning_rate", "weight_decay"}:
            raise UserError(f"optimizer.arguments.{name} is set by bertjax; set optimizer.{name}")
        if self.kind == "stable_adamw" and not self.bias_correction:
            raise UserError("optimizer.kind=stable_adamw needs optimizer.bias_correction=True; leave it out")
        for index, multiplier in enumerate(self.multipliers):
            check(multiplier, f"optimizer.multipliers.{index}")

    @property
    def is_outside(self) -> bool:
        """Whether `kind` names a function, `module:function`."""
        return ":" in self.kind
