"""Figures show all that is drawn."""

import numpy as np
import pytest

from bertjax.analysis import drawing
from bertjax.analysis.parts.patterns import CLASSES


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_a_legend_of_stacked_bars_is_not_cut(panels):
    shares = dict.fromkeys(CLASSES, np.full(4, 0.2))
    figure = drawing.stacked_bars({f"model {number}": shares for number in range(panels)}, "share of maps")
    figure.draw_without_rendering()
    [legend] = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
