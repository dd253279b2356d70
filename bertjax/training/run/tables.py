"""Tables in terminals and files, with untrusted cells, such as names from other people's files."""

from collections.abc import Iterable
from typing import Any

import rich.table
from rich.console import JustifyMethod
from rich.text import Text

from bertjax.runtime.errors import csv_line, printable

# A spreadsheet reads a cell that starts with one of these as a formula, which may send the others to a URL.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return a CSV file; see `csv_cells`."""
    return "".join(f"{csv_line(csv_cells(row))}\n" for row in rows)


def csv_cells(cells: Iterable[Any]) -> list[Any]:
    """Return a row of a CSV file in which text is never a formula: it starts with an apostrophe. Numbers stay."""
    return [f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in cells]


class Table(rich.table.Table):
    """A `rich` table that shows text literally: control characters are escaped, and brackets are not markup.

    Args:
      headers: titles of the columns.
      title: title of the table.
      justify: alignment of all columns but the first.
    """

    def __init__(self, *headers: str, title: str = "", justify: JustifyMethod = "left", **options):
        self._justify = justify
        # `Text` instead of str: rich would parse `[red]` in a class name as markup.
        super().__init__(*headers, title=Text(printable(title), "table.title") if title else None, **options)

    def add_column(self, header: str = "", **options) -> None:
        """Add a column; see `rich.table.Table`."""
        super().add_column(Text(printable(header)), **{"justify": self._justify if self.columns else "left"} | options)

    def add_row(self, *cells: str) -> None:
        """Add a row of texts; see `rich.table.Table`."""
        super().add_row(*(Text(printable(cell)) for cell in cells))
