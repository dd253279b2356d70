"""The objective of docs/guides/adding_an_objective.md, as a module that can be imported."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "adding_an_objective.md"
KIND = "mylab.replaced:RandomReplacement"


def code() -> str:
    """The Python code on the page."""
    return re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


def write(folder: Path) -> None:
    """Write it to `folder`/mylab/replaced.py."""
    (folder / "mylab").mkdir()
    (folder / "mylab" / "replaced.py").write_text(code())
