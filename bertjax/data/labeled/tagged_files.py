"""Files of tagged sentences: columns with a word per line, and JSON objects as the `datasets` library writes them."""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from bertjax.data.labeled import conllu, json_objects, labels, tag_schemes
from bertjax.data.labeled.base import WHERE, Record, not_empty
from bertjax.data.sources.base import OnBad, check_surrogates, decoded, read_each, stop
from bertjax.data.sources.lines import numbered_lines
from bertjax.runtime.errors import UserError, shorten

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
        # Comments may have any number of columns, but a file of only such lines has words named #.
        counts = Counter(len(columns) for block in self._blocks for _, columns in block if not _may_be_comment(columns))
        counts = counts or Counter(len(columns) for block in self._blocks for _, columns in block)
        return max(counts, key=lambda width: (counts[width], width), default=0)

    @functools.cached_property
    def is_conllu(self) -> bool:
        """Whether most lines have the ten columns of CoNLL-U, judged by content, not by file name."""
        rows = [text.split("\t") for _, text in self.lines if text.strip() and not text.startswith("#")]
        right = sum(len(row) == len(conllu.COLUMNS) and bool(conllu.NUMBER.fullmatch(row[0])) for row in rows)
        return 2 * right > len(rows)

    @functools.cached_property
    def sentences(self) -> list[list[tuple[int, list[str]]]]:
        """Sentences without comments; each word is (line number, columns)."""
        tags = {columns[-1] for block in self._blocks for _, columns in block if not _may_be_comment(columns)}
        sentences = []
        for block in self._blocks:
            words = itertools.dropwhile(lambda line: self._is_comment(line[1], tags), block)  # they precede the words
            sentences.append(list(words))
        return [sentence for sentence in sentences if sentence]

    def _is_comment(self, columns: list[str], tags: set[str]) -> bool:
        """Return whether a line is a comment; the word # has a tag that fits the other tags."""
        if not _may_be_comment(columns) or len(columns) != self.width:
            return _may_be_comment(columns)
        if tag_schemes.canonical_of(tags):
            return columns[-1] not in tags and not tag_schemes.canonical_of({*tags, columns[-1]})
        return columns[-1] not in tags and "=" in "".join(columns[1:])

    def check_width(self, sentence: list[tuple[int, list[str]]]) -> None:
        """Raise UserError if a line has more or fewer columns than most lines."""
        for number, columns in sentence:
            if len(columns) != self.width:
                name = {"\t": "tabs", " ": "spaces"}[self.separator]
                most = f"{len(columns)} columns between {name}, and most lines have {self.width}"
                raise UserError(f"{self.path}:{number} has {most}; correct the line")

    def check_words(self, column: int) -> None:
        """Raise UserError if a column counts the words of each sentence, or holds one text for all of them.

        CoNLL-2009, GermEval and Universal NER put the number of a word first, and CoNLL-2012 the name of the document.
        """
        sentences = [[row[column] for _, row in sentence if len(row) == self.width] for sentence in self.sentences]
        sentences = [words for words in sentences if len(words) > 1]
        numbered = sum(words in _counted(len(words)) for words in sentences)
        named = sum(len(set(words)) == 1 for words in sentences)
        for count, what in ((numbered, "the number of each word"), (named, "one text for all words of a sentence")):
            if self.width > 2 and sentences and count >= _MOST * len(sentences):
                holds = f"column {column} holds {what}, such as {sentences[0][0]!r}, and not the words"
                raise UserError(f"{self.path}: {holds}; set examples.word to their column, in a command with --word")

    def with_column(self, values: Iterable[str]) -> Iterator[str]:
        """Yield all lines, with one more column on each word: the next value."""
        numbers = {number for sentence in self.sentences for number, _ in sentence}
        values = iter(values)
        for number, text in self.lines:
            yield f"{text}{self.separator}{next(values)}" if number in numbers else text

    @functools.cached_property
    def _blocks(self) -> list[list[tuple[int, list[str]]]]:
        """Runs of lines between blank or `_DOCUMENT` lines; each line is (line number, columns)."""
        blocks = [[]]
        for number, text in self.lines:
            if (self.comment and text.startswith(self.comment)) or _PART.match(text):
                continue
            columns = _SPACES.split(text.strip(" \t"))
            if self.separator == "\t":  # a column may be a single space
                columns = [column.strip(" ") or column for column in text.split("\t")]
            if text.strip() and _SPACES.split(text)[0] != _DOCUMENT:
                blocks[-1].append((number, columns))
            elif blocks[-1]:
                blocks.append([])
        return [block for block in blocks if block]


