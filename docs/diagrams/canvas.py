"""Small SVG figures in one style: shared colors and fonts, light and dark, wide enough for a phone."""

from html import escape

# At 390 pixels a page shows 440 units as about 350 pixels, so the smallest text, 12.5 units, has 10 of them.
WIDTH, SHOWN_WIDTH = 440, 560
# {class: (fill, stroke)} in light and dark. Each figure has a background of its own: a page whose theme differs from
# that of the browser still shows dark text on a light card, or light text on a dark one.
_LIGHT = {
    "page": ("#ffffff", "#d5dbe2"),
    "blue": ("#dbe7fb", "#4169b0"),
    "orange": ("#fce4bf", "#b9822b"),
    "green": ("#d3efdc", "#2f8a55"),
    "red": ("#fbd9d5", "#b8453a"),
    "gray": ("#eef1f4", "#9aa5b1"),
}
_DARK = {
    "page": ("#1a212b", "#3a4553"),
    "blue": ("#26406b", "#7ea6ea"),
    "orange": ("#553f1a", "#e0ad5c"),
    "green": ("#1f4a33", "#6cc592"),
    "red": ("#5c2a22", "#ee8d80"),
    "gray": ("#2b3440", "#6f7c8a"),
}
_INK, _SOFT, _LINE = ("#1d2733", "#e8edf3"), ("#4d5a68", "#b3bdc9"), ("#6b7a8a", "#8d9aa9")


def _colors(palette: dict[str, tuple[str, str]], dark: bool) -> str:
    boxes = " ".join(f".{name} {{ fill: {fill}; stroke: {stroke}; }}" for name, (fill, stroke) in palette.items())
    full = " ".join(f".{name}-full {{ fill: {stroke}; }}" for name, (_, stroke) in palette.items() if name != "page")
    lines = " ".join(f".{name}-line {{ stroke: {stroke}; }}" for name, (_, stroke) in palette.items() if name != "page")
    return (
        f"{boxes} {full} text {{ fill: {_INK[dark]}; }} .soft {{ fill: {_SOFT[dark]}; }} "
        f".line, .outline {{ fill: none; stroke: {_LINE[dark]}; }} .tip {{ fill: {_LINE[dark]}; }} "
        f".held {{ fill: {_SOFT[dark]}; }} .grid {{ stroke: {palette['page'][1]}; }} "
        f"{lines}"
    )


STYLE = (
    "rect, circle, path { stroke-width: 1.3; } .dashed { stroke-dasharray: 5 4; } "
    ".thick { stroke-width: 2; } .cut { stroke-width: 3; } "
    "text { font: 13.5px Helvetica, Arial, sans-serif; } text.head { font-size: 15px; font-weight: bold; } "
    "text.soft { font-size: 12.5px; } text.code { font: 12.5px Menlo, Consolas, monospace; } "
    f"{_colors(_LIGHT, False)} @media (prefers-color-scheme: dark) {{ {_colors(_DARK, True)} }}"
)


class Canvas:
    """A figure, `WIDTH` units wide. Coordinates grow to the right and down.

    Args:
      title: the text alternative, also the alternative text of the image in its page.
      height: in units.
    """

    def __init__(self, title: str, height: int):
        self.title, self.height = title, height
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """Write a line of text whose baseline is at `y`."""
        self._parts.append(
            f'<text x="{x:.5g}" y="{y:.5g}"{_style(style)}{_anchor(anchor)}>{escape(text, False)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, style: str, text: str = "", text_style: str = ""
    ) -> None:
        """Draw a rectangle with a line of text in its middle."""
        rounded = min(4, height / 5)
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rounded:g}"{_style(style)}/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4.5, text, text_style, "middle")

    def line(self, *points: tuple[float, float], arrow: bool = False, style: str = "") -> None:
        """Draw a line through points, with a tip at its end if it is an arrow."""
        path = " L".join(f"{x:.5g} {y:.5g}" for x, y in points)
        marker = ' marker-end="url(#tip)"' if arrow else ""
        self._parts.append(f'<path d="M{path}"{_style(f"line {style}".strip())}{marker}/>')

    def dot(self, x: float, y: float, style: str) -> None:
        """Draw a small circle."""
        self._parts.append(f'<circle cx="{x:.5g}" cy="{y:.5g}" r="3.6"{_style(style)}/>')

    def svg(self) -> str:
        """Return the file."""
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{SHOWN_WIDTH}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
            f'<title id="title">{escape(self.title, False)}</title>',
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
            # It fills the figure: a viewer may show white at rounded corners, also in dark mode.
            f'<rect class="page" x="0" y="0" width="{WIDTH}" height="{self.height}"/>',
        ]
        return "\n".join([*lines, *self._parts, "</svg>", ""])


def _style(style: str) -> str:
    return f' class="{style}"' if style else ""


def _anchor(anchor: str) -> str:
    return "" if anchor == "start" else f' text-anchor="{anchor}"'
