"""Training settings: stages, evaluation, mesh, and `runtime`, which may change on resume."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from bertjax.data.masking import Masking
from bertjax.models.config import REMAT_POLICIES
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check, setting

# JAX uses 32 bits of a seed: larger ones would silently repeat smaller ones.
LARGEST_SEED = 2**32 - 1
# Stage fields with the name of a setting of the block, which they override.
ROTARY_BASES = ("rotary_base", "local_rotary_base")
# Stage fields that do not affect the cost of a step. All other fields do, see `Stage.shape`.
NO_EFFECT_ON_COST = (
    *("steps", "epochs", "flops", "minutes", "min_steps", "examples", "learning_rate", "warmup_steps"),
    *ROTARY_BASES,
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive steps with fixed shapes. Step count, schedule and optimizer state continue in the next stage.

    `layers` and the rotary bases change the encoder of early stages. Evaluations, checkpoints and what reads them use
    the encoder of the stage that trained the last step. The last stage trains `model`, which is what is exported.

    Attributes:
      steps: 1,000,000 by default; None until `epochs` or `flops` is resolved against the data.
      seq_len: T, tokens per row.
      batch: B, rows in the global batch, 32 by default; None until `examples` is resolved against the data.
      epochs: passes over the data, in place of `steps`; 0 if `steps` is set.
      flops: FLOPs to execute, padding included, in place of `steps`; 0 if `steps` is set.
      minutes: wall-clock minutes to train, in place of the steps that the other settings give; the first start measures
        the time of a step (`bertjax.training.resolve`). Only for a run of one stage; None for no such limit.
      min_steps: lower limit on the steps that `epochs` gives, so that a small file is read more often.
      examples: mean examples per global batch, in place of `batch`; several examples may share a row.
      learning_rate: a new peak that the learning rate rises to in this stage; 0 continues the previous schedule.
      warmup_steps: steps until that peak.
      tasks: names of tasks that take turns in this stage; empty for all.
      layers: encoder depth in this stage, for progressive stacking; 0 for the full depth.
      frozen: regular expressions; parameters with a matching path, and their moments, do not change in this stage.
      frozen_layers: how many of the lowest layers to freeze in this stage, with the embeddings and a decoder that has a
        table of its own; 0 for none.
      masking_rate: overrides `objective.masking.rate` in training, not in evaluations; 0 for no override.
      masking: replaces `objective.masking` in training, selected by `kind`. Evaluations keep the objective's, so runs
        with different maskings answer the same held-out question. None for no override.
      rotary_base: overrides `model.block.rotary_base`; 0 for no override. A model that is trained on short rows with a
        small base reads longer ones if a late stage raises it (Warner et al., 2024, arXiv 2412.13663, section 2.2).
      local_rotary_base: overrides `model.block.local_rotary_base`; 0 for no override.
    """

    steps: int | None = setting(None, least=1)
    seq_len: int = setting(128, least=1)
    batch: int | None = setting(None, least=1)
    epochs: float = setting(0.0, least=0, excludes="flops")
    flops: float = setting(0.0, least=0)
    minutes: float | None = setting(None, above=0)
    min_steps: int = setting(0, least=0, needs="epochs", hint="steps needs no epochs")
    examples: int = setting(0, least=0)
    learning_rate: float = setting(0.0, least=0)
    warmup_steps: int = setting(0, least=0, needs="learning_rate", hint="optimizer.warmup_steps is for the run")
    tasks: tuple[str, ...] = ()
    layers: int = setting(0, least=0)
    frozen: tuple[str, ...] = setting((), is_pattern=True)
    frozen_layers: int = setting(0, least=0)
    masking_rate: float = setting(0.0, least=0)
    masking: Masking | None = None
    rotary_base: float = setting(0.0, above=1, hint="10000 is usual")
    local_rotary_base: float = setting(0.0, above=1, hint="10000 is usual")

    def __post_init__(self):
        # These defaults are not in the fields: None tells an open setting from a chosen one.
        if self.steps is None and not self.epochs and not self.flops:
            object.__setattr__(self, "steps", 1_000_000)
        if self.batch is None and not self.examples:
            object.__setattr__(self, "batch", 32)

    @property
    def shape(self) -> "Stage":
        """A copy without the fields in NO_EFFECT_ON_COST; equal shapes mean equal cost per step."""
        without = {field.name: field.default for field in dataclasses.fields(self) if field.name in NO_EFFECT_ON_COST}
        return dataclasses.replace(self, **without)

    @property
    def open_settings(self) -> tuple[str, ...]:
        """Settings not yet converted to steps and rows: `epochs` or `flops`, and `examples`."""
        pairs = (("flops" if self.flops else "epochs", self.steps), ("examples", self.batch))
        return tuple(name for name, value in pairs if value is None)

    def among(self, tasks: Iterable[str]) -> tuple[str, ...]:
        """Return the tasks that take turns in this stage, in the run's task order."""
        # The run's order, not the order in the setting: turns are numbered by it.
        return tuple(task for task in tasks if task in self.tasks or not self.tasks)

    def check(self, name: str) -> None:
        """Check every setting.

        Args:
          name: configuration path of this stage, such as `stages.0`.

        Raises:
          UserError: a number is out of range, or two settings contradict each other.
        """
        check(self, name)
        if self.masking and self.masking_rate:
            given = f"{name}.masking_rate={self.masking_rate} is not used beside {name}.masking"
            raise UserError(f"{given}; set {name}.masking.rate instead, and {name}.masking_rate=0")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out rows, with fixed masks.

    Attributes:
      every: steps between evaluations; 0 evaluates once per epoch. The last step is always evaluated.
      rows: maximum number of held-out rows; 0 for all.
      samples: number of masked sentences to print with the model's guesses.
      seed: seed of held-out rows and masks; independent of the run's seed, so that runs are comparable.
    """

    every: int = setting(1000, least=0)
    rows: int = setting(4096, least=0)
    samples: int = setting(3, least=0)
    seed: int = setting(0, least=0, most=LARGEST_SEED)

    def __post_init__(self):
        check(self, "eval")

    @property
    def question(self) -> dict[str, int]:
        """What decides which rows and masks are scored; scores on others are not comparable."""
        return {"rows": self.rows, "seed": self.seed}

    def scores(self, lines: Iterable[dict[str, Any]]) -> dict[int, float | None]:
        """Return {step: score} of the lines of `evaluations.jsonl` that answer this question."""
        return {line["step"]: line["score"] for line in lines if self.question.items() <= line.items()}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices along each mesh axis.

    Attributes:
      data: replicas; 0 takes all devices that the other two axes leave.
      fsdp: shards of weights and optimizer state; 0 takes as many as the strategy can use, up to 16.
      tensor: shards of each matrix product.
    """

    data: int = setting(0, least=0)
    fsdp: int = setting(0, least=0)
    tensor: int = setting(1, least=1)

    def __post_init__(self):
        check(self, "runtime.mesh")


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """Execution settings, which may change when a run is resumed.

    Attributes:
      mesh: devices along each axis.
      strategy: weight sharding: `replicated`, `gathered` or `fsdp`, see `bertjax.training.parallel.strategy`. `auto` is
        fsdp from 50 million parameters on, and gathered for smaller models or if layers share weights.
      reduction: dtype in which gradients are summed over devices; `auto` is the activation dtype.
      attention: `plain`; `fused` (TPU v4 and later), with attention dropout; `splash` (TPU v4 and later) or `cudnn`
        (GPU), without. For `auto` see `bertjax.models.kernel_choice`.
      dtype: dtype of activations and matrix products; `auto` is bfloat16 on TPU and GPU, float32 on CPU. `float32` is
        true float32 on every device. On a TPU it takes six passes of the matrix unit instead of one.
      unroll: unroll the loop over layers instead of scanning it.
      remat: rematerialization in the backward pass: `none`, `dots` (recompute all but products with weights) or `full`;
        `auto` is dots on TPU and none elsewhere.
      micro_tokens: maximum tokens (rows x T) that a device computes at once. Larger batches are split into equal
        micro-batches, and their gradients are summed. 0 computes all rows at once.
      steps_per_call: steps in one dispatch to the device; more than 1 helps if a step takes milliseconds.
      workers: processes that make batches; 0 makes them in a thread of this process.
      log_every: steps between lines of metrics.
      trackers: further destinations for metrics: `wandb`, `mlflow`, `trackio`, or `module:Class`, a subclass of
        `bertjax.training.run.trackers.Tracker`.
      hooks: your own code between steps, each `module:Class`, a subclass of `bertjax.training.hooks.base.Hook`.
      gradient_norms: also log the gradient norm of each layer, as `train/grad_norm/<group>`.
      save_every: steps between checkpoints; the last step is always saved.
      save_seconds: minimum seconds between two of these checkpoints; 0 for no limit. It allows a small `save_every`,
        since checkpoints that come too early are left out.
      keep: how many of the newest checkpoints to keep.
      keep_every: also keep the first checkpoint at or after each multiple of this many steps; 0 for none, None for
        10 x `save_every`.
      keep_best: also keep this many checkpoints that score best on held-out rows, by the objective's `best_metric`; a
        checkpoint is then saved at every evaluation. While weights are still being pruned, none counts as best.
      keep_at: steps after which a checkpoint is saved and kept; 0 is the state before the first update.
      max_skipped: consecutive steps with a non-finite loss or gradient to tolerate before the run ends.
      skip_rows: pairs (FIRST, LAST) of steps whose rows are skipped: from step FIRST on, counted from 0, training
        continues with the rows that step LAST would have read. This changes the result, so a resumed run may change it
        only for steps that it has not trained yet.
      heartbeat_timeout: seconds without a sign of life after which a process counts as dead; with --distributed.
      hang_timeout: seconds that a dispatch of `steps_per_call` steps may take before the process prints the stacks of
        its threads and exits. Everything else in a run may take three times as long, except for preparing data, which
        has no limit. 0 for no limit.
    """

    mesh: MeshConfig = MeshConfig()
    strategy: str = setting("auto", choices=("auto", "replicated", "gathered", "fsdp"))
    reduction: str = setting("auto", choices=("auto", "float32", "bfloat16"))
    attention: str = setting("auto", choices=("auto", "plain", "fused", "splash", "cudnn"))
    dtype: str = "auto"
    unroll: bool = False
    remat: str = setting("auto", choices=("auto", *REMAT_POLICIES))
    micro_tokens: int = setting(0, least=0)
    steps_per_call: int = setting(1, least=1)
    workers: int = setting(0, least=0)
    log_every: int = setting(10, least=1)
    trackers: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    gradient_norms: bool = False
    save_every: int = setting(1000, least=1)
    save_seconds: int = setting(0, least=0)
    keep: int = setting(3, least=1)
    keep_every: int | None = setting(None, least=0)
    keep_best: int = setting(0, least=0)
    keep_at: tuple[int, ...] = setting((), least=0)
    max_skipped: int = setting(0, least=0)
    skip_rows: tuple[tuple[int, ...], ...] = ()
    heartbeat_timeout: int = setting(100, least=1)
    hang_timeout: int = setting(600, least=0)

    def __post_init__(self):
        check(self, "runtime")
        if wrong := [kind for kind in self.hooks if ":" not in kind]:
            raise UserError(f"runtime.hooks has {wrong[0]!r}, which must be module:Class, such as mylab.hooks:Mine")
        for index, steps in enumerate(self.skip_rows):
            if len(steps) != 2 or not 0 <= steps[0] < steps[1]:
                raise UserError(
                    f"runtime.skip_rows.{index}={list(steps)} must be the first step to skip and the one after the "
                    "last, such as [12000, 12200]"
                )

    def skipped_before(self, step: int) -> list[list[int]]:
        """Return the `skip_rows` entries that affect the first `step` steps."""
        return [list(steps) for steps in self.skip_rows if steps[0] < step]
