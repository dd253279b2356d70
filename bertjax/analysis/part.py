"""The contract of a part of the analysis: what it needs, what it computes, and what it shows."""

import dataclasses
import html
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Material
from bertjax.analysis.page.page import Drawing, Maps, Table, TokenRow, inline
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page; the files `figures/<part>-<name>.svg` and `.pdf`.

    Attributes:
      name: lower-case letters, digits and hyphens, unique in its part.
      caption: one paragraph: what is drawn, how to read it, the paper, the number that matters.
      alternative: what the figure shows, for people who do not see it.
      draw: makes the drawing, with the helpers of `bertjax.analysis.drawing`.
    """

    name: str
    caption: str
    alternative: str
    draw: "Callable[[], MatplotlibFigure]"


@dataclasses.dataclass(frozen=True)
class Result:
    """What a part has computed.

    Attributes:
      numbers: plain JSON values, for `analysis.json`; {model: {material: ...}} where both matter.
      arrays: arrays by name, for `analysis.npz`; axes are named in the guide.
      figures: the figures, in the order of the page.
      text: one paragraph or more, divided by blank lines: what was measured, and the main result.
      tables: tables and rows of data that follow the figures (`bertjax.analysis.page.page`).
      maps: maps for the viewer of the page.
      files: {name: content} of further files in the folder of the report.
    """

    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    figures: Sequence[Figure] = ()
    text: str = ""
    tables: Sequence[Table | TokenRow] = ()
    maps: Sequence[Maps] = ()
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Return the text and the figures with their captions, which is what a notebook shows."""
        shown = [f"<p>{html.escape(paragraph)}</p>" for paragraph in self.text.split("\n\n") if paragraph]
        for figure in self.figures:
            svg = drawing.svg_of(figure.draw())
            element = inline(Drawing(figure.name, svg, figure.caption, figure.alternative))
            shown.append(f"<figure>{element}<figcaption>{html.escape(figure.caption)}</figcaption></figure>")
        return "".join(shown)


class Part:
    """One part of the analysis. It does nothing but compute: it neither prints nor writes.

    Attributes:
      name: its name in `--parts`.
      title: its heading on the page.
      named_only: whether it takes too long to run unless `--parts` names it.
      needs_attention: whether it reads attention, heads or feed-forward neurons, which an LSTM lacks.
      results: the results of the parts before it, by name; `run_parts` sets them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    named_only: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False
    results: Mapping[str, Result] = MappingProxyType({})

    def lacks(self, subject: Subject, materials: Sequence[Material]) -> str:
        """Return why a model cannot be analyzed, as `missing` does; attention is also checked."""
        if self.needs_attention and not subject.encoder.has_attention:
            return (
                f"has model.layer_type={subject.encoder.layer_type}, and this part reads attention; use --parts=layers"
            )
        return self.missing(subject, materials)

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        """Return what a model or the materials lack, as the end of `patterns: ...`; empty if nothing is missing."""
        return ""

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the result for models that lack nothing.

        Raises:
          UserError: a text does not suit a model.
        """
        raise TypeError(f"{type(self).__name__} has no run()")
