"""Plotting helpers in one style: layer-by-head matrices, curves and bars, as vector graphics.

Ink has one color, which the page's SVG replaces by `currentColor` on a transparent background. A figure is therefore
readable on light and on dark pages.
"""

import dataclasses
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

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


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page; an analysis also saves it as `figures/<part>-<name>.svg` and `.pdf`.

    Attributes:
      name: lower-case letters, digits and hyphens, unique within its part, or on the page without parts.
      caption: one paragraph: content, how to read it, the paper, the key number.
      alternative: alternative text for people who do not see the figure.
      draw: draws it.
    """

    name: str
    caption: str
    alternative: str
    draw: "Callable[[], MatplotlibFigure]"

    @functools.cached_property
    def drawn(self) -> "MatplotlibFigure":
        """The figure, drawn once."""
        return self.draw()

    @functools.cached_property
    def svg(self) -> str:
        """The figure with `currentColor` ink on a transparent background."""
        return svg_of(self.drawn)


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


def matrices(
    values: Mapping[str, np.ndarray],
    unit: str,
    low: float | None = None,
    high: float | None = None,
    columns: str = "head",
    first: int = 1,
    diverging: bool = False,
) -> "MatplotlibFigure":
    """Draw matrices side by side with one color scale.

    Args:
      values: {title: matrix}, such as [L, H].
      unit: color bar label, with the unit.
      low, high: scale limits; the smallest and the largest value by default.
      columns: label of the horizontal axis; rows are layers.
      first: number of the first row and column.
      diverging: whether the scale is centered at 0.
    """
    with style():
        shapes = np.array([matrix.shape for matrix in values.values()])
        height = np.clip(0.22 * shapes[:, 0].max(), 1.4, 6.0) + 0.7
        width = np.clip(0.22 * shapes[:, 1].max(), 1.4, 6.0) + 0.9
        figure, axes = panels(len(values), width, height)
        finite = np.concatenate([matrix[np.isfinite(matrix)].ravel() for matrix in values.values()])
        low = float(finite.min(initial=0.0)) if low is None else low
        high = float(finite.max(initial=0.0)) if high is None else high
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
                # At most 12 tick labels fit.
                step = max(1, -(-count // 12))
                axis.set_ticks(np.arange(0, count, step) + 0.5, [str(first + i) for i in range(0, count, step)])
                axis.set_tick_params(length=0)
        bar = figure.colorbar(mesh, ax=axes, label=unit, shrink=0.9)
        bar.outline.set_visible(False)
        return figure


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    log_x: bool = False,
    markers: bool = True,
) -> "MatplotlibFigure":
    """Draw curves in one panel.

    Args:
      lines: {name: (x values, y values)}.
      x, y: axis labels, with units.
      bands: {name: (lower, upper)}, intervals around the curve of the same name.
      log_x: whether the x axis is logarithmic from 1 on, with 0 included.
      markers: whether points are marked.
    """
    with style():
        figure, (panel,) = panels(1, 6.0, 3.4)
        for index, (name, (xs, ys)) in enumerate(lines.items()):
            color, shape = COLORS[index % len(COLORS)], "osD^vPX*"[index % 8] if markers else None
            # Styles change after each round of colors, so more than eight curves stay distinguishable.
            line_style = ("-", "--", ":")[index // len(COLORS) % 3]
            panel.plot(xs, ys, color=color, marker=shape, markersize=4, linestyle=line_style, label=name)
            if bands and name in bands:
                panel.fill_between(xs, *bands[name], color=color, alpha=0.2, linewidth=0)
        if log_x:
            # A logarithmic axis has no 0, but step 0 is the untrained model. `symlog` is linear up to 1.
            panel.set_xscale("symlog", linthresh=1)
        panel.set(xlabel=x, ylabel=y)
        if not log_x:
            # No ticks between layers, and no `1e-7+1` beside an axis.
            panel.xaxis.get_major_locator().set_params(integer=x == "layer")
            panel.ticklabel_format(useOffset=False)
        panel.grid(alpha=0.25, color=INK)
        if len(lines) > 1:
            figure.legend(loc="outside right upper")
        return figure


def stacked_bars(values: Mapping[str, Mapping[str, np.ndarray]], y: str) -> "MatplotlibFigure":
    """Draw stacked bars, one for each layer, one panel per title.

    Args:
      values: {title: {segment name: its size in each layer}}.
      y: label of the vertical axis.
    """
    with style():
        figure, axes = panels(len(values), 2.8, 2.4)
        for panel, (title, parts) in zip(axes, values.items()):
            base = 0.0
            for index, (name, sizes) in enumerate(parts.items()):
                places = np.arange(1, 1 + len(sizes))
                hatch = ("", "//", "..", "xx", "")[index % 5]
                color = COLORS[index % len(COLORS)]
                panel.bar(places, sizes, bottom=base, color=color, hatch=hatch, linewidth=0, label=name)
                base = base + np.asarray(sizes)
            panel.set(title=title, xlabel="layer", ylabel=y)
            panel.xaxis.get_major_locator().set_params(integer=True)
        handles, labels = axes[0].get_legend_handles_labels()
        columns = min(len(labels), 2 * len(values))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=0.8, handlelength=1.0)
        return figure


def bars(values: Mapping[str, Mapping[str, float]], y: str) -> "MatplotlibFigure":
    """Draw grouped bars: {series: {group: value}}."""
    with style():
        groups = list(dict.fromkeys(group for series in values.values() for group in series))
        figure, (panel,) = panels(1, max(4.0, 0.5 * len(groups) * len(values)), 3.0)
        width = 0.8 / len(values)
        for index, (name, series) in enumerate(values.items()):
            places = np.arange(len(groups)) + (index - (len(values) - 1) / 2) * width
            heights = [series.get(group, np.nan) for group in groups]
            panel.bar(places, heights, width, color=COLORS[index % len(COLORS)], label=name)
        panel.set_xticks(np.arange(len(groups)), groups)
        panel.set_ylabel(y)
        if len(values) > 1:
            figure.legend(loc="outside right upper")
        return figure


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
