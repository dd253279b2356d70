"""Renders `page(title, sections)` as one self-contained HTML file from plain data; the template has no logic."""

import base64
import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from bertjax.runtime.errors import printable

_ASSETS = Path(__file__).parent / "page_assets"
# Points per inch of matplotlib's SVG, pixels per inch of CSS.
_PIXELS_PER_POINT = 96 / 72
# A number with its commas: such a cell must not wrap.
_NUMBER = re.compile(r"[-+]?\d[\d.,]*%?")
_REFERENCE = re.compile(r"#([^\s()\"';]+)")
# A rule that matplotlib writes into every figure. Inline SVG would apply it to the whole page, whose style has it once.
_MATPLOTLIB_STYLE = "*{stroke-linejoin: round; stroke-linecap: butt}"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table on the page.

    Attributes:
      caption: one paragraph above the table.
      headings: one per column.
      rows: cell texts; the first cell is the row's heading.
      marked: (row, column) of bold cells, such as right guesses.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[tuple[int, int]] = frozenset()


@dataclasses.dataclass(frozen=True)
class Token:
    """A token in a row of data.

    Attributes:
      text: the token that the model reads.
      segment: segment number, from 0.
      original: the token before masking; empty if the token is not predicted.
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
    """One sentence's attention maps for the viewer, where readers choose model, kind, sentence, layer and head.

    Attributes:
      model: model label.
      sentence: the text, as listed in the viewer.
      tokens: one text per row and column.
      weights_LHTT: weights between 0 and 1; a map's row belongs to the token that attends. H may be 1.
      kind: meaning of the weights, such as `attention` or `rollout`.
    """

    model: str
    sentence: str
    tokens: tuple[str, ...]
    weights_LHTT: np.ndarray
    kind: str = "attention"


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
      name: anchor, made from letters, digits and hyphens.
      title: heading.
      paragraphs: texts below the heading.
      blocks: figures (`bertjax.analysis.drawing`), tables and data rows, in order.
      maps: maps for the section's viewer; without maps there is no viewer.
      skipped: why the section is empty, if it is.
      failed: the part's error, if it failed.
    """

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    blocks: tuple[Any, ...] = ()
    maps: tuple[Maps, ...] = ()
    skipped: str = ""
    failed: str = ""


def page(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """Return a page as HTML.

    Args:
      title: heading and page title.
      sections: sections, in the order of the table of contents.
      lead: one paragraph below the heading.
    """
    return _template().render(title=title, sections=sections, lead=lead)


def caption(name: str, **values: Any) -> tuple[str, str]:
    """Return two paragraphs of `page_assets/captions.md`, with values in their places; the second may be empty.

    Args:
      name: a heading of the file.
      values: values by the names that the paragraphs have in braces.
    """
    about, key = (" ".join(text.format(**values).split()) for text in (*_captions()[name], "")[:2])
    return about, key


def table(caption_name: str, headings: Sequence[str], rows: Iterable[Sequence[str]], **values: Any) -> Table:
    """Return a table with its caption, see `caption`."""
    return Table(" ".join(filter(None, caption(caption_name, **values))), tuple(headings), tuple(map(tuple, rows)))


@functools.cache
def _captions() -> dict[str, list[str]]:
    """Return {heading: paragraphs}."""
    _, *entries = (_ASSETS / "captions.md").read_text(encoding="utf-8").split("\n## ")
    named = (entry.partition("\n") for entry in entries)
    return {name: texts.strip().split("\n\n") for name, _, texts in named}


@functools.cache
def _template():
    # Imported on first use: only pages need it.
    import jinja2

    environment = jinja2.Environment(
        # Texts come from users and data sets, so everything is escaped unless it is marked as safe.
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # What documents and settings of others hold reaches the page without control characters.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"inline": inline, "data_of": data_of, "prose": prose}
    environment.tests["numeric"] = lambda cell: _NUMBER.fullmatch(cell) is not None
    environment.tests["table"] = lambda block: isinstance(block, Table)
    return environment.get_template("template.html.j2")


def prose(text: str) -> str:
    """Return a text as HTML, with text between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def inline(figure: Any) -> str:
    """Return the SVG of a figure as an HTML-safe element.

    Ids get the figure's name as prefix, because ids must be unique on a page. Unreferenced ids, metadata and XML
    namespaces are dropped. The element is as wide as the figure or the page, whichever is smaller.
    """
    from markupsafe import Markup

    root = ElementTree.fromstring(figure.svg)
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
                element.attrib[name] = f"{figure.name}-{value}"
            elif "#" in value:
                # References to other things, such as colors, stay unchanged.
                renamed = lambda match: f"#{figure.name}-{match[1]}" if match[1] in used else match[0]  # noqa: E731
                element.attrib[name] = _REFERENCE.sub(renamed, value)
    width = root.attrib.pop("width", "")
    root.attrib.pop("height", None)
    pixels = float(width.removesuffix("pt")) * _PIXELS_PER_POINT if width.endswith("pt") else 0
    root.attrib |= {"role": "img", "aria-label": printable(figure.alternative)}
    if pixels:
        root.attrib["style"] = f"max-width:{pixels:.0f}px"
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    """Return a name without its XML namespace."""
    return name.rpartition("}")[2]


def data_of(maps: Sequence[Maps]) -> str:
    """Return maps as JSON for `viewer.js`, safe within a script element.

    A weight w is stored as the byte 255 sqrt(w), rounded: the error is below 0.004 at 1 and below 0.0004 at 0.01. The
    bytes [L, H, T, T] are compressed (zlib) and encoded in base64.
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
            "bytes": base64.b64encode(zlib.compress(bytes_LHTT.tobytes(), 9)).decode(),
        }
        for each in maps
        for bytes_LHTT in [np.rint(np.sqrt(np.clip(each.weights_LHTT, 0.0, 1.0)) * 255).astype(np.uint8)]
    ]
    # A sentence may contain `</script>`. U+2028 and U+2029 ended a line in JavaScript strings before ES2019.
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
