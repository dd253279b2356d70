"""A task as both arms of `benchmarks/finetuning.py` are given it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax import config_file
from bertjax.config import Config
from bertjax.data.labeled.base import Record
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.training.config import OptimizerConfig

_CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "finetune"
# What the optimizers of both arms are told; the rest of bertjax's stays as it is.
_OPTIMIZER = ("learning_rate", "warmup_share", "b1", "b2", "epsilon", "weight_decay", "clip_norm")
# Of a normal distribution cut at two deviations, as bertjax's heads begin; transformers draws them from all of one.
# With few updates their scale matters: features change little, and logits by features times weights.
_DEVIATION_WHEN_CUT = 0.8796
_LABELS = {"tagged": "tags", "questions": "answers"}


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a task comes from.

    Attributes:
      config: the configuration file, or FILE:variant.
      name: of the task in that file.
      train: the file that is learned from, in the folder of `--data`.
      heldout: the file that is scored.
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
    # Learns from XQuAD in English, and is scored on the development set of MLQA in English.
    "QA": Source(f"{_CONFIGS / 'qa.py'}", "qa", "qa/xquad.en.json", "qa/dev-context-en-question-en.json"),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A task as both arms are given it.

    Attributes:
      task: its name, of `SOURCES`.
      config: of bertjax, with paths and all that `--config.` changes; the seed aside.
      overrides: that make it of the configuration file.
      train: records that are learned from.
      heldout: records that are scored.
    """

    task: str
    config: Config
    overrides: tuple[str, ...]
    train: list[Record]
    heldout: list[Record]

    @property
    def kind(self) -> str:
        """Of the records: `labeled_text`, `tagged` or `questions`."""
        return self.config.task.examples.kind

    @property
    def label(self) -> str:
        """Name of the field of a record that holds its label."""
        return _LABELS.get(self.kind) or self.config.task.examples.label

    @property
    def classes(self) -> tuple[str, ...]:
        """Sorted as bertjax does; empty where labels are numbers or answers."""
        names = {field.name for field in dataclasses.fields(self.config.task.objective)}
        if self.kind == "questions" or "classes" not in names:
            return ()
        return tuple(sorted(self.config.task.examples.class_counts(self.train)))

    @property
    def recipe(self) -> dict[str, Any]:
        """What both arms are told, as plain JSON.

        Raises:
          UserError: the configuration asks for what `Trainer` is not told here.
        """
        config, (stage, *more) = self.config, self.config.stages
        examples, objective = config.task.examples, config.task.objective
        optimizer = {name: getattr(config.optimizer, name) for name in _OPTIMIZER}
        if more or config.optimizer != OptimizerConfig(**optimizer) or not (stage.epochs and stage.examples):
            raise UserError(
                "both arms use AdamW with a linear schedule, in one stage of so many epochs and examples; of "
                f"--config.optimizer change {', '.join(_OPTIMIZER)} alone"
            )
        told = {}
        if self.kind == "tagged":
            told = {"stride": examples.stride}
        elif self.kind == "questions":
            told = {"stride": examples.stride, "max_question": examples.max_question}
            told |= {"longest": objective.longest, "nbest": objective.nbest}
        return optimizer | {
            "limit": examples.limit,
            "epochs": stage.epochs,
            "examples": stage.examples,
            "seq_len": stage.seq_len,
            "dropout": config.model.dropout,
            "attention_dropout": config.model.attention_dropout,
            **told,
        }

    def named(self, prediction: Any) -> Any:
        """What the other arm predicts, with the names of classes for their numbers."""
        if not self.classes:
            return prediction
        return [self.classes[number] for number in prediction] if self.kind == "tagged" else self.classes[prediction]


def open_cell(task: str, data: Path, export: Path, limit: int, overrides: Sequence[str]) -> Cell:
    """Reads the files of a task; overrides of other tasks (`tasks.NAME.`) are left aside.

    Raises:
      UserError: they are not there, or are not what they should be.
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
    cell = Cell(task, config, overrides, format.read(format.train)[: limit or None], format.read(format.heldout))
    if cell.kind == "questions" and not all(record["answers"] for record in [*cell.train, *cell.heldout]):
        raise UserError(f"{format.train} or {format.heldout} has questions without an answer; give files of SQuAD 1.1")
    if cell.kind == "questions" and format.on_bad_answer != "stop":
        raise UserError(f"examples.on_bad_answer={format.on_bad_answer}: the other arm cannot skip; leave it as it is")
    return cell


def _file(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed.absolute() if packed.exists() and not path.exists() else path.absolute()


def job_of(cell: Cell, model: Path, seed: int, threads: int) -> dict[str, Any]:
    """What `benchmarks/arms/trainer.py` reads; labels only of what is learned from."""
    return cell.recipe | {
        "kind": cell.kind,
        "model": str(model.absolute()),
        "seed": seed,
        "threads": threads,
        "classes": len(cell.classes),
        "train": [each | label for each, label in zip(_inputs(cell, cell.train), _labels(cell))],
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
    if cell.kind == "questions":  # as bertjax, of several answers the first
        return [{"begin": first["answer_start"], "answer": first["text"]} for first, *_ in values]
    return [{"label": number[value] if number else float(value)} for value in values]
