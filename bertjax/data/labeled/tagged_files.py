"""Files of tagged sentences: columns with a word per line, and JSON objects as the `datasets` library writes them."""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from bertjax.data.labeled import conllu, labels, tables, tag_schemes
from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.base import OnBad, check_surrogates, decoded, read_each, stop
from bertjax.data.sources.lines import numbered_lines
from bertjax.runtime.errors import UserError, shorten

# A word of a sentence: its line number and its columns.
Row = tuple[int, list[str]]
_DOCUMENT = "-DOCSTART-"
# OntoNotes (CoNLL-2012) brackets each document with these lines; they hold no word.
_PART = re.compile(r"#(begin|end) document\b")
# Only ASCII space and tab separate columns. `str.split()` would also cut at the no-break space in "10 000".
_SPACES = re.compile("[ \t]+")
# A column does not hold the words if at least this share of the sentences speaks against it.
_MOST = 0.9


@dataclasses.dataclass(frozen=True)
class ColumnFile:
    """A column file.

    Attributes:
      path: file to read.
      comment: prefix of lines to ignore; empty for none.
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
        for number, line in numbered_lines(self.path):
            if b"\r" in line:
                raise UserError(f"{self.path}:{number} has a carriage return; end lines with a line feed alone")
            lines.append((number, decoded(line, f"{self.path}:{number}")))
        return lines

    @functools.cached_property
    def separator(self) -> str:
        """Tab if most lines contain one, else space. Between tabs, a word may contain spaces or be a space."""
        filled = [text for _, text in self.lines if text.strip()]
        return "\t" if 2 * sum("\t" in text for text in filled) > len(filled) else " "

    @functools.cached_property
    def width(self) -> int:
        """The most common number of columns; 0 for a file without words."""
        counts = Counter(map(len, self._certain))
        return max(counts, key=lambda width: (counts[width], width), default=0)

    @functools.cached_property
    def is_conllu(self) -> bool:
        """Whether most lines have the ten columns of CoNLL-U, judged by content, not by file name."""
        rows = [text.split("\t") for _, text in self.lines if text.strip() and not text.startswith("#")]
        right = sum(len(row) == len(conllu.COLUMNS) and bool(conllu.NUMBER.fullmatch(row[0])) for row in rows)
        return 2 * right > len(rows)

    @functools.cached_property
    def sentences(self) -> list[list[Row]]:
        """Sentences without the comments before their words."""
        tags = {columns[-1] for columns in self._certain}
        blocks = [list(itertools.dropwhile(lambda row: self._is_comment(row[1], tags), own)) for own in self._blocks]
        return [block for block in blocks if block]

    def _is_comment(self, columns: list[str], tags: set[str]) -> bool:
        """Return whether a line is a comment; the word # has a tag that fits the other tags."""
        if not _may_be_comment(columns) or len(columns) != self.width:
            return _may_be_comment(columns)
        if columns[-1] in tags:
            return False
        if tag_schemes.canonical_of(tags):
            return not tag_schemes.canonical_of({*tags, columns[-1]})
        return "=" in "".join(columns[1:])

    def check_width(self, sentence: list[Row]) -> None:
        """Raise UserError if a line has more or fewer columns than most lines."""
        for number, columns in sentence:
            if len(columns) != self.width:
                name = {"\t": "tabs", " ": "spaces"}[self.separator]
                most = f"{len(columns)} columns between {name}, and most lines have {self.width}"
                raise UserError(f"{self.path}:{number} has {most}; correct the line")

    def check_words(self, column: int) -> None:
        """Raise UserError if there is no such column, or if it does not hold the words.

        CoNLL-2009, GermEval and Universal NER put the number of a word first, and CoNLL-2012 the name of the document.
        """
        self.check_column("word", column)
        rows = [[row for _, row in sentence if len(row) == self.width] for sentence in self.sentences]
        sentences = [[row[column] for row in sentence] for sentence in rows if len(sentence) > 1]
        numbered = sum(words in _counted(len(words)) for words in sentences)
        named = sum(len(set(words)) == 1 for words in sentences)
        for count, what in ((numbered, "the number of each word"), (named, "one text for all words of a sentence")):
            if self.width > 2 and sentences and count >= _MOST * len(sentences):
                holds = f"column {column} holds {what}, such as {sentences[0][0]!r}, and not the words"
                raise UserError(f"{self.path}: {holds}; set examples.word to their column, in a command with --word")

    def check_column(self, setting: str, column: int) -> None:
        """Raise UserError if there is no such column."""
        if not -self.width <= column < self.width:
            remedy = f"correct it, in a command with --{setting}"
            raise UserError(f"{self.path} has {self.width} columns, but examples.{setting}={column}; {remedy}")

    def with_column(self, values: Iterable[str]) -> Iterator[str]:
        """Yield all lines, with one more column on each word: the next value."""
        numbers = {number for sentence in self.sentences for number, _ in sentence}
        values = iter(values)
        for number, text in self.lines:
            yield f"{text}{self.separator}{next(values)}" if number in numbers else text

    @functools.cached_property
    def _certain(self) -> list[list[str]]:
        """The columns of all words, without lines that may be comments unless all may be."""
        rows = [columns for block in self._blocks for _, columns in block]
        return [columns for columns in rows if not _may_be_comment(columns)] or rows

    @functools.cached_property
    def _blocks(self) -> list[list[Row]]:
        """Runs of lines between blank or `_DOCUMENT` lines."""
        lines = [(number, text) for number, text in self.lines if not (self._is_ignored(text) or _PART.match(text))]
        groups = itertools.groupby(lines, key=lambda line: bool(line[1].strip()) and not _is_document(line[1]))
        return [[(number, self._columns(text)) for number, text in group] for is_filled, group in groups if is_filled]

    def _is_ignored(self, text: str) -> bool:
        return bool(self.comment) and text.startswith(self.comment)

    def _columns(self, text: str) -> list[str]:
        if self.separator == "\t":  # a column may be a single space
            return [column.strip(" ") or column for column in text.split("\t")]
        return _SPACES.split(text.strip(" \t"))


