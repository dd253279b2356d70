"""The configuration of a run: typed, frozen dataclasses that are checked when they are built.

`model`, `data`, `tasks`, `optimizer`, `stages` and `seed` identify a run: a workdir resumes only with the same values.
`eval` and `runtime` may change between starts.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

from bertjax.config import row_lengths, typed
from bertjax.config.export import Export
from bertjax.config.task import Task, check_tasks, task_at
from bertjax.data.config import DataConfig
from bertjax.data.filters import FILTERS
from bertjax.data.formats import FORMATS
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.masking import MASKINGS
from bertjax.models import directions
from bertjax.models.blocks import BLOCKS
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.embeddings import EMBEDDINGS
from bertjax.models.fixed import check_init_neighbors
from bertjax.models.presets import PRESETS
from bertjax.objectives.base import OBJECTIVES, Objective
from bertjax.objectives.distill.losses import TEACHER_LOSSES
from bertjax.objectives.host import question_of
from bertjax.objectives.wrapper import Wrapper, tuned, unwrapped
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import FREE, PLACE, check, marked, setting
from bertjax.training import stages
from bertjax.training.compression import PruningConfig, QuantizationConfig
from bertjax.training.config import LARGEST_SEED, EvalConfig, RuntimeConfig, Stage
from bertjax.training.lora import LoraConfig
from bertjax.training.optim.by_path import DECODER
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.schedules import SCHEDULES
from bertjax.training.stages import warmup_segments

# This preset copies the architecture of `init_from`.
INIT_FROM = "init_from"

# Settings in which `kind` chooses a class.
CONFIG_UNIONS = (OBJECTIVES, TEACHER_LOSSES, MASKINGS, FORMATS, SCHEDULES, FILTERS, EMBEDDINGS, BLOCKS)

# LoRA freezes these parameters by default: the encoder without its pooler, and decoders that are not tied to it.
_FROZEN_BY_LORA = rf"^(generator/)?encoder/(?!pooler/)|{DECODER}"


@dataclasses.dataclass(frozen=True)
class Config:
    """The configuration of a run.

    Attributes:
      seed: seed for initialization, data order, masking and dropout.
      init_from: an export folder, `RUN`, `RUN@STEP` or a model of the Hugging Face Hub, `hf:OWNER/NAME@REVISION`, to
        take initial weights from; the optimizer starts from scratch.
      init_state: `init_from=RUN@STEP` is a checkpoint that this run branches from: with optimizer state and step. Its
        `stages` count from the first step of that run, and those before STEP are not trained again.
      init_layers: layers of `init_from` to start with, counted from 0; empty for all. DistilBERT takes
        (0, 2, 4, 7, 9, 11) from 12 layers.
      init_words: start the word embeddings and the output's bias from counts of the training text, not at random
        (`bertjax.training.word_vectors`).
      init_neighbors: start the first heads at the tokens beside their own (`bertjax.models.fixed`).
      lora: low-rank adaptation; the adapted kernels are frozen.
      pruning: set a growing share of weights to 0.
      quantization: round weights to few bits in every step.
    """

    seed: int = setting(0, least=0, most=LARGEST_SEED)
    init_from: str = setting("", metadata=PLACE)
    init_state: bool = False
    init_layers: tuple[int, ...] = ()
    init_words: bool = setting(False, excludes="init_from")
    init_neighbors: bool = setting(False, excludes="init_from")
    model: EncoderConfig = EncoderConfig()
    data: DataConfig = DataConfig()
    tasks: dict[str, Task] = dataclasses.field(default_factory=lambda: {"bert": Task()})
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig()
    pruning: PruningConfig = PruningConfig()
    quantization: QuantizationConfig = QuantizationConfig()
    stages: tuple[Stage, ...] = (Stage(),)
    eval: EvalConfig = setting(EvalConfig(), metadata=FREE)
    runtime: RuntimeConfig = setting(RuntimeConfig(), metadata=FREE)

    def __post_init__(self):
        if not self.stages:
            raise UserError("stages is empty; give at least one, with steps, seq_len and batch")
        check(self)
        self._check_sizes()
        if self.init_neighbors:
            check_init_neighbors(self.model)
        stages.check_init_layers(self.init_from, self.init_layers, self.model, self.stages[0])
        for index, stage in enumerate(self.stages):
            stage.check(f"stages.{index}")
        formats = {name: task.examples for name, task in self.tasks.items()}
        longest = row_lengths.longest_example(self.model, self.stages, formats)
        # Only an encoder without a position table gets here. It records the longest example that it was trained on.
        if longest > self.model.max_positions:
            # A frozen dataclass refuses assignments, even in its own `__post_init__`.
            object.__setattr__(self, "model", dataclasses.replace(self.model, max_positions=longest))
        if self.stages[0].learning_rate:
            raise UserError(
                f"stages.0.learning_rate={self.stages[0].learning_rate} has no effect in the first stage; set "
                "optimizer.learning_rate and optimizer.warmup_steps instead"
            )
        if any(stage.minutes for stage in self.stages) and (len(self.stages) > 1 or self.init_state):
            raise UserError(
                "minutes is the length of a run of one stage that starts at step 0; choose a variant with one stage, "
                "such as laptop, if the recipe has one, or set the steps of each stage"
            )
        stages.check_stages(self.model, self.stages)
        check_tasks(self.tasks, self.stages, self.model, self.runtime.micro_tokens)
        # Checks that need the number of steps wait until the data have resolved it: `resolve` builds a Config again.
        if not any(stage.open_settings for stage in self.stages) and self.optimizer.learning_rate is not None:
            warmup_segments(self.stages, self.optimizer)  # refuses a warm-up that is too long
            self._check_keep_at()

    def _check_sizes(self) -> None:
        if self.lora.rank > self.model.width:
            raise UserError(
                f"lora.rank={self.lora.rank} exceeds model.width={self.model.width}, so nothing would be low-rank; "
                "lower it, 8 is usual"
            )
        if (block := self.optimizer.block) and self.model.width % block:
            raise UserError(
                f"optimizer.block={block} does not divide model.width={self.model.width}; set it to the channels of a "
                f"head, {self.model.head_channels}, or to 0"
            )
        bits = self.quantization.layer_bits
        if bits and (len(bits) != self.model.layers or self.model.sharing != "none"):
            raise UserError(
                f"quantization.layer_bits={list(bits)} does not fit model.layers={self.model.layers} with "
                f"model.sharing={self.model.sharing}; give a number for each layer, of which none may be shared"
            )
        if bits and (other := [index for index, stage in enumerate(self.stages) if stage.layers not in (0, len(bits))]):
            raise UserError(
                f"quantization.layer_bits={list(bits)} does not fit stages.{other[0]}.layers="
                f"{self.stages[other[0]].layers}; leave one of them out"
            )

    def _check_keep_at(self) -> None:
        steps = sum(cast(int, stage.steps) for stage in self.stages)
        if late := [step for step in self.runtime.keep_at if step > steps]:
            raise UserError(
                f"runtime.keep_at has the step {late[0]}, and the run ends after {steps}; remove it, or raise "
                f"stages.{len(self.stages) - 1}.steps"
            )

    @property
    def frozen(self) -> tuple[str, ...]:
        """Patterns for frozen parameters: `optimizer.frozen`; with LoRA, by default the encoder without its pooler.

        The pooler counts as a head: it is the first of two layers in RoBERTa's classifier. A decoder that is not tied
        to the word embeddings counts as a part of the encoder, as a tied one is.
        """
        return self.optimizer.frozen or ((_FROZEN_BY_LORA,) if self.lora.rank else ())

    @property
    def open_settings(self) -> tuple[str, ...]:
        """Settings that depend on data (`bertjax.training.resolve`), such as `stages.0.epochs`."""
        stages = (f"stages.{index}.{name}" for index, stage in enumerate(self.stages) for name in stage.open_settings)
        classes = (
            f"tasks.{name}.objective.{'objective.' if isinstance(task.objective, Wrapper) else ''}classes"
            for name, task in self.tasks.items()
            if task.has_classes and not task.objective.classes
        )
        weights = (f"tasks.{name}.weight" for name, task in self.tasks.items() if task.weight is None)
        rate = ("optimizer.learning_rate",) if self.optimizer.learning_rate is None else ()
        return (*stages, *classes, *weights, *rate)

    def task_at(self, stage: int, name: str) -> Task:
        """Return a task with the masking that a stage sets."""
        return task_at(self.tasks, self.stages, stage, name)

    def model_at(self, stage: int) -> EncoderConfig:
        """Return the architecture in a stage."""
        return stages.encoder_at(self.model, self.stages[stage])

    @property
    def foreign_kinds(self) -> tuple[str, ...]:
        """User code that opens a run, `module:NAME`, each once: every `kind` of a union, and the direction."""
        settings = to_dict(self)
        del settings["optimizer"]["kind"]  # only training imports it, see `training_kinds`
        kinds = dict.fromkeys([*_kinds(settings), self.model.direction])
        return tuple(kind for kind in kinds if ":" in kind)

    @property
    def training_kinds(self) -> tuple[str, ...]:
        """User code that changes what a run computes: `foreign_kinds`, and the optimizer, which no export needs."""
        return (*self.foreign_kinds, *((self.optimizer.kind,) if self.optimizer.is_outside else ()))

    @property
    def task_name(self) -> str:
        """Name of the first task, in file order."""
        return next(iter(self.tasks))

    @property
    def task(self) -> Task:
        """The first task."""
        return self.tasks[self.task_name]

    def qualified(self, task: str, name: str) -> str:
        """Return a task's metric name: `name`, or `task/name` if there are several tasks."""
        return "/".join(filter(None, (task, name))) if len(self.tasks) > 1 else name

    def metrics_of(self, task: str, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return one task's metrics without the `task/` prefix that `qualified` adds."""
        start = f"{task}/" if len(self.tasks) > 1 else ""
        return {name.removeprefix(start): value for name, value in metrics.items() if name.startswith(start)}

    def tuned(self, metrics: Mapping[str, float]) -> "Config":
        """Return the configuration with all settings that an evaluation has tuned, such as a threshold."""
        tasks = {
            name: dataclasses.replace(task, objective=tuned(task.objective, self.metrics_of(name, metrics)))
            for name, task in self.tasks.items()
        }
        return dataclasses.replace(self, tasks=tasks)

    @property
    def has_own_heads(self) -> bool:
        """Whether each task has its own heads, `heads/<task>/...`: with several fine-tuning tasks."""
        return len(self.tasks) > 1 and isinstance(self.task.examples, LabeledFormat)

    @property
    def expected_vocab_size(self) -> int:
        """V as configured; the tokenizer may differ."""
        return self.model.vocab_size or self.data.tokenizer.vocab_size

    def encoder(self, vocab_size: int, backend: str) -> EncoderConfig:
        """Return the encoder for a vocabulary size, with `runtime` settings resolved for a backend.

        Raises:
          UserError: `model.vocab_size` is set and differs from the tokenizer's.
        """
        if self.model.vocab_size not in (0, vocab_size):
            raise UserError(
                f"model.vocab_size={self.model.vocab_size} does not match the {vocab_size} ids of the tokenizer; "
                "set model.vocab_size=0"
            )
        dtype = self.runtime.dtype
        if dtype == "auto":
            dtype = "float32" if backend == "cpu" else "bfloat16"
        remat = self.runtime.remat
        if remat == "auto":  # a TPU recomputes faster than it reads back from memory (docs/results/compile_table.md)
            remat = "dots" if backend == "tpu" else "none"
        execution = Execution(dtype, self.runtime.unroll, remat)
        return dataclasses.replace(self.model, vocab_size=vocab_size, execution=execution)

    def _own_heads(self, objective: Objective) -> list[str]:
        """Return the heads that the kind whose question an objective answers does not have."""
        asked = OBJECTIVES.class_of(question_of(objective))
        return sorted(objective.heads(self.model).keys() - asked.heads(objective, self.model).keys())

    def identity(self, store_fingerprint: str) -> dict[str, Any]:
        """Return what a resumed run must have in common: settings that change the result, and data by content."""
        # Paths are left out, since files may be moved: corpora and labeled files have fingerprints, and `init_from` and
        # teachers are compared by their weights.
        identity = to_dict(self, PLACE, FREE)
        if self.data.tokenizer.model:  # its content is in the store's fingerprint; the other settings are not read
            del identity["data"]["tokenizer"]
        identity["data"]["store_fingerprint"] = store_fingerprint
        objectives = {name: unwrapped(task.objective) for name, task in self.tasks.items()}
        if asked := {name: kind for name, each in objectives.items() if (kind := question_of(each))}:
            identity["questions"] = {name: [kind, *self._own_heads(objectives[name])] for name, kind in asked.items()}
        # This part of `runtime` changes the result: it decides which rows a step reads.
        if self.runtime.skip_rows:
            identity["skip_rows"] = plain(self.runtime.skip_rows)
        # Dicts are equal in any order, but the order of tasks changes the run.
        if len(self.tasks) > 1:
            identity["task_order"] = list(self.tasks)
        return identity


def _kinds(settings: Any) -> Iterator[str]:
    """Yield every `kind` in nested settings."""
    for name, value in settings.items() if isinstance(settings, dict) else enumerate(settings):
        if name == "kind" and isinstance(value, str):
            yield value
        elif isinstance(value, (dict, list)):
            yield from _kinds(value)


def to_dict(config: Config, *without: Mapping[str, bool]) -> dict[str, Any]:
    """Return plain nested dicts and lists, which `from_dict` reads back; `without` settings of these marks."""
    return plain(config, *without) | {"model": plain(config.model.architecture())}  # `execution` follows from `runtime`


def from_dict(mapping: dict[str, Any], trust_code: bool = False) -> Config:
    """Build a configuration from plain dicts. Missing keys take their defaults.

    Args:
      mapping: nested settings by name.
      trust_code: allow importing modules that a `kind` names. True only for settings that the user wrote.

    Raises:
      UserError: an unknown key, a value with the wrong type, or settings that exclude each other.
      Untrusted: a kind names a module that is not imported, and `trust_code` is False.
    """
    mapping = dict(mapping)
    if isinstance(mapping.get("model"), dict):
        mapping["model"] = _with_preset(mapping["model"])
        if isinstance(direction := mapping["model"].get("direction"), str):
            directions.check(direction, trust_code)
    return typed.build(Config, mapping, "", {union.base: union.choice(trust_code) for union in CONFIG_UNIONS})


def config_of(model: Export) -> Config:
    """Return the configuration of a stored model.

    Raises:
      UserError: the settings are damaged.
      Untrusted: they name a module that has not been imported.
    """
    return from_dict(model.read_settings)


def _with_preset(model: dict[str, Any]) -> dict[str, Any]:
    """Return model settings with `model.preset` filled in; settings beside it take precedence."""
    if "execution" in model:
        raise UserError("model.execution is not a setting; use runtime.dtype, runtime.unroll and runtime.remat")
    model = dict(model)
    preset = model.pop("preset", None)
    if preset is None:
        return model
    if preset not in PRESETS:
        raise UserError(f"model.preset={preset!r} is unknown; choose one of {', '.join(PRESETS)} or {INIT_FROM}")
    return with_changes(PRESETS[preset].architecture(), model)


def with_changes(model: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return model settings with changes; those of embeddings and a block remain unless the kind changes."""
    for part in ("embeddings", "block"):
        own, changed = model.get(part), changes.get(part)
        if isinstance(own, dict) and isinstance(changed, dict) and changed.get("kind") in (None, own.get("kind")):
            changes = changes | {part: own | changed}
    return model | changes


def plain(value: Any, *without: Mapping[str, bool]) -> Any:
    """Convert nested dataclasses to nested dicts and lists; objectives get their `kind` first."""
    if dataclasses.is_dataclass(value):
        left_out = marked(type(value), *without)
        names = [field.name for field in dataclasses.fields(value) if field.name not in left_out]
        kind = {"kind": OBJECTIVES.kind_of(value)} if isinstance(value, Objective) else {}
        return kind | {name: plain(getattr(value, name), *without) for name in names}
    if isinstance(value, dict):
        return {key: plain(entry, *without) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry, *without) for entry in value]
    return value
