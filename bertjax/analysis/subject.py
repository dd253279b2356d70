"""Models under analysis, side by side."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.config import Task, config_of
from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.data.examples import Vocabulary
from bertjax.data.tokenizer import Tokenizer
from bertjax.inference.fill import masked_lm
from bertjax.inference.likelihood import is_causal
from bertjax.inference.predictor import has_predictions
from bertjax.models import taps
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.pretraining.causal import NextToken
from bertjax.runtime.errors import UserError
from bertjax.runtime.storage import split_name

ALL_CHECKPOINTS = "*"


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model under analysis: float32, plain attention, no dropout.

    Attributes:
      label: name on the page, unique within an analysis.
      export: the stored model.
      saved: the folder it comes from; None for a model in memory.
      step: a checkpoint's training step; None for other models.
    """

    label: str
    export: Export
    saved: SavedModel | None = None
    step: int | None = None

    @functools.cached_property
    def encoder(self) -> EncoderConfig:
        """The architecture with default execution: plain attention in float32."""
        # Fused kernels never form the attention probabilities, so the tap `attention` needs the plain one.
        return dataclasses.replace(self.export.encoder, execution=Execution())

    @property
    def steps(self) -> int:
        """Number of steps that the model was trained for, at which loss weights are taken; 0 if it is unknown."""
        steps = self.export.numbers.get("steps")
        # Numbers of an export are untrusted. `isinstance` would accept True as an integer; JAX's are int32.
        return steps if type(steps) is int and 0 <= steps < 2**31 else 0

    @property
    def tokenizer(self) -> Tokenizer:
        return self.export.tokenizer

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.tokenizer)

    @functools.cached_property
    def params(self) -> dict:
        """The parameters, replicated on all local devices."""
        replicated = jax.sharding.NamedSharding(local_mesh(), jax.sharding.PartitionSpec())
        return jax.device_put(self.export.params, replicated)

    @functools.cached_property
    def finetuned(self) -> Task | None:
        """The task that the model was fine-tuned on, with its labeled format; None for a pretrained model."""
        if not has_predictions(self.export):
            return None
        return config_of(self.export).task

    @functools.cached_property
    def pretraining(self) -> Objective | None:
        """The masked-LM or causal objective, if the model has such a head."""
        if self.finetuned:
            return None
        return masked_lm(self.export) or (NextToken() if is_causal(self.export) else None)

    @property
    def objective(self) -> Objective | None:
        """The fine-tuned objective, or else the masked-LM or causal one; None for a model without heads."""
        return self.finetuned.objective if self.finetuned else self.pretraining


def captured(encoder: EncoderConfig, params: dict, batch: Arrays, names: Sequence[str]) -> Arrays:
    """Device: return layer activations {name: [L, ...]} under the names of taps.

    Args:
      encoder: the architecture.
      params: parameters with the root `encoder`.
      batch: the core batch.
      names: names from `bertjax.models.taps.NAMES`.
    """
    inputs = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT")
    variables = {"params": params["encoder"], taps.CAPTURED: dict.fromkeys(names)}
    _, state = Encoder(encoder).apply(variables, *(batch[name] for name in inputs), mutable=[taps.CAPTURED])
    return state[taps.CAPTURED]


def members(examples_BT: jax.Array, slots: int) -> jax.Array:
    """Device: return a 0/1 mask of each example's tokens; float32 [B, N, T]."""
    return (examples_BT[:, None] == jnp.arange(1, slots + 1)[:, None]).astype(jnp.float32)


@functools.cache
def local_mesh() -> jax.sharding.Mesh:
    """Return a mesh of all local devices with one axis, which shards batch rows."""
    return jax.sharding.Mesh(np.array(jax.local_devices()), ("rows",))


def open_subjects(names: Sequence[str], trust_code: bool = False, task: str = "") -> list[Subject]:
    """Open models: export folders, `RUN`, `RUN@STEP`, or `RUN@*` for all kept checkpoints of a run.

    Args:
      names: models as the user names them.
      trust_code: whether to import modules that a model names as `module:Class`, which runs their code.
      task: the task to analyze, for models that were fine-tuned on several.

    Raises:
      UserError: a model does not exist or is damaged, or it has several tasks and none is chosen.
    """
    names = [name for pattern in names for name in expand(pattern)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{repeated[0]} is named twice; name each model once")
    subjects = []
    for name, label in zip(names, labels_of(names), strict=True):
        saved = SavedModel(name, trust_code, task)
        step = int(saved.step) if saved.step else None
        subject = Subject(label, saved.export, saved, step)
        if isinstance(subject.finetuned, Task) and len(tasks := saved.settings["tasks"]) > 1:
            raise UserError(f"{name} was fine-tuned on {', '.join(tasks)}; choose one of them with --task")
        subjects.append(subject)
    return subjects


def expand(name: str) -> list[str]:
    """Expand `RUN@*` to all kept checkpoints, and a folder from `--seeds` to the runs of all seeds.

    `FOLDER@STEP` and `FOLDER@*` apply to every seed. Any other name is returned unchanged.

    Raises:
      UserError: the run does not exist or has no checkpoints.
    """
    # Imported here because it loads the training stack, which an export does not need.
    from bertjax.training.run.workdir import Workdir, runs_in

    path, step = split_name(name)
    workdir = Workdir.at(path)
    runs = [] if workdir.config.exists() else runs_in(workdir.root)
    if seeds := [run for run in runs if run.name.startswith("seed=") and Workdir(run).config.exists()]:
        return [each for seed in seeds for each in expand(f"{seed}@{step}" if step else str(seed))]
    if step != ALL_CHECKPOINTS:
        return [os.fspath(name)]
    if not (steps := workdir.saved_steps()):
        raise UserError(f"{name}: {path} has no checkpoints; name a run that has saved some, or an export")
    return [f"{path}@{step}" for step in steps]


def labels_of(names: Sequence[str]) -> list[str]:
    """Return short unique names: the last parts of the paths, or the full names if those are equal.

    The export folder of a run is labeled with the run's name.
    """
    short = []
    for name in names:
        path, step = split_name(name)
        parts = Path(path).absolute().parts
        stem = parts[-2] if parts[-1] == "export" and len(parts) > 2 else parts[-1]
        short.append(f"{stem}@{step}" if step else stem)
    return short if len(set(short)) == len(short) else list(map(str, names))


def described(subject: Subject) -> Mapping[str, Any]:
    """Return a model's description for the page and `analysis.json`, as plain values."""
    encoder = subject.encoder
    return {
        "label": subject.label,
        "step": subject.step,
        "layers": encoder.layers,
        "heads": encoder.heads if taps.HEAD_MASK in encoder.block.masks else 0,
        "width": encoder.width,
        "max_positions": encoder.max_positions,
        "vocabulary": subject.tokenizer.vocab_size,
        "objective": type(subject.objective).__name__ if subject.objective else None,
    }
