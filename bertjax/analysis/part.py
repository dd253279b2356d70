"""The interface of an analysis part: requirements, computation and results."""

import dataclasses
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.ablation import lacks_objective, scored
from bertjax.analysis.material import Material
from bertjax.analysis.page import Drawing, Maps, Table, TokenRow, inline
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.taps import ATTENTION

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page, saved as `figures/<part>-<name>.svg` and `.pdf`.

    Attributes:
      name: lower-case letters, digits and hyphens, unique within its part.
      caption: one paragraph: content, how to read it, the paper, the key number.
      alternative: alternative text for people who do not see the figure.
      draw: draws it, using `bertjax.analysis.drawing`.
    """

    name: str
    caption: str
    alternative: str
    draw: "Callable[[], MatplotlibFigure]"


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
      other_axes: names of numbers and arrays with axes other than layers and heads, such as the points of a curve. The
        part `training` does not follow them: their shape does not show what they are.
    """

    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    figures: Sequence[Figure] = ()
    text: str = ""
    tables: Sequence[Table | TokenRow] = ()
    maps: Sequence[Maps] = ()
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    other_axes: frozenset[str] = frozenset()

    def _repr_html_(self) -> str:
        """Return text, figures and captions as HTML for a notebook."""
        shown = [f"<p>{html.escape(paragraph)}</p>" for paragraph in self.text.split("\n\n") if paragraph]
        for figure in self.figures:
            svg = drawing.svg_of(figure.draw())
            element = inline(Drawing(figure.name, svg, figure.caption, figure.alternative))
            shown.append(f"<figure>{element}<figcaption>{html.escape(figure.caption)}</figcaption></figure>")
        return "".join(shown)


class Part:
    """One part of the analysis. It only computes: callers print and write.

    A part that treats each model and material separately defines `measure` and `result`; any other part defines `run`.

    Attributes:
      name: name in `--parts`.
      title: heading on the page.
      named_only: whether it runs only if `--parts` names it, because it takes long.
      needs_attention: whether it reads attention, heads or feed-forward neurons.
      needs_objective: whether it reads only materials that the model can be scored on.
      needs_both_directions: what is defined only for tokens that see all of their example; empty for no restriction.
      results: earlier parts' results by name, set by `run_parts`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    named_only: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False
    needs_objective: ClassVar[bool] = False
    needs_both_directions: ClassVar[str] = ""
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

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        """Return the unmet requirement of a model or the materials, as the end of `patterns: ...`; empty if none."""
        return ""

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the result for models that meet all requirements.

        Raises:
          UserError: a text does not suit a model.
        """
        numbers: dict[str, Any] = {subject.label: {} for subject in subjects}
        arrays: dict[str, np.ndarray] = {}
        for subject in subjects:
            for material in scored(subject, materials) if self.needs_objective else materials:
                of_pair, named = self.measure(subject, material, progress)
                numbers[subject.label][material.name] = of_pair
                arrays |= {f"{subject.label}/{material.name}/{name}": values for name, values in named.items()}
        return self.result(numbers, arrays)

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        """Return the numbers of a model on a material, and its arrays by name."""
        raise TypeError(f"{type(self).__name__} has neither run() nor measure()")

    def result(self, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> Result:
        """Return the result from {model: {material: numbers}} and arrays named `<model>/<material>/<name>`."""
        return Result(numbers, arrays)


def listed(values: Mapping[str, float], spec: str) -> str:
    """Return named numbers as text, in the format `spec`."""
    return ", ".join(f"{name} {value:{spec}}" for name, value in values.items())


def pairs(numbers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Yield (model, material, numbers) of `Result.numbers`."""
    for label, by_material in numbers.items():
        for material, values in by_material.items():
            yield label, material, values
