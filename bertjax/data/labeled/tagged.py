"""Sentences with a tag for every word: columns of CoNLL-2003 (Tjong Kim Sang & De Meulder, 2003), and CoNLL-U."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import ClassVar

import numpy as np
from etils import epath

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import special_tokens
from bertjax.data.labeled import conllu, tables
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record
from bertjax.data.labeled.windows import most_context, windows
from bertjax.data.sources.base import OnBad, decoded
from bertjax.data.sources.lines import numbered_lines
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, shorten

# Tags of tokens that have no class: no word starts there, or a word without a tag.
NO_WORD, UNTAGGED = -1, -2
_DOCUMENT = "-DOCSTART-"


@dataclasses.dataclass(frozen=True)
class Tagged(LabeledFormat):
    """One line per word, its columns between tabs (or white space if it has no tab), a blank line after a sentence.

    A file whose name ends in .conllu (and .gz, .zst or .xz) is read as CoNLL-U, see `bertjax.data.labeled.conllu`.
    A record is {`words`: [...], `tags`: [...]}; tags are kept as in the file (IOB1, IOB2, parts of speech). A record to
    predict may also be {`text`: ...}, whose words are separated by white space.
    An example is `[CLS] sentence [SEP]`, or a window of the sentence if it is longer than a row. Token labels: `tag`,
    the class of the word that starts at the token, in the one window where it has the most context (Devlin et al. 2019,
    5.3: a word is represented by its first piece), `UNTAGGED` if it has none, `NO_WORD` elsewhere; `word`, the number
    of that word in its sentence, -1 elsewhere.

    Attributes:
      word: the column of the words, counted from 0, or from the last column, -1.
      tag: the column of the tags.
      conllu: the tag in a .conllu file: `upos`, `xpos` or a feature, such as `feats.Case`; `_` is the tag of words
        without it. `word` and `tag` have no effect on such a file, nor `conllu` on others.
      comment: lines that start with it are left out, such as `##`; empty for none. CoNLL-U has comments of its own.
      stride: tokens from the start of one window to the start of the next.
      unlabeled: a file of further training texts, one per line, with words separated by white space. A teacher tags
        them (`objective.teacher_losses`). Empty for none.
    """

    kind: str = dataclasses.field(init=False, default="tagged")
    word: int = 0
    tag: int = -1
    conllu: str = "upos"
    comment: str = dataclasses.field(default="", kw_only=True)
    stride: int = 64
    unlabeled: str = dataclasses.field(default="", kw_only=True)
    labels: ClassVar[tuple[str, ...]] = ("tag", "word")
    token_settings: ClassVar[tuple[str, ...]] = ("max_tokens", "stride")

    def __post_init__(self):
        super().__post_init__()
        if self.stride < 1:
            raise UserError(f"examples.stride={self.stride} must be at least 1 token")
        conllu.check(self.conllu)

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("text",)

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        if not path:
            raise UserError("examples.train or examples.heldout is empty; name a file of words and tags for each")
        if conllu.SUFFIX in PurePath(path).suffixes:
            self._check_no_effect(("word", "tag", "comment"), f"{path}, a file of CoNLL-U")
            return conllu.read(path, self.conllu, on_bad)
        self._check_no_effect(("conllu",), f"{path}, which does not end in {conllu.SUFFIX}")
        records = []
        for lines in _sentences(path, self.comment):
            try:
                pairs = [self._columns(columns, f"{path}:{number}") for number, columns in lines]
            except UserError as error:
                on_bad(error)
                continue
            words, tags = zip(*pairs)
            records.append({"words": list(words), "tags": list(tags), WHERE: f"{path}:{lines[0][0]}"})
        if not records:
            raise UserError(f"{path} has no sentences; give a file with a word and its tag in each line")
        return records

    def _check_no_effect(self, fields: Sequence[str], file: str) -> None:
        for field in fields:
            if (value := getattr(self, field)) != getattr(Tagged, field):
                raise UserError(f"examples.{field}={value} has no effect on {file}; remove it")

    def _columns(self, columns: list[str], where: str) -> tuple[str, str]:
        for setting, column in (("word", self.word), ("tag", self.tag)):
            if not -len(columns) <= column < len(columns):
                raise UserError(
                    f"{where} has {len(columns)} columns, but examples.{setting}={column}; correct either of them"
                )
        word, tag = columns[self.word], columns[self.tag]
        if not word or not tag.strip():  # white space may be a word
            raise UserError(f"{where} has no {'tag' if word else 'word'}; fill it in")
        return word, tag

    def further_train(self) -> list[Record]:
        """Return the records of `unlabeled`, without tags."""
        if not self.unlabeled:
            return []
        if tables.is_table(self.unlabeled) or conllu.SUFFIX in PurePath(self.unlabeled).suffixes:
            raise UserError(
                f"examples.unlabeled={self.unlabeled} is not plain text; give a file with one text per line"
            )
        return tables.read_lines(self.unlabeled, "text")

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(itertools.chain.from_iterable(record.get("tags", ()) for record in records))

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        longest = self.longest(seq_len)
        room = longest - special_tokens(1)
        if room < 1:
            raise UserError(
                f"an example of {longest} tokens has no room for a word; raise stages.0.seq_len or examples.max_tokens"
            )
        sentences = [words_of(record) for record in records]
        distinct = list(dict.fromkeys(itertools.chain.from_iterable(sentences)))
        # A word without tokens still has its tag.
        pieces = {word: ids or [tokenizer.unk_id] for word, ids in zip(distinct, tokenizer.encode(distinct))}
        texts, tags, words, record_of, cut = [], [], [], [], 0
        for number, record in enumerate(records):
            word_ids = [pieces[word] for word in sentences[number]]
            ids = list(itertools.chain.from_iterable(word_ids))
            word = np.full(len(ids), -1, np.int32)
            word[np.cumsum([0, *map(len, word_ids[:-1])])] = np.arange(len(word_ids))
            numbers = np.append(self._numbers(record, classes), NO_WORD)  # index -1 takes the last entry
            bounds = windows(len(ids), room, self.stride)
            owners = most_context(bounds)
            cut += len(bounds) > 1
            for window, (start, stop) in enumerate(bounds):
                here = np.where(owners[start:stop] == window, word[start:stop], -1)
                texts.append(ids[start:stop])
                words.append(here)
                tags.append(numbers[here])
                record_of.append(number)
        token_labels = {
            name: (np.concatenate(values).astype(np.int32), -1) for name, values in (("tag", tags), ("word", words))
        }
        return LabeledExamples(
            ragged=add_special_tokens(texts, None, Vocabulary.of(tokenizer), {}, token_labels),
            records=records,
            record_of=np.array(record_of, np.int64),
            notes={f"read in windows of {longest} tokens": cut} if cut else {},
        )

    def _numbers(self, record: Record, classes: tuple[str, ...]) -> np.ndarray:
        """Return the class of each word, `UNTAGGED` if the record has no tags; int32."""
        known = {name: number for number, name in enumerate(classes)}
        tags = record.get("tags", ())
        for index, tag in enumerate(tags):
            if tag not in known:
                raise UserError(
                    f"{record.get(WHERE, 'this record')} starts a sentence whose word {index + 1} "
                    f"({words_of(record)[index]!r}) has the tag {tag!r}, which the training file lacks"
                    f"{self.limit_note} ({shorten(classes, 8)}); correct it, or the setting that chooses the tags"
                )
        return np.array([known[tag] for tag in tags] or [UNTAGGED] * len(words_of(record)), np.int32)


def words_of(record: Record) -> list[str]:
    """Return the words of a record."""
    return record["words"] if "words" in record else record["text"].split()


def _sentences(path: str, comment: str) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield runs of lines between blank lines or `_DOCUMENT` lines, each line as its number and columns."""
    lines = []
    for number, line in numbered_lines(epath.Path(path)):
        text = decoded(line, f"{path}:{number}")
        if comment and text.startswith(comment):
            continue
        columns = text.split("\t") if "\t" in text else text.split()
        if text.strip() and columns[0] != _DOCUMENT:
            lines.append((number, columns))
        elif lines:
            yield lines
            lines = []
    if lines:
        yield lines
