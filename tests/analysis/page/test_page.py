"""The page: one file without a request, of a known size, whose ids, texts and maps are right."""

import json
import re
from html.parser import HTMLParser

import numpy as np
from matplotlib import figure as matplotlib

from bertjax.analysis import drawing
from bertjax.analysis.drawing import Chart, Figure
from bertjax.analysis.page import Maps, Section, Table, Token, TokenRow, page
from bertjax.analysis.part import Result


class Elements(HTMLParser):
    """The elements of a page: (tag, attributes), and the text within each tag."""

    def __init__(self, html: str):
        super().__init__()
        self.elements, self.texts, self._open = [], {}, []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


def drawn() -> matplotlib.Figure:
    """A drawing of matplotlib with clipped curves and an image."""
    figure = matplotlib.Figure(figsize=(4, 3))
    axes = figure.subplots(1, 2)
    axes[0].plot([0, 1, 2], [3, 2, 1], color="#1f77b4", marker="o")
    axes[1].imshow(np.eye(3))
    axes[0].set_title("loss")
    return figure


def maps(tokens, layers: int = 2, heads: int = 3, model: str = "tiny", seed: int = 0, **options) -> Maps:
    weights_LHTT = np.random.default_rng(seed).random((layers, heads, len(tokens), len(tokens)))
    return Maps(model, " ".join(tokens), tuple(tokens), weights_LHTT, **options)


def full_page(**options) -> str:
    drawings = [Figure(name, "What is drawn <&>.", "", Chart("A loss falls.", drawn)) for name in ("loss", "accuracy")]
    table = Table("Settings.", ("setting", "value"), (("seed", "1"), ("path", "<b>")), frozenset({(0, 1)}))
    row = TokenRow("row 0", (Token("[CLS]"), Token("[MASK]", 0, "왕"), Token("king", 1)))
    sections = (
        Section("training", "Training", ("A paragraph.",), (*drawings, table, row)),
        Section("sentences", "Sentences", maps=(maps(["대법원", "</script><b>"]),)),
        Section("layers", "What layers know", skipped="the model has no masked-LM head"),
    )
    return page("run <tiny>", sections, **options)


def data(html: str) -> list[dict]:
    """The maps of a page."""
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)[1])


def test_nothing_is_requested():
    html = full_page()
    assert "http:" not in html and "https:" not in html
    elements = Elements(html)
    assert {tag for tag, _ in elements.elements} & {
        "iframe",
        "object",
        "embed",
        "audio",
        "video",
        "base",
        "img",
    } == set()
    assert elements.attributes("src") == []
    targets = [*elements.attributes("href"), *elements.attributes("xlink:href")]
    assert all(target.startswith(("#", "data:")) for target in targets)
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)]*)", html))
    assert "@import" not in html
    [policy] = [each["content"] for _, each in elements.elements if "http-equiv" in each]
    assert "default-src 'none'" in policy


def test_a_notebook_shows_the_text_and_figures_of_a_result():
    lines = {"a": ([0, 1], [2.0, 3.0])}
    figure = Figure("one", "A < B in this curve.", "It rises.", drawing.curves(lines, "x", "y"))
    shown = Result({}, figures=[figure], text="First.\n\nSecond & last.")._repr_html_()
    assert shown.startswith("<p>First.</p><p>Second &amp; last.</p><figure><svg")
    assert 'aria-label="Curves of y by x. It rises."' in shown
    assert "<figcaption>A &lt; B in this curve. It rises.</figcaption>" in shown
