"""Tables on a terminal, whose cells may be names from files of others."""

import rich.table
from rich.text import Text

from bertjax.errors import printable


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
