"""The folder of an analysis: `analysis.json`, `analysis.npz`, `figures/`, `report.html`. It is never half written."""

import json
import os
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax import storage
from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.page.page import Drawing, Section, page
from bertjax.analysis.running import Outcome, raise_if_all_failed
from bertjax.analysis.subject import Subject, described
from bertjax.errors import UserError

NUMBERS, ARRAYS, PAGE, FIGURES = "analysis.json", "analysis.npz", "report.html", "figures"
FORMAT_VERSION = 1


def check_folder(out: Path) -> None:
    """Raise UserError if a folder holds something other than an analysis, or cannot be replaced."""
    if out.resolve() == Path.cwd() or out.is_symlink() or os.path.ismount(out):
        raise UserError(
            f"--out={out} is the current folder, a link or a mount point, which cannot be replaced; name another folder"
        )
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
    """Write the folder of an analysis; it replaces an older one when all of it is written.

    A part whose figures cannot be drawn has failed.

    Args:
      out: the folder.
      outcomes: what became of the parts, in the order of the page.
      subjects: the models.
      materials: the texts.
      before: sections of the page before the parts, such as those of a training.

    Returns:
      What became of the parts, their figures included.

    Raises:
      StorageError: the folder cannot be written; an older one is unchanged.
    """
    drawn = [_drawn(outcome) for outcome in outcomes]
    outcomes = [outcome for outcome, _ in drawn]
    raise_if_all_failed(outcomes)
    draft = out.with_name(f".{out.name}.{os.getpid()}.new")
    with storage.storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        with storage.whole_folder(draft) as folder:
            _fill(folder, drawn, subjects, materials, before)
        older = out.with_name(f".{out.name}.{os.getpid()}.old")
        if out.exists():
            os.rename(out, older)
        os.rename(draft, out)
        shutil.rmtree(older, ignore_errors=True)
    return outcomes


class _Drawn(NamedTuple):
    """A figure as the contents of its two files, and as a block of the page."""

    svg: str
    pdf: bytes
    block: Drawing


def _drawn(outcome: Outcome) -> tuple[Outcome, list[_Drawn]]:
    """Return an outcome and its figures. The part has failed and has no figures if one of them cannot be drawn."""
    figures = []
    for figure in outcome.result.figures if outcome.result else ():
        unique = f"{outcome.part.name}-{figure.name}"
        try:
            drawing_ = figure.draw()
            svg, pdf = drawing.svg_of(drawing_), drawing.pdf_of(drawing_)
        except Exception as error:
            return outcome.failed(error), []
        figures.append(_Drawn(svg, pdf, Drawing(unique, svg, figure.caption, figure.alternative)))
    return outcome, figures


def _fill(folder, drawn, subjects, materials, before) -> None:
    outcomes = [outcome for outcome, _ in drawn]
    numbers: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "models": [described(subject) for subject in subjects],
        "materials": [{"name": material.name, "most_examples": material.examples} for material in materials],
        "parts": {outcome.part.name: outcome.result.numbers for outcome in outcomes if outcome.result},
        "skipped": {outcome.part.name: outcome.missing for outcome in outcomes if outcome.missing},
        "failed": {
            outcome.part.name: {
                "error": outcome.failure,
                "traceback": "".join(traceback.format_exception(outcome.error)),
            }
            for outcome in outcomes
            if outcome.error
        },
    }
    arrays, sections = {}, list(before)
    (folder / FIGURES).mkdir()
    for outcome, figures in drawn:
        name, result = outcome.part.name, outcome.result
        if result is None:
            why = {"skipped": " ".join(_left_out(outcome)), "failed": outcome.failure}
            sections.append(Section(name, outcome.part.title, **why))
            continue
        arrays |= {f"{name}/{key}": array for key, array in result.arrays.items()}
        for figure in figures:
            svg = figure.svg.replace("currentColor", "#000000")
            (folder / FIGURES / f"{figure.block.name}.svg").write_text(svg, encoding="utf-8")
            (folder / FIGURES / f"{figure.block.name}.pdf").write_bytes(figure.pdf)
        paragraphs = (*filter(None, result.text.split("\n\n")), *_left_out(outcome))
        blocks = (*(figure.block for figure in figures), *result.tables)
        sections.append(Section(name, outcome.part.title, paragraphs, blocks, tuple(result.maps)))
        for file, content in result.files.items():
            (folder / file).write_bytes(content)
    (folder / NUMBERS).write_text(json.dumps(plain(numbers), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    np.savez_compressed(folder / ARRAYS, **arrays)
    models = ", ".join(subject.label for subject in subjects)
    title = f"Analysis of {models}" if len(subjects) <= 3 else f"Analysis of {len(subjects)} models"
    lead = f"Models: {models}. Texts: {', '.join(material.name for material in materials)}."
    (folder / PAGE).write_text(page(title, sections, lead), encoding="utf-8")


def _left_out(outcome: Outcome) -> list[str]:
    """Return a sentence for each model that a part could not serve."""
    return [f"{label} is left out: it {reason}." for label, reason in outcome.missing.items()]


def plain(value: Any) -> Any:
    """Return a value as JSON: numpy numbers as Python's, arrays as lists, numbers that are not finite as None."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
