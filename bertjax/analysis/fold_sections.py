"""Page sections about the runs of `examples.folds`: the scores over folds, and what they say about the whole file."""

from bertjax.analysis import class_sections
from bertjax.analysis.page.page import Section, Table
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training.results import classes, folds
from bertjax.training.run.record import read_record
from bertjax.training.run.workdir import Workdir, read_json, read_jsonl


def sections_of(path: str, trust_code: bool = False) -> list[Section]:
    """Return the sections about a folder of folds.

    Args:
      path: the folder.
      trust_code: whether to import modules that the runs name as `module:Class`.

    Raises:
      UserError: not all folds are trained, or a file is damaged.
    """
    files = Workdir.at(path)
    if not storage.exists(files.root / folds.SUMMARY):
        raise UserError(f"{path!r} has folds that are not trained yet; run the command that started them again")
    spread = read_json(files.root / folds.SUMMARY, "metrics", "baseline")
    task = read_record(Workdir(files.root / "fold=0"), trust_code).config.task
    count = len(next(iter(spread["metrics"].values()))["values"])
    headings = ("metric", "mean", "lowest", "highest", "most frequent class")
    caption = "Held-out scores. Folds share most of their training records: their range is not a confidence interval."
    paragraph = (
        f"{count} runs, each of which held out another part of {task.examples.train}: each record is scored by the run "
        "that was not trained on it."
    )
    rows = tuple(folds.rows_of(spread))
    sections = [Section("folds", "The folds", (paragraph,), (Table(caption, headings, rows),))]
    predictions = read_jsonl(files.predictions / f"{folds.STEM}.jsonl")
    if report := classes.report_of(task, predictions):
        sections.append(class_sections.section_of("classes-0", "Classes of all folds", task, report, predictions, {}))
    return sections