def _counted(length: int) -> tuple[list[str], list[str]]:
    """Return the numbers of so many words, counted from 0 and from 1."""
    return list(map(str, range(length))), list(map(str, range(1, length + 1)))


def _is_document(text: str) -> bool:
    return _SPACES.split(text)[0] == _DOCUMENT


def _may_be_comment(columns: list[str]) -> bool:
    """Return whether a line starts with # marks and a space, such as `# id 7 domain=en` and `## source`."""
    first = _SPACES.split(columns[0])[0]
    return bool(first) and not first.strip("#")


# Accepted names for the field with the words.
WORD_FIELDS = ("tokens", "words")


def read(path: str, tag_field: str, on_bad: OnBad) -> list[Record]:
    """Read sentences as {`words`, `tags`} with their locations.

    Args:
      path: JSON lines or one JSON array of objects, plain, .gz, .zst or .xz.
      tag_field: field with the tags (texts or numbers); empty if the words and one other list are the only lists.
      on_bad: called with each bad sentence's error; if it returns, the sentence is dropped.

    Raises:
      UserError: the file cannot be read, several fields could hold the tags, or no sentence is left.
    """
    entries, word_field = _entries(path, on_bad)
    first, where = entries[0], entries[0][WHERE]
    names = shorten([repr(name) for name in first if name != WHERE], 12)
    if not word_field:
        remedy = f"spans of characters, as tools of annotation write them, are not read; write {tables.TAGGED}"
        raise UserError(f"{where} has no list of words in 'tokens' or 'words', it has {names}; {remedy}")
    # Other lists, such as those of characters or relations, rarely have as many entries as there are words.
    lists = [name for name, value in first.items() if isinstance(value, list) and name != word_field]
    fitting = [tag_field] if tag_field else [name for name in lists if len(first[name]) == len(first[word_field])]
    if len(fitting) != 1:
        several = ", ".join(map(repr, fitting))
        what = f"has several lists of tags, {several}" if fitting else f"has no list of tags, only {names}"
        raise UserError(f"{where} {what}; set examples.tag_field to the one to learn")
    field = fitting[0]

    def record_of(entry: Record) -> Record:
        words, tags = _words(entry, word_field), entry.get(field)
        if not isinstance(tags, list) or len(tags) != len(words):
            count = f"{len(tags)} tags" if isinstance(tags, list) else "no list"
            raise UserError(f"{entry[WHERE]} has {count} in {field!r} and {len(words)} words in {word_field!r}; fix it")
        if bad := [tag for tag in tags if type(tag) not in (str, int) or not str(tag).strip()]:
            raise UserError(f"{entry[WHERE]} has the tag {str(bad[0])[:40]!r}; write texts or numbers")
        check_surrogates("".join(map(str, tags)), f"{entry[WHERE]}: {field}")
        return {"words": words, "tags": [labels.class_of(tag) for tag in tags], WHERE: entry[WHERE]}

    return list(read_each(entries, record_of, on_bad))


def read_words(path: str) -> list[Record] | None:
    """Read sentences without tags; None if the objects have texts instead of word lists.

    Raises:
      UserError: the file cannot be read, or a sentence is bad.
    """
    entries, field = _entries(path, stop)
    return [entry | {"words": _words(entry, field)} for entry in entries] if field else None


def _entries(path: str, on_bad: OnBad) -> tuple[list[Record], str]:
    """Return a file's objects, and the field with the words of the first one; empty if there is none."""
    entries = tables.read(path, (), on_bad=on_bad, all_columns=True)
    return entries, next((field for field in WORD_FIELDS if _is_list_of_texts(entries[0].get(field))), "")


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _words(entry: Record, field: str) -> list[str]:
    words = entry.get(field)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise UserError(f"{entry[WHERE]} has no list of words in {field!r}; write one, without empty words")
    check_surrogates("".join(words), f"{entry[WHERE]}: {field}")
    return words
