"""What the user says about training: stages, optimizer, evaluation, and what does not change the result."""

import dataclasses

from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stretch of steps with fixed shapes.

    Attributes:
      steps: how many.
      seq_len: T, tokens in a row.
      batch: B, rows of the global batch.
    """

    steps: int = 1000
    seq_len: int = 128
    batch: int = 32

    def __post_init__(self):
        for field in ("steps", "seq_len", "batch"):
            if getattr(self, field) < 1:
                raise UserError(f"stages.0.{field}={getattr(self, field)} must be at least 1")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov & Hutter, 2019; arXiv 1711.05101) with BERT's settings.

    Attributes:
      learning_rate: the peak.
      warmup_steps: steps of linear rise to the peak; a linear fall to 0 at the last step follows.
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay: decoupled; none on biases and layer norms.
      clip_norm: the gradient's global norm is clipped to this.
    """

    learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def __post_init__(self):
        for field in ("learning_rate", "epsilon", "clip_norm"):
            if not getattr(self, field) > 0.0:
                raise UserError(f"optimizer.{field}={getattr(self, field)} must be above 0")
        for field in ("b1", "b2"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise UserError(f"optimizer.{field}={getattr(self, field)} must lie in [0, 1)")
        for field in ("warmup_steps", "weight_decay"):
            if getattr(self, field) < 0:
                raise UserError(f"optimizer.{field}={getattr(self, field)} must not be negative")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out rows, with fixed masks.

    Attributes:
      every: steps between evaluations; the last step is always evaluated.
      rows: held-out rows used, 4,096 at most.
      samples: masked sentences shown with the model's guesses.
    """

    every: int = 1000
    rows: int = 4096
    samples: int = 3

    def __post_init__(self):
        if not 1 <= self.rows <= 4096:
            raise UserError(f"eval.rows={self.rows} must lie between 1 and 4096")
        if self.every < 1:
            raise UserError(f"eval.every={self.every} must be at least 1")
        if self.samples < 0:
            raise UserError(f"eval.samples={self.samples} must not be negative")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; `data` = 0 takes all that the other two leave."""

    data: int = 0
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self):
        if self.data < 0 or self.fsdp < 1 or self.tensor < 1:
            raise UserError(f"runtime.mesh has {self}; fsdp and tensor are at least 1, data at least 0 (all the rest)")


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """How a run is carried out; free to change when it is resumed.

    Attributes:
      mesh: see `MeshConfig`.
      dtype: of activations; `auto` is bfloat16 on TPU and GPU, float32 on CPU.
      unroll: unroll the loop over layers instead of scanning it.
      remat: what the backward pass recomputes: `none`, `dots` or `full`.
      micro_batches: the batch is split in so many parts whose gradients are summed.
      steps_per_call: steps in one dispatch to the device; worth it for models whose step takes milliseconds.
      workers: processes that make batches; 0 makes them in a thread.
      log_every: steps between lines of metrics.
      save_every: steps between checkpoints; the last step is always saved.
      keep: newest checkpoints kept.
      max_skipped: so many steps in a row may have a non-finite loss or gradient before the run ends.
    """

    mesh: MeshConfig = MeshConfig()
    dtype: str = "auto"
    unroll: bool = False
    remat: str = "none"
    micro_batches: int = 1
    steps_per_call: int = 1
    workers: int = 0
    log_every: int = 10
    save_every: int = 1000
    keep: int = 3
    max_skipped: int = 0

    def __post_init__(self):
        for field in ("micro_batches", "steps_per_call", "log_every", "save_every", "keep"):
            if getattr(self, field) < 1:
                raise UserError(f"runtime.{field}={getattr(self, field)} must be at least 1")
        for field in ("workers", "max_skipped"):
            if getattr(self, field) < 0:
                raise UserError(f"runtime.{field}={getattr(self, field)} must not be negative")
