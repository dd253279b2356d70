"""Values of `--labeled`: files of GLUE by the name of their task, and other labeled files by their suffix."""

import math
from pathlib import Path

from bertjax.data.labeled import labels
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.errors import UserError

GLUE = "glue:"
# Columns of the original files, as configs/finetune/glue.py has them: text, second text, label.
COLUMNS = {
    "CoLA": ("3", "", "1"),
    "SST-2": ("sentence", "", "label"),
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "STS-B": ("sentence1", "sentence2", "score"),
    "RTE": ("sentence1", "sentence2", "label"),
    "QQP": ("question1", "question2", "is_duplicate"),
    "MNLI": ("sentence1", "sentence2", "gold_label"),
    "QNLI": ("question", "sentence", "label"),
    "WNLI": ("sentence1", "sentence2", "label"),
}
_HELDOUT = {"MNLI": "dev_matched.tsv"}
_TABLES = (".tsv", ".csv", ".jsonl")


def find(spec: str) -> tuple[str, str, LabeledFormat | None]:
    """Return the name, the path and the format of a value of `--labeled`; no format if it depends on the model.

    Args:
      spec: `glue:TASK` for the development set in the folder `glue/TASK`, `glue:FOLDER/TASK` for one elsewhere, or a
        labeled file.

    Raises:
      UserError: the task is unknown, or the file does not exist.
    """
    if not spec.startswith(GLUE):
        if not Path(spec).expanduser().is_file():
            raise UserError(f"--labeled={spec} is not a file; name one, or glue:TASK")
        return Path(spec).name, str(Path(spec).expanduser()), None
    folder = Path(spec.removeprefix(GLUE)).expanduser()
    if folder.name not in COLUMNS:
        raise UserError(f"--labeled={spec} is not a task of GLUE; choose one of {', '.join(COLUMNS)}")
    folder = folder if len(folder.parts) > 1 else Path("glue") / folder
    path = folder / _HELDOUT.get(folder.name, "dev.tsv")
    if not path.is_file():
        raise UserError(f"--labeled={spec}: {path} does not exist; name the folder of the task, as in glue:my/SST-2")
    text, pair, label = COLUMNS[folder.name]
    return f"{GLUE}{folder.name}", str(path), LabeledText(heldout=str(path), text=text, pair=pair, label=label)


def format_of(path: str) -> LabeledFormat:
    """Return how a labeled file is read for a model that was not fine-tuned.

    Tables have the columns `sentence` and `label`, the fields of `LabeledText`; other files have a word and its tag in
    each line, or are CoNLL-U.
    """
    return LabeledText(heldout=path) if path.endswith(_TABLES) else Tagged(heldout=path)


def classes_of(format: LabeledFormat, records: list[Record]) -> tuple[str, ...]:
    """Return the names of the labels of records, sorted; empty if they are numbers, as the scores of STS-B."""
    counts = format.class_counts(records)
    are_numbers = not any(math.isnan(labels.number_of(name)) for name in counts)
    return () if are_numbers and any("." in name for name in counts) else tuple(sorted(counts))
