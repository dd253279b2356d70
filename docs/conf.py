"""The site: Sphinx over the pages of this folder, with a reference that is made from the code.

    pip install -e '.[docs]' && python -m sphinx -W --keep-going docs build/site

Pages stay plain Markdown, which a public host shows as well. README and its like become pages of the site. Links to
other files lead to the repository if `BERTJAX_REPOSITORY` is its address, and are plain text otherwise.
"""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import reference_pages  # noqa: E402

import bertjax  # noqa: E402

project, author, release = "bertjax", "The bertjax authors", bertjax.__version__
copyright = author
extensions = ["myst_nb", "sphinx_external_toc", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
external_toc_path = "_toc.yml"
# Each notebook stands beside a text with the same cells.
exclude_patterns = ["notebooks/*.md"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4  # the anchors that GitHub gives headings
nb_execution_mode = "off"  # tests run the notebooks

default_role = "code"  # docstrings have Markdown's backticks
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shape suffixes and the text say more

html_theme = "sphinx_book_theme"
html_title = f"bertjax {release}"
html_theme_options = {"show_toc_level": 2, "navbar_persistent": []}
html_show_sourcelink = False

_GENERATED = HERE / "generated"
# Pages of the repository that are pages of the site as well.
_COPIES = {
    ROOT / "README.md": _GENERATED / "readme.md",
    ROOT / "CHANGELOG.md": _GENERATED / "changelog.md",
    ROOT / "CONTRIBUTING.md": _GENERATED / "contributing.md",
    ROOT / "launch" / "README.md": _GENERATED / "launch.md",
    ROOT / "benchmarks" / "README.md": _GENERATED / "benchmarks.md",
    ROOT / "launch" / "kaggle" / "README.md": _GENERATED / "kaggle.md",
    ROOT / "lessons" / "README.md": _GENERATED / "lessons.md",
}
_COPIES |= {path: _GENERATED / f"lesson_{path.stem}.md" for path in (ROOT / "lessons").glob("[0-9]_*.py")}
# Links to other files lead out of the site.
_SHOWN = (".md", ".ipynb", ".png", ".svg", ".csv")
_REPOSITORY = os.environ.get("BERTJAX_REPOSITORY", "")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^\[(\w+)\]: (\S+)$", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def _target(source: Path, page: Path, link: str) -> str:
    """Return the target of a link as a page of the site has it; empty if it leads nowhere."""
    name, hash_, anchor = link.partition("#")
    if not name or "://" in name:
        return link
    path = (source.parent / name).resolve()
    path = _COPIES.get(path, path)
    # The text beside a notebook is not a page.
    if path.is_relative_to(HERE) and path.suffix in _SHOWN and not path.match("notebooks/*.md"):
        return os.path.relpath(path, page.parent) + hash_ + anchor
    return f"{_REPOSITORY}/blob/main/{path.relative_to(ROOT)}" if _REPOSITORY else ""


def _text(source: Path) -> str:
    """Return a file as Markdown; the code cells of a lesson (`py:percent`) become blocks of code."""
    if source.suffix != ".py":
        return source.read_text()
    _, *cells = _CELL.split(source.read_text())
    kinds, texts = cells[::2], (text.strip() for text in cells[1::2])
    return "\n\n".join(
        re.sub("^# ?", "", text, flags=re.MULTILINE) if "markdown" in kind else f"```python\n{text}\n```"
        for kind, text in zip(kinds, texts, strict=True)
    )


def _page(source: Path, page: Path) -> str:
    """Return the text of a file as a page of the site."""

    def replace(match: re.Match) -> str:
        target = _target(source, page, match[3])
        return f"{match[1]}[{match[2]}]({target})" if target else match[2]

    text = _DEFINITION.sub(lambda match: f"[{match[1]}]: {_target(source, page, match[2])}", _text(source))
    parts = _FENCE.split(text)  # code is left as it is
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


def _read(app, name: str, content: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    if path.suffix == ".md" and path.parent != _GENERATED:
        content[0] = _page(path, path)


def setup(app) -> None:
    reference_pages.write(_GENERATED)
    for source, page in _COPIES.items():
        page.write_text(_page(source, page))
    app.connect("source-read", _read)
