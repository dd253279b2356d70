"""`page(title, sections)`: one self-contained HTML file. What is on it is plain data; the template has no logic."""

import base64
import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

_HERE = Path(__file__).parent
# Points per inch of matplotlib's SVG, pixels per inch of CSS.
_PIXELS_PER_POINT = 96 / 72
# A cell that does not break at its commas.
_NUMBER = re.compile(r"[-+]?\d[\d.,]*%?")
_REFERENCE = re.compile(r"#([^\s()\"';]+)")
# A rule that matplotlib writes into every figure. Inline it would apply to the whole page, whose style has it once.
_MATPLOTLIB_STYLE = "*{stroke-linejoin: round; stroke-linecap: butt}"


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure on the page.

    Attributes:
      name: letters, digits and hyphens; no two figures of a page share one.
      svg: the drawing, with ink of `currentColor` on a transparent background.
      caption: one paragraph: what is drawn, how to read it, the paper, the number that matters.
      alternative: text for readers who do not see the drawing.
    """

    name: str
    svg: str
    caption: str
    alternative: str


@dataclasses.dataclass(frozen=True)
class Table:
    """A table on the page.

    Attributes:
      caption: one paragraph above the table.
      headings: one text for each column.
      rows: cells, as texts; the first cell of a row is its heading.
      marked: (row, column) of the cells that are printed bold, such as right guesses.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[tuple[int, int]] = frozenset()


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of a row of data.

    Attributes:
      text: what the model reads.
      segment: number of its segment, from 0.
      original: what was there before masking; empty for a token that is not predicted.
    """

    text: str
    segment: int = 0
    original: str = ""


@dataclasses.dataclass(frozen=True)
class TokenRow:
    """A row of data, token by token.

    Attributes:
      caption: one paragraph above the tokens.
      tokens: the tokens in order.
    """

    caption: str
    tokens: tuple[Token, ...]


@dataclasses.dataclass(frozen=True)
class Maps:
    """The maps of one sentence, for the viewer. Every map is chosen by model, kind, sentence, layer and head.

    Attributes:
      model: label of the model.
      sentence: the text, as the list of sentences shows it.
      tokens: one text for each row and column of a map.
      weights_LHTT: weights between 0 and 1, the row of a map for the token that attends. H may be 1.
      kind: what the weights are, such as `attention` or `rollout`.
    """

    model: str
    sentence: str
    tokens: tuple[str, ...]
    weights_LHTT: np.ndarray
    kind: str = "attention"

    def __post_init__(self):
        length = len(self.tokens)
        if self.weights_LHTT.ndim != 4 or self.weights_LHTT.shape[2:] != (length, length):
            raise ValueError(f"maps of {length} tokens have the shape {self.weights_LHTT.shape}")
        if not (np.min(self.weights_LHTT) >= 0 and np.max(self.weights_LHTT) <= 1 + 1e-3):
            raise ValueError(f"a map of {self.sentence!r} has a weight that is not between 0 and 1")


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
      name: anchor of the section: letters, digits and hyphens.
      title: its heading.
      paragraphs: texts below the heading.
      blocks: figures, tables and rows of data, in order.
      maps: what its viewer shows; without any there is no viewer.
      skipped: why there is nothing else in the section; empty if there is.
      failed: the error with which its part ended; empty if it did not.
    """

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    blocks: tuple[Drawing | Table | TokenRow, ...] = ()
    maps: tuple[Maps, ...] = ()
    skipped: str = ""
    failed: str = ""


def page(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """Return the HTML of a page.

    Args:
      title: heading and title of the page.
      sections: its sections, which the table of contents lists in this order.
      lead: one paragraph below the heading.
    """
    return _template().render(title=title, sections=sections, lead=lead)


@functools.cache
def _template():
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"inline": inline, "data_of": data_of, "prose": prose}
    environment.tests["drawing"] = lambda block: isinstance(block, Drawing)
    environment.tests["numeric"] = lambda cell: _NUMBER.fullmatch(cell) is not None
    environment.tests["table"] = lambda block: isinstance(block, Table)
    return environment.get_template("template.html.j2")


def prose(text: str) -> str:
    """Return a text as HTML, with what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


def inline(drawing: Drawing) -> str:
    """Return the SVG of a drawing as an element of the page, safe for HTML.

    Ids start with the name of the drawing, because a page has one name space for all of them. Ids that nothing refers
    to, metadata and name spaces are left out. The width is that of the drawing or of the page, whichever is less.
    """
    from markupsafe import Markup

    root = ElementTree.fromstring(drawing.svg)
    for parent in root.iter():
        parent.tag = _local(parent.tag)
        parent.attrib = {_local(name): value for name, value in parent.attrib.items()}
        for child in list(parent):
            is_style = _local(child.tag) == "style" and (child.text or "").strip() == _MATPLOTLIB_STYLE
            if is_style or _local(child.tag) in ("metadata", "title"):
                parent.remove(child)
    elements = list(root.iter())
    ids = {element.attrib["id"] for element in elements if "id" in element.attrib}
    used = {name for element in elements for value in element.attrib.values() for name in _REFERENCE.findall(value)}
    used &= ids  # a color such as #1f77b4 is not an id
    for element in elements:
        if element.attrib.get("id") not in used:
            element.attrib.pop("id", None)
        for name, value in element.attrib.items():
            if name == "id":
                element.attrib[name] = f"{drawing.name}-{value}"
            elif "#" in value:
                element.attrib[name] = _REFERENCE.sub(lambda match: _renamed(match, drawing.name, used), value)
    width = root.attrib.pop("width", "")
    root.attrib.pop("height", None)
    pixels = float(width.removesuffix("pt")) * _PIXELS_PER_POINT if width.endswith("pt") else 0
    root.attrib |= {"role": "img", "aria-label": drawing.alternative}
    if pixels:
        root.attrib["style"] = f"max-width:{pixels:.0f}px"
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    """Return a name without its name space."""
    return name.rpartition("}")[2]


def _renamed(match: re.Match, prefix: str, ids: set[str]) -> str:
    """Return a reference to an id with the prefix; what is not one of the ids, such as a color, stays as it is."""
    return f"#{prefix}-{match[1]}" if match[1] in ids else match[0]


def data_of(maps: Sequence[Maps]) -> str:
    """Return maps as JSON that `viewer.js` reads, safe within a script element.

    A weight w becomes the byte 255 sqrt(w), rounded: the error is below 0.004 at 1, below 0.0004 at 0.01. The bytes
    [L, H, T, T] are compressed (zlib) and written in base64.
    """
    from markupsafe import Markup

    entries = [
        {
            "model": each.model,
            "kind": each.kind,
            "sentence": each.sentence,
            "tokens": each.tokens,
            "layers": each.weights_LHTT.shape[0],
            "heads": each.weights_LHTT.shape[1],
            "bytes": _encoded(each.weights_LHTT),
        }
        for each in maps
    ]
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _encoded(weights_LHTT: np.ndarray) -> str:
    bytes_LHTT = np.rint(np.sqrt(np.clip(weights_LHTT, 0.0, 1.0)) * 255).astype(np.uint8)
    return base64.b64encode(zlib.compress(bytes_LHTT.tobytes(), 9)).decode()
