"""The contract of a filter: a document is kept, rewritten, or dropped for a reason."""

import dataclasses
from typing import Any

from bertjax.data.sources import Document
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Filter:
    """A rule that decides from one document alone; the fields of a subclass are its settings.

    A filter is pickled to the processes that apply it. It must give the same answer for a document in any order and in
    any process. A store is named after the settings of its filters, not after their code: give a filter of your own a
    field `version`, and raise it when its rule changes.

    Attributes:
      kind: the name of the filter in a configuration; each subclass sets its own as the default.
    """

    kind: str = dataclasses.field(init=False)

    def rewrite(self, text: str) -> tuple[str, int]:
        """Return the text to use instead and the number of changes in it. It runs before `keep`."""
        return text, 0

    def keep(self, document: Document) -> str | None:
        """Return None to keep a document, else the reason to drop it.

        Documents are counted by reason, so a reason names the rule and not the document: `fewer than 50 words`.
        """
        return None

    def identity(self) -> dict[str, Any]:
        """Return what decides the filter's answers, as JSON values: its settings, and the content of files they name.

        Raises:
          UserError: such a file cannot be read.
        """
        return dataclasses.asdict(self)


def check_range(kind: str, name: str, value: float, least: float, most: float = float("inf")) -> None:
    """Raise UserError unless a setting of a filter is in [least, most]."""
    if not least <= value <= most:
        bounds = f"between {least:g} and {most:g}" if most < float("inf") else f"at least {least:g}"
        raise UserError(f"{name}={value} of the filter {kind!r} must be {bounds}; correct it")
