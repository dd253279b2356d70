"""The figures of the pages: drawn from the code and from committed results, shown with a text alternative."""

import re
import xml.etree.ElementTree as ET

import pytest

from docs.diagrams import DOCS, FIGURES, figures, path_of
from docs.diagrams.canvas import WIDTH, Canvas


@pytest.fixture(scope="module")
def drawn() -> dict[str, Canvas]:
    return figures()


def test_every_concept_page_has_a_figure():
    pages = {f"concepts/{page.stem}" for page in (DOCS / "concepts").glob("*.md")}
    assert pages == {page for page in FIGURES if page.startswith("concepts/")}


@pytest.mark.parametrize("page", FIGURES)
def test_the_file_is_what_the_code_draws(page, drawn):
    assert path_of(page).read_text() == drawn[page].svg(), "run python -m docs.diagrams"


@pytest.mark.parametrize("page", FIGURES)
def test_the_page_says_in_words_what_the_figure_shows(page, drawn):
    path = path_of(page)
    shown = re.findall(rf"!\[((?:(?!\n\n).)+?)\]\({path.name}\)", path.with_suffix(".md").read_text(), re.DOTALL)
    assert [" ".join(alternative.split()) for alternative in shown] == [drawn[page].title]


@pytest.mark.parametrize("page", FIGURES)
def test_everything_is_inside_of_the_figure(page, drawn):
    figure = ET.fromstring(drawn[page].svg())
    rectangles = figure.findall(".//{*}rect")
    assert len(rectangles) + len(figure.findall(".//{*}circle")) > 5
    for each in rectangles:
        x, y, width, height = (float(each.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= WIDTH and 0 <= y <= y + height <= drawn[page].height
    for each in figure.findall(".//{*}text"):
        # Monospaced characters are 0.6 of their size wide, others about half of theirs on average.
        width = len(each.text) * (7.6 if each.get("class") == "code" else 6.4)
        start = float(each.get("x")) - {"middle": width / 2, "end": width}.get(each.get("text-anchor"), 0)
        assert 0 <= start <= start + width <= WIDTH, each.text
