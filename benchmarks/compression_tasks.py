"""The tasks of the compression benchmark, and the folders of a cell."""

from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """A labeled task.

    Attributes:
      name: its folder in GLUE, which has train.tsv.gz and dev.tsv.gz.
      columns: name of a column of `examples` -> its name in the records of the benchmark.
      limit: records of the training file; 0 for all.
      kind: kind of the objective.
      metric: score of a model in the table.
    """

    name: str
    columns: dict[str, str]
    limit: int
    kind: str = "classification"
    metric: str = "accuracy"

    @property
    def records(self) -> tuple[str, dict[str, str], int]:
        """The fields that choose the records and that no command has."""
        return self.name, self.columns, self.limit


TASKS = {
    task.name: task
    for task in (
        Task("SST-2", {"text": "sentence"}, 8000),
        Task("MRPC", {"text": "sentence1", "pair": "sentence2"}, 0),
        Task("STS-B", {"text": "sentence1", "pair": "sentence2"}, 0, "regression", "spearman"),
    )
}


class Place(NamedTuple):
    """Where a cell finds what others made, and where it writes.

    Attributes:
      task: name of the task.
      seed: seed of every training.
      data: folder with train.jsonl, heldout.jsonl and texts.txt.
      corpus: text for pretraining.
      adapted: the pretrained encoder with a masked-LM head.
      teacher: the fine-tuned teacher.
      out: folder of the cell.
    """

    task: str
    seed: int
    data: Path
    corpus: str
    adapted: Path
    teacher: Path
    out: Path
