"""Parses `--labeled`: GLUE files (Wang et al., 2019, arXiv 1804.07461) by task name, other labeled files by suffix."""

import math
from pathlib import Path

from bertjax.data.labeled import labels, tables, tagged_files
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime.errors import UserError

GLUE = "glue:"


def find(spec: str) -> tuple[str, str, LabeledFormat | None]:
    """Return name, path and format for a value of `--labeled`; no format if it depends on the model.

    Args:
      spec: `glue:TASK` for the development set in the folder `glue/TASK`, `glue:FOLDER/TASK` for another folder, or a
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
    plain = folder / heldout_file(folder.name)
    path = next((path for path in (plain, Path(f"{plain}.gz")) if path.is_file()), None)
    if path is None:
        raise UserError(f"--labeled={spec}: {plain} does not exist; name the folder of the task, as in glue:my/SST-2")
    text, pair, label = COLUMNS[folder.name]
    return f"{GLUE}{folder.name}", str(path), LabeledText(heldout=str(path), text=text, pair=pair, label=label)


def format_of(path: str) -> LabeledFormat:
    """Return the format of a labeled file for a model that was not fine-tuned.

    Tables have columns `sentence` and `label`, the fields of `LabeledText`. Other files have a word and its tag in each
    line, are CoNLL-U, or have lists of words and tags in JSON.
    """
    is_tagged = tables.holds_objects(path) and tagged_files.read_object_words(path) is not None
    return LabeledText(heldout=path) if tables.is_table(path) and not is_tagged else Tagged(heldout=path)


def classes_of(format: LabeledFormat, records: list[Record]) -> tuple[str, ...]:
    """Return the sorted label names of records; empty if labels are numbers, as in STS-B."""
    counts = format.class_counts(records)
    # Classes may be called 0 and 1. Only a label with a decimal point makes the task a regression.
    are_numbers = not any(math.isnan(labels.number_of(name)) for name in counts)
    return () if are_numbers and any("." in name for name in counts) else labels.ordered(counts)


# {task: (text column, second text column, label column)}; numbers are columns in files without a header.
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


def heldout_file(task: str) -> str:
    """Return the file name for a task's development set; MNLI's is the one that matches its training genres."""
    return "dev_matched.tsv" if task == "MNLI" else "dev.tsv"
