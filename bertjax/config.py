"""Configuration: a file of what differs from the defaults becomes one typed, frozen `Config`, checked at the door.

`model`, `data`, `tasks`, `optimizer`, `stages` and `seed` are what a run is: only the same ones resume a workdir.
`eval` and `runtime` are how it is carried out, free to change.
"""

import dataclasses
import math
from typing import Any

from bertjax import renames, typed
from bertjax.data.config import DataConfig
from bertjax.data.formats import FORMATS, kinds_with
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.formats.segment_pairs import SegmentPairs
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.masking import MASKINGS
from bertjax.data.order import SMALLEST_SHARE
from bertjax.errors import UserError
from bertjax.models.config import PRESETS, EncoderConfig, Execution
from bertjax.objectives import OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.pretraining.bert import BERT
from bertjax.training.config import EvalConfig, OptimizerConfig, RuntimeConfig, Stage
from bertjax.training.schedules import SCHEDULES
from bertjax.training.stages import warmup_segments

# The preset that is the architecture of `init_from`.
INIT_FROM = "init_from"

# Settings whose `kind` chooses a class.
_UNIONS = (OBJECTIVES, MASKINGS, FORMATS, SCHEDULES)

# Where data comes from and lies, and what prepares it; what was read is in the store's fingerprint.
_PATHS = ("corpus", "heldout", "store", "cache_dir", "workers")


@dataclasses.dataclass(frozen=True)
class Task:
    """An objective with the examples that it is trained on.

    Attributes:
      objective: by `kind`, see `bertjax.objectives`.
      examples: by `kind`, see `bertjax.data.formats`.
      row_examples: examples that may share a row; 1 for none, 0 for one per 16 tokens of the row.
      plans: how often the text is cut and paired anew; epoch e trains on plan e mod `plans`.
      weight: of its share of the steps, beside the other tasks of a stage.
      task_type: which of the model's task embeddings its steps add (`model.task_types`).
    """

    objective: Objective = BERT()
    examples: ExampleFormat = SegmentPairs()
    row_examples: int = 0
    plans: int = 1
    weight: float = 1.0
    task_type: int = 0

    def __post_init__(self):
        if missing := [label for label in self.objective.labels if label not in self.examples.labels]:
            kinds = kinds_with(self.objective.labels) or ["module:Class"]
            remedy = f"use examples.kind={' or '.join(kinds)}"
            if self.examples.kind in kinds:
                remedy = "name its column in examples.label"
            raise UserError(
                f"objective.kind={OBJECTIVES.kind_of(self.objective)} learns the label {missing[0]}, which "
                f"examples.kind={self.examples.kind} does not give; {remedy}, or another objective"
            )
        if self.row_examples < 0:
            raise UserError(f"row_examples={self.row_examples} must not be negative; 1 gives each example its own row")
        if self.task_type < 0:
            raise UserError(f"task_type={self.task_type} must not be negative; task embeddings are counted from 0")
        if self.plans < 1:
            raise UserError(f"plans={self.plans} must be at least 1")
        if not 0.0 < self.weight < math.inf:
            raise UserError(
                f"weight={self.weight} must be a number above 0; to train without a task, leave it out of "
                "stages.N.tasks"
            )

    @property
    def has_classes(self) -> bool:
        """True if the objective predicts classes whose names are in the training file."""
        is_set_by_data = "classes" in {field.name for field in dataclasses.fields(self.objective)}
        return is_set_by_data and isinstance(self.examples, LabeledFormat)


