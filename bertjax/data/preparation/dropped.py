"""`dropped.jsonl.gz`: documents that were dropped from a store, with reasons and counts.

Each line has `source`, `id` (`<part>:<number>`, as in messages), `rule` (a filter's name, `duplicate` or
`near-duplicate`) and `reason`. Filters also write `text`, the beginning of the document. For near-duplicates, `kept`
and `kept_source` name the document that stays instead.
"""

import collections
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.runtime.errors import UserError, printable

NAME = "dropped.jsonl.gz"
TEXT_CHARACTERS = 200
# A filter with more reasons probably mentions the document in them, so counting by reason would be useless.
MOST_REASONS = 100


class Dropped:
    """Writes `dropped.jsonl.gz` and counts dropped documents by source, rule and reason.

    Attributes:
      numbers: {source: {rule: {reason: documents}}}.
      changes: {source: {filter: [changed documents, changes]}}.
    """

    def __init__(self, folder: Path):
        self._file = open(folder / NAME, "wb")  # noqa: SIM115
        # Neither file name nor time in the gzip header, so the same documents give the same bytes.
        self._gzip = gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._file, mtime=0)
        self._reasons: dict[str, set[str]] = collections.defaultdict(set)
        self.numbers: dict[str, dict[str, dict[str, int]]] = {}
        self.changes: dict[str, dict[str, list[int]]] = {}

    def __enter__(self) -> "Dropped":
        return self

    def __exit__(self, *_: object) -> None:
        self._gzip.close()
        self._file.close()

    def add(self, source: str, document: str, rule: str, reason: str, text: str) -> None:
        """Record a document that a filter dropped.

        Raises:
          UserError: the filter gave more than `MOST_REASONS` reasons.
        """
        self._reasons[rule].add(reason)
        if len(self._reasons[rule]) > MOST_REASONS:
            many = f"more than {MOST_REASONS} different reasons, such as {printable(reason)[:60]!r}"
            raise UserError(f"the filter data.filters.{rule} gave {many}; let a reason name the rule, not the document")
        by_reason = self.numbers.setdefault(source, {}).setdefault(rule, {})
        by_reason[reason] = by_reason.get(reason, 0) + 1
        self.write(source=source, id=document, rule=rule, reason=reason, text=text[:TEXT_CHARACTERS])

    def add_all(self, lines: Iterable[bytes], changes: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        """Add the records from the next piece.

        Args:
          lines: lines from the piece's `dropped.jsonl.gz`.
          changes: the piece's `changes`.
        """
        for line in lines:
            fields = json.loads(line)
            self.add(fields["source"], fields["id"], fields["rule"], fields["reason"], fields["text"])
        for source, by_rule in changes.items():
            for rule, numbers in by_rule.items():
                counts = self.changes.setdefault(source, {}).setdefault(rule, [0, 0])
                counts[:] = [count + number for count, number in zip(counts, numbers, strict=True)]

    def count_changes(self, source: str, changes: Mapping[str, int]) -> None:
        """Count one changed document, and the changes by filter."""
        for rule, number in changes.items():
            counts = self.changes.setdefault(source, {}).setdefault(rule, [0, 0])
            counts[0] += 1
            counts[1] += number

    def write(self, **fields: Any) -> None:
        """Write a line."""
        self._gzip.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a store's records.

    Raises:
      UserError: the store was made without filters and near-duplicates, or the file is damaged.
    """
    path = folder / NAME
    if not path.exists():
        raise UserError(f"{path} does not exist; a store has it if data.filters or data.near_duplicates.drop is set")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)
    # gzip raises EOFError for a file that was cut short, and an OSError for a wrong checksum.
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete the folder and prepare again") from None
