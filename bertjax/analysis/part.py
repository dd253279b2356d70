"""The interface of an analysis part: requirements, computation and results."""

import dataclasses
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.ablation import lacks_objective, scored
from bertjax.analysis.drawing import Chart, Figure
from bertjax.analysis.material import Material
from bertjax.analysis.page import Maps, Table, TokenRow, caption, inline
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.taps import ATTENTION


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a part.

    Attributes:
      numbers: plain JSON values for `analysis.json`; {model: {material: ...}} if both matter.
      arrays: arrays by name for `analysis.npz`; the guide names their axes.
      figures: figures in page order.
      text: paragraphs separated by blank lines: the measurement and the main result.
      tables: tables and rows of data below the figures (`bertjax.analysis.page`).
      maps: attention maps for the page's viewer.
      files: {name: content}, further files for the report folder.
      other_axes: first words of the names of numbers and arrays with axes other than layers and heads, such as the
        points of a curve. The part `training` does not follow them: their shape does not show what they are.
    """

    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    figures: Sequence[Figure] = ()
    text: str = ""
    tables: Sequence[Table | TokenRow] = ()
    maps: Sequence[Maps] = ()
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    other_axes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return text, figures and captions as HTML for a notebook."""
        shown = [f"<p>{html.escape(paragraph)}</p>" for paragraph in self.text.split("\n\n") if paragraph]
        for figure in self.figures:
            shown.append(f"<figure>{inline(figure)}<figcaption>{html.escape(figure.caption)}</figcaption></figure>")
        return "".join(shown)


class Case(NamedTuple):
    """One model on one material.

    Attributes:
      model, material: their labels.
      numbers: plain JSON values.
      arrays: arrays by name.
    """

    model: str
    material: str
    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def title(self) -> str:
        """Both labels."""
        return f"{self.model}, {self.material}"

    @property
    def start(self) -> str:
        """The start of a sentence about it, with the number of examples if that is known."""
        count = f" ({self.numbers['examples']:,} examples)" if "examples" in self.numbers else ""
        return f"{self.model} on {self.material}{count}"


class Part:
    """One part of the analysis. It only computes: callers print and write.

    A part that treats each model and material separately defines `measure`, `figures` and `sentence`; any other part
    defines `run`.

    Attributes:
      name: name in `--parts`.
      title: heading on the page.
      constants: values that all captions of the part may name.
      named_only: whether it runs only if `--parts` names it, because it takes long.
      needs_attention: whether it reads attention, heads or feed-forward neurons.
      needs_objective: whether it reads only materials that the model can be scored on.
      needs_both_directions: what is defined only for tokens that see all of their example; empty for no restriction.
      other_axes: see `Result`.
      results: earlier parts' results by name, set by `run_parts`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    constants: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    named_only: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False
    needs_objective: ClassVar[bool] = False
    needs_both_directions: ClassVar[str] = ""
    other_axes: ClassVar[tuple[str, ...]] = ()
    results: Mapping[str, Result] = MappingProxyType({})

    def lacks(self, subject: Subject, materials: Sequence[Material]) -> str:
        """Return why a model cannot be analyzed, as `missing` does; also checks the attributes."""
        if self.needs_attention and ATTENTION not in (block := subject.encoder.block).captures:
            return f"has model.block.kind={block.kind}, and this part reads attention; use --parts=layers"
        if self.needs_both_directions and (direction := subject.encoder.direction) != BIDIRECTIONAL:
            needs = self.needs_both_directions
            return f"has model.direction={direction}; {needs} for tokens that see all of their example"
        if self.needs_objective and (reason := lacks_objective(subject, materials)):
            return reason
        return self.missing(subject, materials)

    @property
    def intro(self) -> str:
        """The first paragraph of the text. A part without an entry in `page_assets/captions.md` overrides it."""
        return caption(self.name, **self.constants)[0]

    def figure(self, name: str, chart: Chart, number: int | str = "", **values: Any) -> Figure:
        """Return a chart with its caption, see `drawing.figure`."""
        return drawing.figure(f"{self.name}/{name}", chart, number, **self.constants, **values)

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        """Return the unmet requirement of a model or the materials, as the end of `patterns: ...`; empty if none."""
        return ""

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the result for models that meet all requirements.

        Raises:
          UserError: a text does not suit a model.
        """
        cases = [
            Case(subject.label, material.name, *self.measure(subject, material, progress))
            for subject in subjects
            for material in (scored(subject, materials) if self.needs_objective else materials)
        ]
        numbers: dict[str, Any] = {subject.label: {} for subject in subjects}
        arrays: dict[str, np.ndarray] = {}
        for case in cases:
            numbers[case.model][case.material] = case.numbers
            arrays |= {f"{case.model}/{case.material}/{name}": values for name, values in case.arrays.items()}
        text = "\n\n".join([self.intro, *(f"{case.start}: {self.sentence(case)}" for case in cases)])
        figures, files = list(self.figures(cases)), self.files(cases)
        return Result(numbers, arrays, figures, text, files=files, other_axes=self.other_axes)

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        """Return the numbers of a model on a material, and its arrays by name."""
        raise TypeError(f"{type(self).__name__} has neither run() nor measure()")

    def figures(self, cases: Sequence[Case]) -> Iterable[Figure]:
        """Return the figures, in page order."""
        return ()

    def sentence(self, case: Case) -> str:
        """Return the main result of a model on a material, the end of a paragraph that starts with both."""
        return ""

    def files(self, cases: Sequence[Case]) -> dict[str, bytes]:
        """Return {name: content} of further files."""
        return {}


def listed(values: Mapping[str, float], spec: str) -> str:
    """Return named numbers as text, in the format `spec`."""
    return ", ".join(f"{name} {value:{spec}}" for name, value in values.items())


def highest(values: Mapping[str, Any], spec: str, of: Callable[[Any], np.ndarray] = np.asarray) -> str:
    """Return where each array [L] or [L, H] is highest, as `title: layer 2, head 3 (value)`, in the format `spec`.

    Args:
      of: what is compared, such as `np.abs`; the value has its sign.
    """
    parts = []
    for title, array in values.items():
        cell = np.unravel_index(np.argmax(of(array)), np.shape(array))
        where = ", ".join(f"{axis} {index + 1}" for axis, index in zip(("layer", "head"), cell))
        parts.append(f"{title}: {where} ({np.asarray(array)[cell]:{spec}})")
    return "; ".join(parts)


def slug_of(*words: str) -> str:
    """Return words as lower-case letters, digits and hyphens."""
    return "-".join(re.findall("[a-z0-9]+", "-".join(words).lower()))


def by_material(cases: Sequence[Case]) -> Iterator[tuple[str, dict[str, Case]]]:
    """Yield each material with {model: its case}."""
    for material in dict.fromkeys(case.material for case in cases):
        yield material, {case.model: case for case in cases if case.material == material}
