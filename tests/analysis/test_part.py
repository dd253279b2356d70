"""A result as a notebook shows it."""

from bertjax.analysis import drawing
from bertjax.analysis.part import Figure, Result


def test_a_notebook_shows_the_text_and_figures_of_a_result():
    lines = {"a": ([0, 1], [2.0, 3.0])}
    figure = Figure("one", "A < B in this curve.", "It rises.", drawing.curves(lines, "x", "y"))
    shown = Result({}, figures=[figure], text="First.\n\nSecond & last.")._repr_html_()
    assert shown.startswith("<p>First.</p><p>Second &amp; last.</p><figure><svg")
    assert 'aria-label="Curves of y by x. It rises."' in shown
    assert "<figcaption>A &lt; B in this curve. It rises.</figcaption>" in shown
