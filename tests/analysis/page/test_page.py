"""The page: one file without a request, of a known size, whose ids, texts and maps are right."""

import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

from bertjax.analysis.page import Drawing, Maps, Section, Table, Token, TokenRow, page


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


def svg(title: str = "loss") -> str:
    """A drawing of matplotlib with clipped curves and an image."""
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots(1, 2)
    axes[0].plot([0, 1, 2], [3, 2, 1], color="#1f77b4", marker="o")
    axes[1].imshow(np.eye(3))
    axes[0].set_title(title)
    content = io.StringIO()
    figure.savefig(content, format="svg")
    return content.getvalue()


def maps(tokens, layers: int = 2, heads: int = 3, model: str = "tiny", seed: int = 0, **options) -> Maps:
    weights_LHTT = np.random.default_rng(seed).random((layers, heads, len(tokens), len(tokens)))
    return Maps(model, " ".join(tokens), tuple(tokens), weights_LHTT, **options)


def full_page(**options) -> str:
    drawings = [Drawing(name, svg(), "What is drawn <&>.", "A loss falls.") for name in ("loss", "accuracy")]
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


def test_ids_are_unique_and_references_lead_to_them():
    html = full_page()
    elements = Elements(html)
    ids = elements.attributes("id")
    assert len(ids) == len(set(ids))
    used = {target[1:] for target in elements.attributes("href") if target.startswith("#")}
    used |= set(re.findall(r"url\(#([^)]*)\)", html)) | set(elements.attributes("aria-labelledby"))
    assert any(name.startswith("loss-") for name in used) and any(name.startswith("accuracy-") for name in used)
    assert used <= set(ids)
    assert "#1f77b4" in html, "a color is not an id"


def test_texts_are_not_markup():
    html = full_page(lead="<i>lead</i>")
    assert "<b>" not in html and "<i>" not in html
    elements = Elements(html)
    assert elements.texts["h1"] == ["run <tiny>"]
    assert elements.texts["figcaption"] == ["What is drawn <&>."] * 2
    assert data(html)[0]["tokens"] == ["대법원", "</script><b>"]


def test_the_contents_list_every_section_and_what_was_skipped():
    html = full_page()
    elements = Elements(html)
    anchors = [each["href"] for tag, each in elements.elements if tag == "a" and "class" not in each]
    assert anchors == ["#training", "#sentences", "#layers"]
    assert "the model has no masked-LM head" in html
    assert html.count('class="viewer"') == 1


def test_every_drawing_has_an_alternative():
    elements = Elements(full_page())
    drawings = [each for tag, each in elements.elements if tag == "svg"]
    assert [each["aria-label"] for each in drawings] == ["A loss falls."] * 2
    assert all(each["role"] == "img" and "xmlns" not in each for each in drawings)
    assert drawings[0]["style"] == "max-width:384px"  # four inches


@pytest.mark.parametrize("sentences, most", [(6, 5_000_000), (20, 16_000_000)])
def test_size_of_maps(sentences, most):
    """12 layers, 12 heads and 64 tokens. Random bytes are the worst case: nothing compresses them."""
    tokens = [f"토큰{index}" for index in range(64)]
    shown = tuple(maps(tokens, 12, 12, seed=seed) for seed in range(sentences))
    drawings = tuple(Drawing(f"figure-{index}", svg(), "caption", "alternative") for index in range(5))
    html = page("base", [Section("sentences", "Sentences", blocks=drawings, maps=shown)])
    assert len(html.encode()) <= most


def test_real_attention_compresses():
    """Most weights of a head are near 0."""
    weights = np.random.default_rng(0).dirichlet(np.full(64, 0.02), size=(12, 12, 64))
    html = page("base", [Section("sentences", "Sentences", maps=(Maps("m", "s", ("t",) * 64, weights),))])
    assert len(html) < 12 * 12 * 64 * 64 / 2


@pytest.mark.parametrize("weights", [np.full((1, 1, 2, 2), 1.5), np.full((1, 1, 2, 2), np.nan), np.zeros((1, 2, 2))])
def test_maps_that_are_not_weights(weights):
    with pytest.raises(ValueError):
        Maps("m", "s", ("a", "b"), weights)
