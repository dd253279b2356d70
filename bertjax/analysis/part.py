"""The interface of an analysis part: requirements, computation and results."""

import dataclasses
import html
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.page import Drawing, Maps, Table, TokenRow, inline
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject
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

    Attributes:
      name: name in `--parts`.
      title: heading on the page.
      named_only: whether it runs only if `--parts` names it, because it takes long.
      needs_attention: whether it reads attention, heads or feed-forward neurons.
      results: earlier parts' results by name, set by `run_parts`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    named_only: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False
    results: Mapping[str, Result] = MappingProxyType({})

    def lacks(self, subject: Subject, materials: Sequence[Material]) -> str:
        """Return why a model cannot be analyzed, as `missing` does; also checks for attention."""
        if self.needs_attention and ATTENTION not in (block := subject.encoder.block).captures:
            return f"has model.block.kind={block.kind}, and this part reads attention; use --parts=layers"
        return self.missing(subject, materials)

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        """Return the unmet requirement of a model or the materials, as the end of `patterns: ...`; empty if none."""
        return ""

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the result for models that meet all requirements.

        Raises:
          UserError: a text does not suit a model.
        """
        raise TypeError(f"{type(self).__name__} has no run()")
