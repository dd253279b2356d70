"""Files with a word in each line, its columns between tabs or spaces, and a blank line after each sentence."""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from etils import epath

from bertjax.data.labeled import conllu, tag_schemes
from bertjax.data.sources.base import decoded
from bertjax.data.sources.lines import numbered_lines
from bertjax.errors import UserError

_DOCUMENT = "-DOCSTART-"
# Lines of OntoNotes in the format of CoNLL-2012 that hold no word.
_PART = re.compile(r"#(begin|end) document\b")
# Only these separate columns: a no-break space is part of a word, as in 10 000.
_SPACES = re.compile("[ \t]+")


@dataclasses.dataclass(frozen=True)
class ColumnFile:
    """The lines of a file.

    Attributes:
      path: the file.
      comment: lines that start with it are left out; empty for none.
    """

    path: str
    comment: str = ""

    @functools.cached_property
    def lines(self) -> list[tuple[int, str]]:
        """All lines, numbered from 1.

        Raises:
          UserError: the file cannot be read, is not UTF-8, or has the line ends of old Macs.
        """
        lines = []
        for number, line in numbered_lines(epath.Path(self.path)):
            if b"\r" in line:
                raise UserError(
                    f"{self.path}:{number} has a carriage return inside of a line; end lines with a line feed: "
                    "tr '\\r' '\\n' < OLD > NEW"
                )
            lines.append((number, decoded(line, f"{self.path}:{number}")))
        return lines

    @functools.cached_property
    def separator(self) -> str:
        """A tab if most lines have one, else a space. With tabs, a word may hold spaces, or be one."""
        filled = [text for _, text in self.lines if text.strip()]
        return "\t" if 2 * sum("\t" in text for text in filled) > len(filled) else " "

    @functools.cached_property
    def width(self) -> int:
        """The number of columns of most lines with words; 0 without any."""
        counts = Counter(len(columns) for block in self._blocks for _, columns in block if not _may_be_comment(columns))
        counts = counts or Counter(len(columns) for block in self._blocks for _, columns in block)
        return max(counts, key=lambda width: (counts[width], width), default=0)

    @functools.cached_property
    def is_conllu(self) -> bool:
        """Whether most lines have the ten columns of CoNLL-U, whatever the name of the file is."""
        rows = [text.split("\t") for _, text in self.lines if text.strip() and not text.startswith("#")]
        right = sum(len(row) == len(conllu.COLUMNS) and bool(conllu.NUMBER.fullmatch(row[0])) for row in rows)
        return 2 * right > len(rows)

    @functools.cached_property
    def sentences(self) -> list[list[tuple[int, list[str]]]]:
        """The words of each sentence, each as the number of its line and its columns, without comments."""
        tags = {columns[-1] for block in self._blocks for _, columns in block if not _may_be_comment(columns)}
        sentences = []
        for block in self._blocks:
            words = itertools.dropwhile(lambda line: self._is_comment(line[1], tags), block)  # comments come first
            sentences.append(list(words))
        return [sentence for sentence in sentences if sentence]

    def _is_comment(self, columns: list[str], tags: set[str]) -> bool:
        """Return whether a line is a comment, and not a word # with a tag: one that others have, or in their scheme."""
        if not _may_be_comment(columns) or len(columns) != self.width:
            return _may_be_comment(columns)
        if tag_schemes.canonical_of(tags):
            return columns[-1] not in tags and not tag_schemes.canonical_of({*tags, columns[-1]})
        return columns[-1] not in tags and "=" in "".join(columns[1:])

    def check_width(self, sentence: list[tuple[int, list[str]]]) -> None:
        """Raise UserError if a line of a sentence has more or fewer columns than most lines."""
        for number, columns in sentence:
            if len(columns) != self.width:
                name = {"\t": "tabs", " ": "spaces"}[self.separator]
                raise UserError(
                    f"{self.path}:{number} has {len(columns)} columns between {name}, and most lines have "
                    f"{self.width}; correct the line"
                )

    def with_column(self, values: Iterable[str]) -> Iterator[str]:
        """Yield the lines of the file with one more column: a value for each word, in order."""
        numbers = {number for sentence in self.sentences for number, _ in sentence}
        values = iter(values)
        for number, text in self.lines:
            yield f"{text}{self.separator}{next(values)}" if number in numbers else text

    @functools.cached_property
    def _blocks(self) -> list[list[tuple[int, list[str]]]]:
        """Runs of lines between blank lines or `_DOCUMENT` lines, each line as its number and columns."""
        blocks = [[]]
        for number, text in self.lines:
            if (self.comment and text.startswith(self.comment)) or _PART.match(text):
                continue
            columns = _SPACES.split(text.strip(" \t"))
            if self.separator == "\t":  # a column that is only a space is one
                columns = [column.strip(" ") or column for column in text.split("\t")]
            if text.strip() and _SPACES.split(text)[0] != _DOCUMENT:
                blocks[-1].append((number, columns))
            elif blocks[-1]:
                blocks.append([])
        return [block for block in blocks if block]


def _may_be_comment(columns: list[str]) -> bool:
    """Return whether a line starts with # and a space, as comments such as `# id 7 domain=en` and `## source` do."""
    first = _SPACES.split(columns[0])[0]
    return bool(first) and not first.strip("#")
