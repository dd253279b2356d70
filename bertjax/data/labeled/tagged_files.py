"""Files of tagged sentences: columns with a word per line, JSON objects as the `datasets` library writes them, and
CoNLL-U, as used by Universal Dependencies (universaldependencies.org/format.html; Nivre et al. 2020).
"""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bertjax.data.labeled import labels, tables
from bertjax.data.labeled.base import WHERE, Record, not_empty
from bertjax.data.sources.base import OnBad, check_surrogates, decoded, read_each, stop
from bertjax.data.sources.records import numbered_lines
from bertjax.runtime.errors import UserError, shorten

# A word of a sentence: its line number and its columns.
Row = tuple[int, list[str]]
_DOCUMENT = "-DOCSTART-"
# OntoNotes (CoNLL-2012) brackets each document with these lines; they hold no word.
_PART = re.compile(r"#(begin|end) document\b")
# Only ASCII space and tab separate columns. `str.split()` would also cut at the no-break space in "10 000".
_SPACES = re.compile("[ \t]+")
CONLLU = ".conllu"
_FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_FEATURE = "feats."
# Marks an absent value.
_ABSENT = "_"
# The words of a sentence of CoNLL-U, each as {field: value}.
Words = list[dict[str, Any]]
# Ids of words (1), multiword tokens (1-2) and empty nodes (1.1).
_NUMBER = re.compile(r"\d+([-.]\d+)?")
# CoNLL-U has no column for entities, so their tags go into this field in `misc`.
_ENTITY = "NER"
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
        right = sum(len(row) == len(_FIELDS) and bool(_NUMBER.fullmatch(row[0])) for row in rows)
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
        if labels.canonical_of(tags):
            return not labels.canonical_of({*tags, columns[-1]})
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


# JSON.

# Accepted names for the field with the words.
WORD_FIELDS = ("tokens", "words")


def read_objects(path: str, tag_field: str, on_bad: OnBad) -> list[Record]:
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


def read_object_words(path: str) -> list[Record] | None:
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


# CoNLL-U (universaldependencies.org/format.html).


def check_conllu_tag(field: str) -> None:
    """Raise UserError unless `field` is `upos`, `xpos` or `feats.NAME`."""
    if field not in ("upos", "xpos") and not (field.startswith(_FEATURE) and field != _FEATURE):
        raise UserError(f"examples.conllu={field!r} is not a tag of CoNLL-U; choose upos, xpos or such as feats.Case")


def read_conllu(path: str, columns_of: Callable[[Words, str], Record], on_bad: OnBad = stop) -> list[Record]:
    """Read sentences as {`words`} with the location of their first line.

    Words are syntactic words, which carry the tags: multiword tokens (`1-2`) and empty nodes (`1.1`) are skipped.

    Args:
      path: a .conllu file, plain, .gz, .zst or .xz.
      columns_of: returns further fields of a record, such as `{"tags": [...]}`, given its words and
        its location.
      on_bad: called with each bad sentence's error; if it returns, the sentence is dropped.

    Raises:
      UserError: the file cannot be read, or no sentence is left.
    """

    def record_of(lines: list[tuple[int, bytes]]) -> Record:
        where = f"{path}:{lines[0][0]}"
        words = [values for number, line in lines if (values := _conllu_word(line, f"{path}:{number}"))]
        # Without words there are only comments.
        further = columns_of(words, where) if words else {}
        return {"words": [values["form"] for values in words]} | further | {WHERE: where}

    groups = itertools.groupby(numbered_lines(path), key=lambda line: bool(line[1].strip()))
    records = read_each((list(lines) for is_filled, lines in groups if is_filled), record_of, on_bad)
    return not_empty((record for record in records if record["words"]), path, "sentences of CoNLL-U that can be used")


def read_conllu_tags(path: str, field: str, on_bad: OnBad) -> list[Record]:
    """Read sentences as {`words`, `tags`}.

    Args:
      path, on_bad: see `read_conllu`.
      field: the tag, see `check_conllu_tag`; words that lack it get the tag `_`.

    Raises:
      UserError: see `read_conllu`; or no word has the feature.
    """

    def tag_of(values: dict[str, Any]) -> str:
        name = field.removeprefix(_FEATURE)
        return (values["feats"].get(name) if field != name else values[field]) or _ABSENT

    records = read_conllu(path, lambda words, where: {"tags": list(map(tag_of, words))}, on_bad)
    if all(tag == _ABSENT for record in records for tag in record["tags"]):
        raise UserError(f"{path} has no word with examples.conllu={field}; choose upos, xpos or another feature")
    return records


def with_conllu_tags(path: str, field: str, tags: Iterable[str]) -> Iterator[str]:
    """Yield a file's lines with the given tags, one per word.

    Args:
      path: a CoNLL-U file.
      field: the column to replace (`upos` or `xpos`) or the feature to set; empty for entity tags, which are written as
        `NER=TAG` in the last column.
      tags: tags in word order; `_` leaves a feature unset.
    """
    tags = iter(tags)
    for number, line in numbered_lines(path):
        if not line.strip() or _conllu_word(line, f"{path}:{number}") is None:
            yield decoded(line, f"{path}:{number}")
            continue
        columns, tag = decoded(line, f"{path}:{number}").split("\t"), next(tags)
        if field in _FIELDS:
            columns[_FIELDS.index(field)] = tag
        else:
            name, place = (field.removeprefix(_FEATURE), "feats") if field else (_ENTITY, "misc")
            columns[_FIELDS.index(place)] = _with_entry(columns[_FIELDS.index(place)], name, tag)
        yield "\t".join(columns)


def _with_entry(entries: str, name: str, value: str) -> str:
    """Set one entry in a list such as `Case=Nom|Number=Sing`, which stays sorted by name as the format requires."""
    others = [entry for entry in entries.split("|") if entry not in ("", _ABSENT) and entry.split("=")[0] != name]
    entries = others + ([f"{name}={value}"] if value != _ABSENT else [])
    return "|".join(sorted(entries, key=str.casefold)) or _ABSENT


def _conllu_word(line: bytes, where: str) -> dict[str, Any] | None:
    """Return a line's columns by name; None for comments, multiword tokens and empty nodes."""
    # Imported here, because few runs read CoNLL-U.
    from conllu import exceptions, parser

    columns = decoded(line, where).split("\t")
    if columns[0].startswith("#"):
        return None
    if len(columns) != len(_FIELDS):
        raise UserError(f"{where} has {len(columns)} columns between tabs, not {len(_FIELDS)}; correct the line")
    values = dict(zip(_FIELDS, columns))
    try:
        number, feats = parser.parse_id_value(values["id"]), parser.parse_dict_value(values["feats"]) or {}
    except exceptions.ParseException as error:
        raise UserError(f"{where} is not CoNLL-U ({error}); correct the line") from None
    if number is None or not values["form"].strip():
        raise UserError(f"{where} has no {'word' if number else 'number'}; correct the line")
    return values | {"feats": feats} if isinstance(number, int) else None
