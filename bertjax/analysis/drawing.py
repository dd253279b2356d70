"""Plotting helpers in one style: layer-by-head matrices, curves and bars, as vector graphics.

Ink has one color, which the page's SVG replaces by `currentColor` on a transparent background. A figure is therefore
readable on light and on dark pages.
"""

import dataclasses
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertjax.analysis.page import caption
from bertjax.training.results.curves import take_literally

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

# Almost black, and used nowhere else: `svg_of` can replace it by `currentColor` without touching data.
INK = "#010203"
# After Okabe & Ito (2008): distinguishable with any color vision, on white and on black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b09500")
COLOR_MAP, DIVERGING = "viridis", "RdBu_r"
# Larger matrices become one embedded picture instead of a path per cell, or the page gets slow.
MOST_CELLS = 4096
# Width of a figure with several panels: its text can still be read when a narrow page shrinks it.
MOST_INCHES = 7.5
_STYLE = {
    # Text stays text: it can be searched and selected, and files stay small. Type 42 does the same for PDF.
    "svg.fonttype": "none",
    "svg.hashsalt": "bertjax",  # element ids do not change between runs
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "axes.titlesize": 9,
    "hatch.color": INK,
}


class Chart(NamedTuple):
    """What a figure looks like.

    Attributes:
      kind: the beginning of the alternative text, such as `Curves of accuracy by layer.`
      draw: draws it; called in the page's style.
    """

    kind: str
    draw: "Callable[[], MatplotlibFigure]"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page; an analysis also saves it as `figures/<part>-<name>.svg` and `.pdf`.

    Attributes:
      name: lower-case letters, digits and hyphens, unique within its part, or on the page without parts.
      about: what the figure shows, how to read it, and the paper.
      key: the key numbers, which end the caption and the alternative text; may be empty.
      chart: what it looks like.
    """

    name: str
    about: str
    key: str
    chart: Chart

    @property
    def caption(self) -> str:
        """One paragraph below the figure."""
        return f"{self.about} {self.key}".strip()

    @property
    def alternative(self) -> str:
        """The text for people who do not see the figure."""
        return f"{self.chart.kind} {self.key}".strip().replace("`", "")

    @functools.cached_property
    def drawn(self) -> "MatplotlibFigure":
        """The figure, drawn once."""
        with style():
            return self.chart.draw()

    @functools.cached_property
    def svg(self) -> str:
        """The figure with `currentColor` ink on a transparent background."""
        return svg_of(self.drawn)


def figure(caption_name: str, chart: Chart, number: int | str = "", **values: Any) -> Figure:
    """Return a chart with its caption.

    Args:
      caption_name: a name in `page_assets/captions.md`, such as `patterns/heads`; its end names the figure.
      chart: what it looks like.
      number: end of the figure's name, if a part has several such figures.
      values: what the caption names in braces.
    """
    name = caption_name.rpartition("/")[2]
    if shown := ", ".join(str(values[key]) for key in ("title", "model", "material") if key in values):
        chart = chart._replace(
            kind=f"{shown}: {chart.kind}"
        )  # else several figures of a part have one alternative text
    return Figure(f"{name}-{number}" if number else name, *caption(caption_name, **values), chart)


def style():
    """Return a context that gives all figures the page's style."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def panels(count: int, width: float, height: float = 2.2) -> "tuple[MatplotlibFigure, list]":
    """Return a figure and the axes of `count` panels; width and height are inches per panel."""
    from matplotlib.figure import Figure

    columns = min(count, max(1, int(MOST_INCHES // width)))
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def _label(axis, labels: Sequence, offset: float = 0.0) -> None:
    """Label the places 0, 1, ... of an axis, at most 12 of them: more do not fit."""
    places = range(0, len(labels), max(1, -(-len(labels) // 12)))
    axis.set_ticks([place + offset for place in places], [str(labels[place]) for place in places])
    axis.set_tick_params(length=0)


def matrices(
    values: Mapping[str, np.ndarray],
    unit: str,
    limits: tuple[float | None, float | None] = (None, None),
    columns: str = "head",
    first: int = 1,
    diverging: bool = False,
) -> Chart:
    """Return a chart of matrices side by side with one color scale.

    Args:
      values: {title: matrix}, such as [L, H].
      unit: color bar label, with the unit.
      limits: lowest and highest value of the scale; None for those of the matrices.
      columns: label of the horizontal axis; rows are layers.
      first: number of the first row and column.
      diverging: whether the scale is centered at 0.
    """

    def draw() -> "MatplotlibFigure":
        shapes = np.array([matrix.shape for matrix in values.values()])
        height, width = np.clip(0.22 * shapes.max(axis=0), 1.4, 6.0) + (0.7, 0.9)
        figure, axes = panels(len(values), width, height)
        finite = np.concatenate([matrix[np.isfinite(matrix)].ravel() for matrix in values.values()])
        ends = finite.min(initial=0.0), finite.max(initial=0.0)
        low, high = (float(end) if limit is None else limit for limit, end in zip(limits, ends))
        if diverging:
            high = max(abs(low), abs(high))
            low = -high
        for panel, (title, matrix) in zip(axes, values.items()):
            mesh = panel.pcolormesh(
                np.ma.masked_invalid(matrix),
                cmap=DIVERGING if diverging else COLOR_MAP,
                vmin=low,
                vmax=high,
                rasterized=matrix.size > MOST_CELLS,
            )
            # The first layer on top, as in a printed matrix.
            panel.invert_yaxis()
            panel.set(title=title, xlabel=columns, ylabel="layer")
            for axis, count in zip((panel.yaxis, panel.xaxis), matrix.shape):
                _label(axis, range(first, first + count), 0.5)
        figure.colorbar(mesh, ax=axes, label=unit, shrink=0.9).outline.set_visible(False)
        return figure

    return Chart(f"Matrices of layers by {columns}s: {unit}.", draw)


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    scale: str = "linear",
    markers: bool = True,
) -> Chart:
    """Return a chart of curves in one panel.

    Args:
      lines: {name: (x values, y values)}.
      x, y: axis labels, with units.
      bands: {name: (lower, upper)}, intervals around the curve of the same name.
      scale: `linear`; `steps` for an x axis that is logarithmic from 1 on, with 0 included; `log` for both axes.
      markers: whether points are marked.
    """

    def draw() -> "MatplotlibFigure":
        figure, (panel,) = panels(1, 6.0, 3.4)
        for index, (title, (xs, ys)) in enumerate(lines.items()):
            color, shape = COLORS[index % len(COLORS)], "osD^vPX*"[index % 8] if markers else None
            # Styles change after each round of colors, so more than eight curves stay distinguishable.
            line_style = ("-", "--", ":")[index // len(COLORS) % 3]
            panel.plot(xs, ys, color=color, marker=shape, markersize=4, linestyle=line_style, label=title)
            if bands and title in bands:
                panel.fill_between(xs, *bands[title], color=color, alpha=0.2, linewidth=0)
        panel.set(xlabel=x, ylabel=y)
        if scale == "log":
            panel.set(xscale="log", yscale="log")
        elif scale == "steps":
            # A logarithmic axis has no 0, but step 0 is the untrained model. `symlog` is linear up to 1.
            panel.set_xscale("symlog", linthresh=1)
        else:
            # No ticks between layers, and no `1e-7+1` beside an axis.
            panel.xaxis.get_major_locator().set_params(integer=x.startswith("layer"))
            panel.ticklabel_format(useOffset=False)
        panel.grid(alpha=0.25, color=INK)
        if len(lines) > 1:
            figure.legend(loc="outside right upper")
        return figure

    return Chart(f"Curves of {y} by {x}.", draw)


def bars(values: Mapping[str, Mapping[str, Mapping[Any, float]]], y: str, x: str = "", stacked: bool = False) -> Chart:
    """Return a chart of bars, grouped or stacked, one panel per title.

    Args:
      values: {title: {series: {place on the x axis: value}}}.
      y, x: axis labels.
      stacked: whether the series of a place are on top of each other.
    """

    def draw() -> "MatplotlibFigure":
        series = next(iter(values.values()))
        places = list(dict.fromkeys(place for each in values.values() for row in each.values() for place in row))
        wide = 2.8 if stacked else max(4.0, 0.5 * len(places) * len(series))
        figure, axes = panels(len(values), wide, 2.4 if stacked else 3.0)
        width = 0.8 if stacked else 0.8 / len(series)
        for panel, (title, rows) in zip(axes, values.items()):
            base = np.zeros(len(places))
            for index, (label, row) in enumerate(rows.items()):
                heights = np.array([row.get(place, np.nan) for place in places])
                shift = 0.0 if stacked else (index - (len(rows) - 1) / 2) * width
                look = {"color": COLORS[index % len(COLORS)], "hatch": ("", "//", "..", "xx", "")[index % 5]}
                panel.bar(np.arange(len(places)) + shift, heights, width, bottom=base, linewidth=0, label=label, **look)
                base = base + heights if stacked else base
            _label(panel.xaxis, places)
            panel.set(title=title, xlabel=x, ylabel=y)
        if len(series) > 1:
            handles, columns = axes[0].get_legend_handles_labels(), min(len(series), 2 * len(values) if stacked else 3)
            figure.legend(*handles, loc="outside lower center", ncols=columns, columnspacing=0.8, handlelength=1.0)
        return figure

    return Chart(f"{'Stacked bars' if stacked else 'Bars'} of {y}.", draw)


def svg_of(figure: "MatplotlibFigure") -> str:
    """Return a figure as SVG without XML header, its ink `currentColor`. Equal figures give equal text."""
    text = _saved(figure, "svg", "Date", "Creator", "Format", "Type").decode()
    return text[text.index("<svg") :].replace(INK, "currentColor").strip()


def pdf_of(figure: "MatplotlibFigure") -> bytes:
    """Return a figure as PDF, black on white."""
    return _saved(figure, "pdf", "CreationDate", "Creator", facecolor="white")


def _saved(figure: "MatplotlibFigure", format: str, *unset: str, **options) -> bytes:
    """Return a figure as a file; without the metadata `unset`, which change between runs."""
    take_literally(figure)
    with style():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, metadata=dict.fromkeys(unset), **options)
    return buffer.getvalue()
