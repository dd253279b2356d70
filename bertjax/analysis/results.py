"""Writes the report folder atomically: `analysis.json`, `analysis.npz`, `figures/`, `report.html`."""

import dataclasses
import os
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.page import Section, page
from bertjax.analysis.running import Outcome, raise_if_all_failed
from bertjax.analysis.subject import Subject, described
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, json_text

NUMBERS, ARRAYS, PAGE, FIGURES = "analysis.json", "analysis.npz", "report.html", "figures"
FORMAT_VERSION = 1


def check_folder(out: Path) -> None:
    """Raise UserError if a folder holds anything other than an analysis, or cannot be replaced."""
    # A report is replaced by renaming folders, which fails or surprises in these three cases.
    if out.resolve() == Path.cwd() or out.is_symlink() or os.path.ismount(out):
        raise UserError(
            f"--out={out} is the current folder, a link or a mount point, which cannot be replaced; name another folder"
        )
    # Checked before the analysis starts: it may take an hour.
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UserError(f"--out={out} cannot be made in {above}; name a folder that can be written")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / NUMBERS).exists())):
        raise UserError(f"--out={out} exists and is not the folder of an analysis; name another folder")


def write(
    out: Path,
    outcomes: Sequence[Outcome],
    subjects: Sequence[Subject],
    materials: Sequence[Material],
    before: Sequence[Section] = (),
) -> list[Outcome]:
    """Write the report folder. It replaces an older report once it is complete.

    A part fails if its figures cannot be drawn.

    Args:
      out: the folder.
      outcomes: outcomes of the parts, in page order.
      subjects: the models.
      materials: the texts.
      before: sections above the parts, such as those about a training run.

    Returns:
      The outcomes, including failures while drawing.

    Raises:
      StorageError: the folder cannot be written; an older report is unchanged.
    """
    outcomes = [_drawn(outcome) for outcome in outcomes]
    raise_if_all_failed(outcomes)
    # A draft in the same parent folder is on the same file system, so it can be renamed into place.
    draft = out.with_name(f".{out.name}.{os.getpid()}.new")
    with storage.storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        with storage.whole_folder(draft) as folder:
            _fill(folder, outcomes, subjects, materials, before)
        older = out.with_name(f".{out.name}.{os.getpid()}.old")
        if out.exists():
            os.rename(out, older)
        os.rename(draft, out)
        shutil.rmtree(older, ignore_errors=True)
    return outcomes


def _drawn(outcome: Outcome) -> Outcome:
    """Draw the figures of an outcome, under names that are unique on the page. If one fails, the part fails."""
    if outcome.result is None:
        return outcome
    name, files = outcome.part.name, dict(outcome.result.files)
    figures = [dataclasses.replace(figure, name=f"{name}-{figure.name}") for figure in outcome.result.figures]
    try:
        for figure in figures:
            # A file of its own has no page whose color it could take.
            files[f"{FIGURES}/{figure.name}.svg"] = figure.svg.replace("currentColor", "#000000").encode()
            files[f"{FIGURES}/{figure.name}.pdf"] = drawing.pdf_of(figure.drawn)
    # One bad figure must not discard the other parts of a long analysis.
    except Exception as error:
        return dataclasses.replace(outcome, result=None, error=error)
    return dataclasses.replace(outcome, result=dataclasses.replace(outcome.result, figures=figures, files=files))


def _fill(folder, outcomes, subjects, materials, before) -> None:
    numbers: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "models": [described(subject) for subject in subjects],
        "materials": [{"name": material.name, "most_examples": material.examples} for material in materials],
        "parts": {outcome.part.name: outcome.result.numbers for outcome in outcomes if outcome.result},
        "skipped": {outcome.part.name: outcome.missing for outcome in outcomes if outcome.missing},
        "failed": {outcome.part.name: _failure(outcome) for outcome in outcomes if outcome.error},
    }
    arrays, sections = {}, list(before)
    (folder / FIGURES).mkdir()
    for outcome in outcomes:
        name, result = outcome.part.name, outcome.result
        if result is None:
            why = {"skipped": " ".join(_left_out(outcome)), "failed": outcome.failure}
            sections.append(Section(name, outcome.part.title, **why))
            continue
        arrays |= {f"{name}/{key}": array for key, array in result.arrays.items()}
        paragraphs = (*filter(None, result.text.split("\n\n")), *_left_out(outcome))
        blocks = (*result.figures, *result.tables)
        sections.append(Section(name, outcome.part.title, paragraphs, blocks, tuple(result.maps)))
        for file, content in result.files.items():
            (folder / file).write_bytes(content)
    (folder / NUMBERS).write_text(json_text(plain(numbers), indent=1) + "\n", encoding="utf-8")
    np.savez_compressed(folder / ARRAYS, **arrays)
    models = ", ".join(subject.label for subject in subjects)
    title = f"Analysis of {models}" if len(subjects) <= 3 else f"Analysis of {len(subjects)} models"
    notes = " ".join(material.note for material in materials)
    lead = f"Models: {models}. Texts: {', '.join(material.name for material in materials)}. {notes}".rstrip()
    # The viewer first: it is what readers try.
    sections.sort(key=lambda section: not section.maps)
    (folder / PAGE).write_text(page(title, sections, lead), encoding="utf-8")


def _failure(outcome: Outcome) -> dict[str, str]:
    return {"error": outcome.failure, "traceback": "".join(traceback.format_exception(outcome.error))}


def _left_out(outcome: Outcome) -> list[str]:
    """Return one sentence per model that the part could not analyze."""
    return [f"{label} is left out: it {reason}." for label, reason in outcome.missing.items()]


def plain(value: Any) -> Any:
    """Convert a value to JSON types: NumPy numbers to Python's, arrays to lists."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
