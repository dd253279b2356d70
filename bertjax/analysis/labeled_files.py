"""Values of `--labeled`: files of GLUE by the name of their task, and other labeled files by their suffix."""

import math
from pathlib import Path

from bertjax.data.labeled import glue, labels, tagged_objects
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.errors import UserError

GLUE = "glue:"
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
    if folder.name not in glue.COLUMNS:
        raise UserError(f"--labeled={spec} is not a task of GLUE; choose one of {', '.join(glue.COLUMNS)}")
    folder = folder if len(folder.parts) > 1 else Path("glue") / folder
    plain = folder / glue.heldout_file(folder.name)
    path = next((path for path in (plain, Path(f"{plain}.gz")) if path.is_file()), None)
    if path is None:
        raise UserError(f"--labeled={spec}: {plain} does not exist; name the folder of the task, as in glue:my/SST-2")
    text, pair, label = glue.COLUMNS[folder.name]
    return f"{GLUE}{folder.name}", str(path), LabeledText(heldout=str(path), text=text, pair=pair, label=label)


def format_of(path: str) -> LabeledFormat:
    """Return how a labeled file is read for a model that was not fine-tuned.

    Tables have the columns `sentence` and `label`, the fields of `LabeledText`; other files have a word and its tag in
    each line, are CoNLL-U, or have lists of words and tags in JSON lines.
    """
    is_tagged = path.endswith(".jsonl") and tagged_objects.read_words(path) is not None
    return LabeledText(heldout=path) if path.endswith(_TABLES) and not is_tagged else Tagged(heldout=path)


def classes_of(format: LabeledFormat, records: list[Record]) -> tuple[str, ...]:
    """Return the names of the labels of records, sorted; empty if they are numbers, as the scores of STS-B."""
    counts = format.class_counts(records)
    are_numbers = not any(math.isnan(labels.number_of(name)) for name in counts)
    return () if are_numbers and any("." in name for name in counts) else labels.ordered(counts)
