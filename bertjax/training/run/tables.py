"""Terminal tables with untrusted cells, such as names from other people's files."""

import rich.table
from rich.text import Text

from bertjax.errors import printable


class Table(rich.table.Table):
    """A `rich` table that shows text literally: control characters are escaped, and brackets are not markup."""

    def __init__(self, *headers: str, title: str = "", **options):
        # `Text` instead of str: rich would parse `[red]` in a class name as markup.
        super().__init__(*headers, title=Text(printable(title), "table.title") if title else None, **options)

    def add_column(self, header: str = "", **options) -> None:
        """Add a column; see `rich.table.Table`."""
        super().add_column(Text(printable(header)), **options)

    def add_row(self, *cells: str) -> None:
        """Add a row of texts; see `rich.table.Table`."""
        super().add_row(*(Text(printable(cell)) for cell in cells))