@dataclasses.dataclass(frozen=True)
class Config:
    """All that a run follows from.

    Attributes:
      init_from: begin with the weights of an export folder, a `RUN` or `RUN@STEP`, and with a fresh optimizer.
      init_every: take the first of so many of its layers each, for an encoder that has fewer (DistilBERT's 2).
    """

    seed: int = 0
    init_from: str = ""
    init_every: int = 1
    model: EncoderConfig = EncoderConfig()
    data: DataConfig = DataConfig()
    tasks: dict[str, Task] = dataclasses.field(default_factory=lambda: {"bert": Task()})
    optimizer: OptimizerConfig = OptimizerConfig()
    stages: tuple[Stage, ...] = (Stage(),)
    eval: EvalConfig = EvalConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def __post_init__(self):
        if self.init_every < 1 or (self.init_every > 1 and not self.init_from):
            raise UserError(
                f"init_every={self.init_every} says which layers of init_from to take; leave it 1 without one, and "
                "let it be at least 1"
            )
        if not self.stages:
            raise UserError("stages is empty; give at least one, with steps, seq_len and batch")
        for index, stage in enumerate(self.stages):
            stage.check(f"stages.{index}")
            if stage.seq_len > self.model.max_positions:
                raise UserError(
                    f"stages.{index}.seq_len={stage.seq_len} is longer than the position table of "
                    f"model.max_positions={self.model.max_positions}; raise that or shorten the rows"
                )
        if self.stages[0].learning_rate:
            raise UserError(
                f"stages.0.learning_rate={self.stages[0].learning_rate} is that of the run's begin; set "
                "optimizer.learning_rate and optimizer.warmup_steps instead"
            )
        self._check_depths()
        self._check_tasks()
        if not any(stage.open_settings for stage in self.stages):
            warmup_segments(self.stages, self.optimizer)  # refuses a warm-up that is too long

    def _check_depths(self) -> None:
        depths = [self.layers_at(index) for index in range(len(self.stages))]
        for index, (before, after) in enumerate(zip(depths, depths[1:]), 1):
            if after not in (before, 2 * before):
                raise UserError(
                    f"stages.{index} has {after} layers after {before}; a stack stays as deep or is doubled: let it be "
                    f"{before} or {2 * before}"
                )
        if depths[-1] != self.model.layers:
            raise UserError(
                f"stages.{len(depths) - 1}.layers={depths[-1]} is not model.layers={self.model.layers}; the last stage "
                "trains the whole model"
            )

    def _check_tasks(self) -> None:
        if not self.tasks:
            raise UserError("tasks is empty; give at least one, with an objective and examples")
        labeled = [name for name, task in self.tasks.items() if isinstance(task.examples, LabeledFormat)]
        if labeled and len(self.tasks) > 1:
            raise UserError(
                f"tasks has {len(self.tasks)} entries ({', '.join(self.tasks)}), and {labeled[0]} has labeled files; "
                "a mixture is trained on one corpus: fine-tune such a task by itself"
            )
        for task in self.tasks.values():
            if task.objective.needs_global_batch and self.runtime.micro_tokens:
                raise UserError(
                    f"runtime.micro_tokens={self.runtime.micro_tokens} would take the batch apart, and "
                    f"objective.kind={OBJECTIVES.kind_of(task.objective)} compares all examples of it with each "
                    "other; leave micro_tokens 0, and take runtime.remat=full or a smaller batch where memory is short"
                )
        for name, task in self.tasks.items():
            if task.task_type >= max(1, self.model.task_types):
                raise UserError(
                    f"tasks.{name}.task_type={task.task_type} is no row of model.task_types={self.model.task_types}; "
                    f"raise that to {task.task_type + 1} or more"
                )
            if task.task_type and name in labeled:
                raise UserError(
                    f"tasks.{name}.task_type={task.task_type} is of pretraining; what has learned a labeled task adds "
                    "the first of the task embeddings, whoever uses it: leave task_type 0"
                )
        if self.model.task_types and not self.init_from and all(task.task_type for task in self.tasks.values()):
            raise UserError(
                f"model.task_types={self.model.task_types} and no task has task_type=0, whose embedding fine-tuning "
                "and predict add; give it to one of the tasks"
            )
        named = {name for stage in self.stages for name in stage.tasks}
        if unknown := sorted(named - self.tasks.keys()):
            raise UserError(f"stages.N.tasks names {unknown[0]!r}, which is none of tasks ({', '.join(self.tasks)})")
        if all(stage.tasks for stage in self.stages) and (idle := [name for name in self.tasks if name not in named]):
            raise UserError(f"tasks.{idle[0]} is in no stage; name it in stages.N.tasks, or leave it out of tasks")

        for index, stage in enumerate(self.stages):
            weights = {name: self.tasks[name].weight for name in stage.among(self.tasks)}
            rarest = min(weights, key=weights.__getitem__)
            if (share := weights[rarest] / sum(weights.values())) < SMALLEST_SHARE:
                raise UserError(
                    f"tasks.{rarest} would have {share:.3%} of the steps of stages.{index}, and the least is "
                    f"{SMALLEST_SHARE:.3%}; raise its weight"
                )

    @property
    def open_settings(self) -> tuple[str, ...]:
        """The settings that only the data can resolve (`bertjax.training.resolve`), such as `stages.0.epochs`."""
        stages = (f"stages.{index}.{name}" for index, stage in enumerate(self.stages) for name in stage.open_settings)
        classes = (
            f"tasks.{name}.objective.classes"
            for name, task in self.tasks.items()
            if task.has_classes and not task.objective.classes
        )
        return (*stages, *classes)

    def layers_at(self, stage: int) -> int:
        """How deep the encoder is in a stage."""
        return self.stages[stage].layers or self.model.layers

    @property
    def task_name(self) -> str:
        """Name of the first task, of which there is but one unless tasks are mixed."""
        return next(iter(self.tasks))

    @property
    def task(self) -> Task:
        """The first task."""
        return self.tasks[self.task_name]

    def qualified(self, task: str, name: str) -> str:
        """What a metric or another thing of a task is called: `name`, after the task's where there are several."""
        return "/".join(filter(None, (task, name))) if len(self.tasks) > 1 else name

    @property
    def expected_vocab_size(self) -> int:
        """V as configured; a tokenizer that is loaded or trained may have another one."""
        return self.model.vocab_size or self.data.tokenizer.vocab_size

    def encoder(self, vocab_size: int, backend: str) -> EncoderConfig:
        """The encoder for a tokenizer's vocabulary, executed as `runtime` asks for on a backend.

        Raises:
          UserError: `model.vocab_size` is set and is not the tokenizer's.
        """
        if self.model.vocab_size not in (0, vocab_size):
            raise UserError(
                f"model.vocab_size={self.model.vocab_size} does not match the tokenizer's {vocab_size}; leave it 0"
            )
        dtype = self.runtime.dtype
        if dtype == "auto":
            dtype = "float32" if backend == "cpu" else "bfloat16"
        remat = self.runtime.remat
        if remat == "auto":  # on a TPU recomputing is faster than reading back (docs/results/compile_table.md)
            remat = "dots" if backend == "tpu" else "none"
        execution = Execution(dtype, self.runtime.unroll, remat)
        return dataclasses.replace(self.model, vocab_size=vocab_size, execution=execution)

    def identity(self, store_fingerprint: str) -> dict[str, Any]:
        """Return what a resumed run must share: the first half of the settings, the data by content and not by path."""
        if self.open_settings:
            raise ValueError(f"{', '.join(self.open_settings)} must be resolved first")
        identity = to_dict(self)
        for free in ("eval", "runtime", "init_from"):  # the last by content
            del identity[free]
        for path in _PATHS:
            del identity["data"][path]
        for source in identity["data"]["sources"].values():
            del source["corpus"]
        if self.data.tokenizer.model:  # its content is in the store's fingerprint; the other settings are not read
            del identity["data"]["tokenizer"]
        for task in identity["tasks"].values():
            for path in ("train", "heldout"):  # of labeled files; what they hold is in the same fingerprint
                task["examples"].pop(path, None)
            task["objective"].pop("teacher", None)  # its weights are compared
        identity["data"]["store_fingerprint"] = store_fingerprint
        if len(self.tasks) > 1:
            identity["task_order"] = list(self.tasks)
        return identity


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dicts and lists, as written to JSON and read again by `from_dict`."""
    settings = plain(config)
    del settings["model"]["execution"]  # it follows from `runtime`
    return settings


def from_dict(mapping: dict[str, Any]) -> Config:
    """The inverse of `to_dict`; keys that are left out take their defaults, renamed ones are read under both names.

    Raises:
      UserError: an unknown key, a value of the wrong type, or a combination that cannot be.
    """
    mapping = renames.current(mapping)
    if isinstance(mapping.get("model"), dict):
        mapping["model"] = _with_preset(mapping["model"])
    return typed.build(Config, mapping, "", {union.base: union.class_of for union in _UNIONS})


def _with_preset(model: dict[str, Any]) -> dict[str, Any]:
    """The settings of `model.preset`, where one is named, under those that are set directly."""
    if "execution" in model:
        raise UserError("model.execution is not set directly; use runtime.dtype, runtime.unroll and runtime.remat")
    model = dict(model)
    preset = model.pop("preset", None)
    if preset is None:
        return model
    if preset not in PRESETS:
        raise UserError(f"model.preset={preset!r} is unknown; choose one of {', '.join(PRESETS)} or {INIT_FROM}")
    settings = plain(PRESETS[preset])
    del settings["execution"]
    return settings | model


def plain(value: Any) -> Any:
    """Nested dataclasses as nested dicts and lists; an objective with its `kind` first."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, Objective):
            fields = {"kind": OBJECTIVES.kind_of(value)} | fields
        return fields
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value
