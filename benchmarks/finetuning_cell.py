"""A task as both arms of `benchmarks/finetuning.py` are given it, and how both are scored."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax import config as configuration
from bertjax.config import Config
from bertjax.data.labelled.base import Record
from bertjax.errors import RunFailed, UserError
from bertjax.training.config import OptimizerConfig

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "finetune" / "glue.py"
# What the optimizers of both arms are told; the rest of bertjax's stays as it is.
_OPTIMIZER = ("learning_rate", "warmup_share", "b1", "b2", "epsilon", "weight_decay", "clip_norm")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A task as both arms are given it.

    Attributes:
      config: of bertjax, with paths and all that `--config.` changes; the seed aside.
      overrides: that make it of the configuration file.
      train: records that are learned from.
      heldout: records that are scored.
    """

    config: Config
    overrides: tuple[str, ...]
    train: list[Record]
    heldout: list[Record]

    @property
    def task(self) -> str:
        return self.config.task_name

    @property
    def label(self) -> str:
        """Name of the field of a record that holds its label."""
        return self.config.task.examples.label

    @property
    def classes(self) -> tuple[str, ...]:
        """Sorted as bertjax does; empty for a regression."""
        if "classes" not in {field.name for field in dataclasses.fields(self.config.task.objective)}:
            return ()
        return tuple(sorted(self.config.task.examples.class_counts(self.train)))

    @property
    def recipe(self) -> dict[str, Any]:
        """What both arms are told, as plain JSON.

        Raises:
          UserError: the configuration asks for what `Trainer` is not told here.
        """
        config, (stage, *more) = self.config, self.config.stages
        optimizer = {name: getattr(config.optimizer, name) for name in _OPTIMIZER}
        if more or config.optimizer != OptimizerConfig(**optimizer) or not (stage.epochs and stage.examples):
            raise UserError(
                "both arms use AdamW with a linear schedule, in one stage of so many epochs and examples; of "
                f"--config.optimizer change {', '.join(_OPTIMIZER)} alone"
            )
        return optimizer | {
            "limit": config.task.examples.limit,
            "epochs": stage.epochs,
            "examples": stage.examples,
            "seq_len": stage.seq_len,
            "dropout": config.model.dropout,
            "attention_dropout": config.model.attention_dropout,
        }


def open_cell(task: str, glue: Path, export: Path, limit: int, overrides: Sequence[str]) -> Cell:
    """Reads the files of a task.

    Raises:
      UserError: they are not there, or are not what they should be.
    """
    examples = f"tasks.{task}.examples"
    overrides = (
        f"init_from={export}",
        f"{examples}.train={_file(glue / task / 'train.tsv')}",
        f"{examples}.heldout={_file(glue / task / 'dev.tsv')}",
        f"{examples}.limit={limit}",
        *overrides,
    )
    config = configuration.load(f"{CONFIG}:{task}", list(overrides))
    format = config.task.examples
    return Cell(config, overrides, format.read(format.train)[: limit or None], format.read(format.heldout))


def _file(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed.absolute() if packed.exists() and not path.exists() else path.absolute()


def job_of(cell: Cell, model: Path, seed: int, threads: int) -> dict[str, Any]:
    """What `benchmarks/arms/trainer.py` reads."""
    format, classes = cell.config.task.examples, cell.classes
    columns = [format.text, format.pair] if format.pair else [format.text]

    def plain(records: list[Record]) -> list[dict]:
        labels = [classes.index(r[format.label]) if classes else float(r[format.label]) for r in records]
        return [
            {"texts": [record[column] for column in columns], "label": label} for record, label in zip(records, labels)
        ]

    return cell.recipe | {
        "model": str(model.absolute()),
        "seed": seed,
        "threads": threads,
        "classes": len(classes),
        "train": plain(cell.train),
        "heldout": plain(cell.heldout),
    }


def scores_of(cell: Cell, pairs: list[tuple[Any, Any]]) -> dict[str, float]:
    """Metrics of (label, prediction) of every held-out record, in any order; the same code for both arms.

    Raises:
      RunFailed: they are not those of the held-out records.
    """
    from scipy import stats
    from sklearn import metrics

    labels, predictions = (list(each) for each in zip(*pairs))
    if Counter(map(str, labels)) != Counter(str(record[cell.label]) for record in cell.heldout):
        raise RunFailed(f"the predictions for {cell.task} are not those of its {len(cell.heldout)} held-out records")
    if not cell.classes:
        found = (function([float(x) for x in labels], predictions) for function in (stats.pearsonr, stats.spearmanr))
        return dict(zip(("pearson", "spearman"), (float(each.statistic) for each in found)))
    average = {"pos_label": cell.classes[1]} if len(cell.classes) == 2 else {"average": "macro"}
    return {
        "accuracy": float(metrics.accuracy_score(labels, predictions)),
        "f1": float(metrics.f1_score(labels, predictions, zero_division=0.0, **average)),
        "matthews": float(metrics.matthews_corrcoef(labels, predictions)),
    }


def majority(cell: Cell) -> dict[str, float]:
    """Metrics of always guessing the class that is most frequent in the training file; none for a regression."""
    if not cell.classes:
        return {}
    [(guess, _)] = cell.config.task.examples.class_counts(cell.train).most_common(1)
    return scores_of(cell, [(record[cell.label], guess) for record in cell.heldout])
