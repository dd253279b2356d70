"""Handling of bad documents and bad labeled records: stop at the first one, or skip and count."""

import dataclasses
import sys

from tqdm import tqdm

from bertjax.runtime.errors import UserError, printable

LISTED = 5


@dataclasses.dataclass
class BadRecords:
    """Counter for bad records. With `stop` the first one raises; with `skip` all are counted and the first listed.

    Attributes:
      on_bad: `stop` or `skip`.
      what: plural noun for messages, such as `documents`.
      remedy: ending for the error message under `stop`.
      skipped: number of skipped records, by source.
    """

    on_bad: str
    what: str
    remedy: str = ""
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, source: str, error: UserError) -> None:
        """Count a bad record.

        Raises:
          UserError: bad records stop the program.
        """
        if self.on_bad == "stop":
            raise UserError(f"{error}{self.remedy}") if self.remedy else error
        self.skipped[source] = self.skipped.get(source, 0) + 1
        number = sum(self.skipped.values())
        if number <= LISTED:
            tqdm.write(f"skipped: {printable(str(error))}", file=sys.stderr)
        if number == LISTED:
            tqdm.write(f"further bad {self.what} are counted but not listed", file=sys.stderr)
