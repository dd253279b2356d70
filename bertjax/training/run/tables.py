"""Tables on a terminal and in files, whose cells may be names from files of others."""

from collections.abc import Iterable
from typing import Any

import rich.table
from rich.text import Text

from bertjax.errors import printable

# A spreadsheet reads a cell that starts with one of these as a formula, which may send the others to a URL.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_cells(cells: Iterable[Any]) -> list[Any]:
    """Return a row of a CSV file in which text is never a formula: it starts with an apostrophe. Numbers stay."""
    return [f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in cells]


class Table(rich.table.Table):
    """A table that shows all text as it is: control characters as escapes, and no brackets are read as styles."""

    def __init__(self, *headers: str, title: str = "", **options):
        super().__init__(*headers, title=Text(printable(title), "table.title") if title else None, **options)

    def add_column(self, header: str = "", **options) -> None:
        """Add a column; see `rich.table.Table`."""
        super().add_column(Text(printable(header)), **options)

    def add_row(self, *cells: str) -> None:
        """Add a row of texts; see `rich.table.Table`."""
        super().add_row(*(Text(printable(cell)) for cell in cells))
