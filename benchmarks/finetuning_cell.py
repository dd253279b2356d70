"""A task of `benchmarks/finetuning.py`, the same for both arms."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.config import config_file
from bertjax.config.config import Config
from bertjax.data.labeled.base import Record
from bertjax.data.labeled.subset import limited
from bertjax.models.config import EncoderConfig
from bertjax.runtime.errors import UserError
from bertjax.training.optim.config import OptimizerConfig

_CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "finetune"
# Optimizer settings that both arms share; bertjax's other optimizer settings keep their defaults.
_OPTIMIZER = ("learning_rate", "warmup_share", "b1", "b2", "epsilon", "weight_decay", "clip_norm")
# Standard deviation of a standard normal distribution truncated at two deviations, from which bertjax initializes its
# heads; transformers does not truncate. With few updates the scale of the heads matters: features change little, and
# logits are features times weights.
_DEVIATION_WHEN_CUT = 0.8796
_LABELS = {"tagged": "tags", "questions": "answers"}


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of a task.

    Attributes:
      config: configuration FILE or FILE:variant.
      name: the task's name in that file.
      train: training file, relative to the folder of `--data`.
      heldout: held-out file, relative to the folder of `--data`.
    """

    config: str
    name: str
    train: str
    heldout: str


_GLUE = ("MRPC", "STS-B", "CoLA", "RTE", "SST-2")
SOURCES = {
    **{
        task: Source(f"{_CONFIGS / 'glue.py'}:{task}", task, f"glue/{task}/train.tsv", f"glue/{task}/dev.tsv")
        for task in _GLUE
    },
    "CoNLL-2003": Source(f"{_CONFIGS / 'ner.py'}", "ner", "conll2003/train.txt", "conll2003/valid.txt"),
    # Trained on XQuAD in English, scored on the development set of MLQA in English.
    "QA": Source(f"{_CONFIGS / 'qa.py'}", "qa", "qa/xquad.en.json", "qa/dev-context-en-question-en.json"),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A task, the same for both arms.

    Attributes:
      task: the task's name, a key of `SOURCES`.
      config: bertjax's configuration with paths and the user's overrides, without the seed.
      overrides: overrides that turn the configuration file into `config`.
      train: training records.
      heldout: held-out records.
    """

    task: str
    config: Config
    overrides: tuple[str, ...]
    train: list[Record]
    heldout: list[Record]

    @property
    def kind(self) -> str:
        """Kind of the records: `labeled_text`, `tagged` or `questions`."""
        return self.config.task.examples.kind

    @property
    def label(self) -> str:
        """Name of the field of a record that holds its label."""
        return _LABELS.get(self.kind) or self.config.task.examples.label

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in bertjax's order; empty if labels are numbers or answers."""
        names = {field.name for field in dataclasses.fields(self.config.task.objective)}
        if self.kind == "questions" or "classes" not in names:
            return ()
        return tuple(sorted(self.config.task.examples.class_counts(self.train)))

    @property
    def recipe(self) -> dict[str, Any]:
        """Settings of both arms, as plain JSON.

        Raises:
          UserError: the configuration changes a setting that this benchmark does not pass to `Trainer`.
        """
        config, (stage, *more) = self.config, self.config.stages
        examples, objective = config.task.examples, config.task.objective
        optimizer = {name: getattr(config.optimizer, name) for name in _OPTIMIZER}
        if more or config.optimizer != OptimizerConfig(**optimizer) or not (stage.epochs and stage.examples):
            raise UserError(
                "both arms use AdamW with a linear schedule, in one stage of so many epochs and examples; of "
                f"--config.optimizer change {', '.join(_OPTIMIZER)} alone"
            )
        task_settings = {}
        if self.kind == "tagged":
            task_settings = {"stride": examples.stride}
        elif self.kind == "questions":
            task_settings = {"stride": examples.stride, "max_question": examples.max_question}
            task_settings |= {"longest": objective.longest, "nbest": objective.nbest}
        return optimizer | {
            "limit": examples.limit,
            "epochs": stage.epochs,
            "examples": stage.examples,
            "seq_len": stage.seq_len,
            "dropout": config.model.dropout,
            "attention_dropout": config.model.attention_dropout,
            **task_settings,
        }

    def named(self, prediction: Any) -> Any:
        """Return a prediction of the other arm with class names in place of class numbers."""
        if not self.classes:
            return prediction
        return [self.classes[number] for number in prediction] if self.kind == "tagged" else self.classes[prediction]


def open_cell(task: str, data: Path, export: Path, limit: int, overrides: Sequence[str]) -> Cell:
    """Read the files of a task; overrides of other tasks (`tasks.NAME.`) are ignored.

    Raises:
      UserError: a file is missing or does not fit the task.
    """
    source = SOURCES[task]
    examples = f"tasks.{source.name}.examples"
    of_others = tuple(f"tasks.{other.name}." for other in SOURCES.values() if other != source)
    overrides = (
        f"init_from={export}",
        f"model.init_stddev={EncoderConfig.init_stddev / _DEVIATION_WHEN_CUT:.5f}",
        f"{examples}.train={_file(data / source.train)}",
        f"{examples}.heldout={_file(data / source.heldout)}",
        f"{examples}.limit={limit}",
        *(override for override in overrides if not override.startswith(of_others)),
    )
    config = config_file.load(source.config, list(overrides))
    format = config.task.examples
    cell = Cell(task, config, overrides, limited(format.read(format.train), format), format.read(format.heldout))
    if cell.kind == "questions" and not all(record["answers"] for record in [*cell.train, *cell.heldout]):
        raise UserError(f"{format.train} or {format.heldout} has questions without an answer; give files of SQuAD 1.1")
    if format.on_bad_record != "stop":
        raise UserError(f"examples.on_bad_record={format.on_bad_record}: the other arm cannot skip; leave it as it is")
    return cell


def _file(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed.absolute() if packed.exists() and not path.exists() else path.absolute()


def job_of(cell: Cell, model: Path, seed: int, threads: int) -> dict[str, Any]:
    """Return the job file of `benchmarks/arms/trainer.py`; only training records have labels."""
    return cell.recipe | {
        "kind": cell.kind,
        "model": str(model.absolute()),
        "seed": seed,
        "threads": threads,
        "classes": len(cell.classes),
        "train": [inputs | label for inputs, label in zip(_inputs(cell, cell.train), _labels(cell))],
        "heldout": _inputs(cell, cell.heldout),
    }


def _inputs(cell: Cell, records: list[Record]) -> list[dict[str, Any]]:
    if cell.kind == "tagged":
        return [{"words": record["words"]} for record in records]
    if cell.kind == "questions":
        return [{"question": record["question"], "context": record["context"]} for record in records]
    format = cell.config.task.examples
    columns = [format.text, format.pair] if format.pair else [format.text]
    return [{"texts": [record[column] for column in columns]} for record in records]


def _labels(cell: Cell) -> list[dict[str, Any]]:
    values = [record[cell.label] for record in cell.train]
    number = {name: number for number, name in enumerate(cell.classes)}
    if cell.kind == "tagged":
        return [{"tags": [number[tag] for tag in tags]} for tags in values]
    if cell.kind == "questions":  # the first of several answers, as in bertjax
        return [{"begin": first["answer_start"], "answer": first["text"]} for first, *_ in values]
    return [{"label": number[value] if number else float(value)} for value in values]