def _counted(length: int) -> tuple[list[str], list[str]]:
    """Return the numbers of so many words, counted from 0 and from 1."""
    return list(map(str, range(length))), list(map(str, range(1, length + 1)))


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

    def record_of(item: tuple[Record, str, str]) -> Record:
        entry, word_field, field = item
        words, tags = _words(entry, word_field), entry.get(field)
        if not isinstance(tags, list) or len(tags) != len(words):
            count = f"{len(tags)} tags" if isinstance(tags, list) else "no list"
            raise UserError(f"{entry[WHERE]} has {count} in {field!r} and {len(words)} words in {word_field!r}; fix it")
        if bad := [tag for tag in tags if type(tag) not in (str, int) or not str(tag).strip()]:
            raise UserError(f"{entry[WHERE]} has the tag {str(bad[0])[:40]!r}; write texts or numbers")
        check_surrogates("".join(map(str, tags)), f"{entry[WHERE]}: {field}")
        return {"words": words, "tags": [labels.class_of(tag) for tag in tags], WHERE: entry[WHERE]}

    return list(read_each(_entries(path, tag_field, on_bad), record_of, on_bad))


def read_words(path: str) -> list[Record] | None:
    """Read sentences without tags; None if the objects have texts instead of word lists.

    Raises:
      UserError: the file cannot be read, or a sentence is bad.
    """
    first = not_empty(json_objects.read(path, (), stop), path, "objects")[0]
    if not any(_is_list_of_texts(first.get(field)) for field in WORD_FIELDS):
        return None
    return [entry | {"words": _words(entry, field)} for entry, field, _ in _entries(path, "", stop, needs_tags=False)]


def _entries(path: str, tag_field: str, on_bad: OnBad, needs_tags: bool = True) -> list[tuple[Record, str, str]]:
    """Return (object, word field, tag field) per sentence; the first object decides which fields they are."""
    entries = not_empty(json_objects.read(path, (), on_bad), path, "objects")
    first = entries[0]
    word_field = next((field for field in WORD_FIELDS if _is_list_of_texts(first.get(field))), "")
    names = shorten([repr(name) for name in first if name != WHERE], 12)
    if not word_field:
        remedy = f"spans of characters, as tools of annotation write them, are not read; write {json_objects.TAGGED}"
        raise UserError(f"{first[WHERE]} has no list of words in 'tokens' or 'words', it has {names}; {remedy}")
    # Other lists, such as those of characters or relations, rarely have as many entries as there are words.
    lengths = {name: len(value) for name, value in first.items() if isinstance(value, list) and name != word_field}
    fitting = [name for name, length in lengths.items() if length == len(first[word_field])]
    if needs_tags and not tag_field and len(fitting) != 1:
        several = ", ".join(map(repr, fitting))
        what = f"has several lists of tags, {several}" if fitting else f"has no list of tags, only {names}"
        raise UserError(f"{first[WHERE]} {what}; set examples.tag_field to the one to learn")
    return [(entry, word_field, tag_field or next(iter(fitting), "")) for entry in entries]


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _words(entry: Record, field: str) -> list[str]:
    words = entry.get(field)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise UserError(f"{entry[WHERE]} has no list of words in {field!r}; write one, without empty words")
    check_surrogates("".join(words), f"{entry[WHERE]}: {field}")
    return words
