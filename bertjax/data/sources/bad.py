"""Bad documents of a corpus and bad records of labeled files: the first one is an error, or all are counted."""

import dataclasses
import sys

from tqdm import tqdm

from bertjax.errors import UserError, printable

LISTED = 5


@dataclasses.dataclass
class BadRecords:
    """Bad records: the first one is an error, or all are counted and the first ones listed.

    Attributes:
      on_bad: `stop` or `skip`.
      what: the name of several of them, such as `documents`.
      remedy: what else to do about the error of the first one; the end of its message.
      skipped: number of those left out, by source.
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
