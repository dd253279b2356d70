"""Sentences with one tag per word: CoNLL-2003 columns (Tjong Kim Sang & De Meulder, 2003), CoNLL-U and JSON."""

import dataclasses
import itertools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.framing import most_context, special_tokens, windows
from bertjax.data.labeled import labels, tables, tagged_files
from bertjax.data.labeled.base import WHERE, Classes, LabeledExamples, LabeledFormat, Record, by_record, usable
from bertjax.data.labeled.tagged_files import ColumnFile, Row
from bertjax.data.sources.base import OnBad, read_each
from bertjax.data.text.unicode import count_words, has_unspaced, is_unspaced, is_wide_punctuation
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError, say
from bertjax.runtime.setting import OF_INPUT, OF_RECORDS, PLACE, TRAINING_ONLY, setting

# Tags for tokens without a class: no word starts at the token, or its word is untagged.
NO_WORD, UNTAGGED = -1, -2
# The tagged units: space-separated words, with or without the punctuation around them, or characters, with or without
# the spaces between words.
UNITS = ("words", "words_and_punctuation", "characters", "characters_and_spaces")
WORDS, WORDS_AND_MARKS, CHARACTERS, CHARACTERS_AND_SPACES = UNITS
# A file to predict has one word per line if this share of its lines has the same number of columns, and if blank
# lines end sentences of at least this mean length.
_MOST, _FEWEST_WORDS = 0.9, 2
# A line of a script without spaces is a text, and not a word, if such lines have more characters on average.
_LONGEST_WORD = 5
# Header names for a column of words. Column files have no header, so such a first line is a mistake.
_HEADERS = ("word", "words", "token", "tokens", "form", "text")
# A training file tags characters if at least this share of its words are single characters.
_MOSTLY_CHARACTERS = 0.8
# Letters that each have a period, as in U.S. and e.g. and in the initials of a name.
_ABBREVIATION = re.compile(r"(?:[^\W\d_]\.)+")
_WORD, _EQUAL_MARKS = re.compile(r"\S+"), re.compile(r"(.)\1*")
_CONLLU, _JSON, _COLUMNS = "CoNLL-U", "JSON", "columns"
# The settings that are read with each kind of file.
_SETTINGS = {_CONLLU: ("conllu",), _JSON: ("tag_field",), _COLUMNS: ("word", "tag", "comment")}


@dataclasses.dataclass(frozen=True)
class Tagged(LabeledFormat):
    """Tagged sentences: one word per line, columns separated by tabs or spaces, a blank line after each sentence.

    A file is recognized by its content: columns or JSON lists of words and tags (`bertjax.data.labeled.tagged_files`),
    or CoNLL-U (`conllu`). A record is {`words`: [...], `tags`: [...]}, with tags as in the file (IOB1,
    IOB2, parts of speech). A record to predict may also be {`text`: ...}, which is split into `units`.

    An example is `[CLS] sentence [SEP]`, or a window if the sentence is longer than a row. Words are tokenized as they
    are in running text: the first as at its start, the others by `Tokenizer.encode_inside`. Token labels: `tag`, the
    class of the word that starts at the token, `UNTAGGED` if the word has no tag, `NO_WORD` elsewhere; `word`, that
    word's index in its sentence, -1 elsewhere. Both are set in only one window, the one with the most context around
    the word. Only the first piece represents a word, as in Devlin et al. (2019, 5.3).

    Attributes:
      word: column with the words, from 0, or negative to count from the end (-1).
      tag: column with the tags.
      conllu: tag to read from CoNLL-U: `upos`, `xpos` or a feature such as `feats.Case`; words without it get `_`.
        CoNLL-U files ignore `word` and `tag`, and other files ignore `conllu`.
      tag_field: JSON field with the tags; empty if only one list fits.
      comment: prefix of lines to ignore, such as `##`; empty for none. CoNLL-U comments are always ignored.
      units: the tagged units, one of `UNITS`. They decide how plain texts are split, and whether spaces join words.
        Empty to infer them: `characters` if most training words are single characters, `words_and_punctuation` if
        punctuation at the edge of a word is more often a word of its own, else `words`.
      stride: tokens from one window's start to the next.
      unlabeled: file with extra training texts, one per line, which a teacher tags (`objective.kind=distilled`); empty
        for none.
    """

    kind: str = dataclasses.field(init=False, default="tagged")
    word: int = 0
    tag: int = -1
    conllu: str = setting("upos", metadata=OF_RECORDS)
    tag_field: str = setting("", kw_only=True, metadata=OF_RECORDS)
    comment: str = setting("", kw_only=True, metadata=OF_RECORDS | OF_INPUT)
    units: str = setting("", kw_only=True, choices=("", *UNITS))
    stride: int = setting(64, least=1, metadata=OF_INPUT)
    unlabeled: str = setting("", kw_only=True, metadata=PLACE | TRAINING_ONLY)
    labels: ClassVar[tuple[str, ...]] = ("tag", "word")
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    list_input: ClassVar[str] = "words"
    token_settings: ClassVar[tuple[str, ...]] = ("max_tokens", "stride")
    is_divisible: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.folds:
            raise UserError(f"examples.folds={self.folds} has no effect on examples.kind=tagged; remove it")
        tagged_files.check_conllu_tag(self.conllu)

    def texts_of(self, record: Record) -> list[str]:
        return [" ".join(record["words"])] if "words" in record else super().texts_of(record)

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        return usable(self._parse(path, on_bad), _with_tags, path, on_bad)

    def _parse(self, path: str, on_bad: OnBad) -> list[Record]:
        kind, file = self._kind_of(path)
        # Settings are those of the training file. Another file that is scored may have another form.
        for field in sorted(set().union(*_SETTINGS.values()) - {*_SETTINGS[kind]}) if path == self.train else ():
            if (value := getattr(self, field)) != getattr(Tagged, field):
                raise UserError(f"examples.{field}={value} has no effect on {path}, a file of {kind}; remove it")
        if kind == _CONLLU:
            return tagged_files.read_conllu_tags(path, self.conllu, on_bad)
        if kind == _JSON:
            return tagged_files.read_objects(path, self.tag_field, on_bad)
        if file.sentences:
            self._check_columns(file)
        return list(read_each(file.sentences, lambda sentence: self._record(sentence, file, has_tags=True), on_bad))

    def _kind_of(self, path: str) -> tuple[str, ColumnFile]:
        """Recognize a file by its content."""
        file = ColumnFile(path, self.comment)
        if tables.kind_of(path) == tagged_files.CONLLU:
            return _CONLLU, file
        if tables.holds_objects(path):
            return _JSON, file
        if tables.kind_of(path) == ".csv":
            raise UserError(f"{path} is a .csv; convert it to lines with a word, a tab and its tag, or to JSON lines")
        is_default = (self.word, self.tag) == (Tagged.word, Tagged.tag)
        return (_CONLLU if is_default and file.is_conllu else _COLUMNS), file

    def _check_columns(self, file: ColumnFile) -> None:
        """Raise UserError unless the file has separate columns for words and tags, and no header."""
        file.check_words(self.word)
        file.check_column("tag", self.tag)
        width, [(number, columns), *_] = file.width, file.sentences[0]
        if self.word % width == self.tag % width:
            same = f"{width} columns, so examples.word={self.word} and examples.tag={self.tag} are the same one"
            remedy = "separate columns by tabs or spaces, or set examples.tag"
            raise UserError(f"{file.path}:{number} has {same}; {remedy}")
        if len(columns) == width and columns[self.word].casefold() in _HEADERS:
            tags = {row[-1] for sentence in file.sentences for line, row in sentence if line != number}
            if tags and columns[-1] not in tags:
                looks = f"the tag {columns[-1]!r}, as no other line has, and looks like the names of columns"
                raise UserError(f"{file.path}:{number} has {looks}; remove the line")

    def _record(self, sentence: list[Row], file: ColumnFile, has_tags: bool) -> Record:
        file.check_width(sentence)
        record: Record = {"words": [columns[self.word] for _, columns in sentence]}
        if has_tags:
            record["tags"] = [labels.class_of(columns[self.tag]) for _, columns in sentence]
            for (number, _), word, tag in zip(sentence, record["words"], record["tags"]):
                if not word or not tag:  # KLUE-NER tags spaces, so white space is a valid word
                    raise UserError(f"{file.path}:{number} has no {'tag' if word else 'word'}; fill it in")
        return record | {WHERE: f"{file.path}:{sentence[0][0]}"}

    def read_unlabeled(self, path: str, classes: Collection[str]) -> list[Record] | None:
        """Read sentences that are already split into words, one per line or in lists; None for a file of texts.

        A file holds words if blank lines separate sentences, or if its last column holds the model's tags.
        """
        if self._is_table_of_texts(path):
            return None
        kind, file = self._kind_of(path)
        if kind == _CONLLU:
            return tagged_files.read_conllu(path, lambda words, where: {})
        if kind == _JSON:
            return tagged_files.read_object_words(path)
        if not self._holds_words(file, classes):
            return None
        file.check_words(self.word)
        say(f"{path} is read as {len(file.sentences):,} sentences with a word in each line", file=sys.stderr)
        return [self._record(sentence, file, has_tags=False) for sentence in file.sentences]

    def _is_table_of_texts(self, path: str) -> bool:
        kind = tables.kind_of(path)
        return kind == ".csv" or (kind == ".tsv" and b"text" in tables.first_line(path).split(b"\t"))

    @staticmethod
    def _holds_words(file: ColumnFile, classes: Collection[str]) -> bool:
        """Return whether most lines are a word with its columns rather than a text."""
        rows = [columns for sentence in file.sentences for _, columns in sentence]
        characters = sum(count_words([columns[0] for columns in rows if has_unspaced(columns[0])]))
        if file.width == 1 and characters > _LONGEST_WORD * len(rows):
            return False
        tagged = sum(len(columns) > 1 and labels.class_of(columns[-1]) in classes for columns in rows)
        even = sum(len(columns) == file.width for columns in rows)
        # Blank lines between single lines separate paragraphs of text, not sentences of words.
        has_sentences = 1 < len(file.sentences) <= len(rows) / _FEWEST_WORDS
        return bool(rows) and (tagged >= _MOST * len(rows) or (has_sentences and even >= _MOST * len(rows)))

    def with_answers(self, path: str, tags: Iterator[str], classes: Collection[str]) -> Iterator[str] | None:
        """Yield a file's lines with one tag per word; None unless its lines are words.

        Column files get a new last column. In CoNLL-U, the tag goes where the training file had it.
        """
        if self._is_table_of_texts(path):
            return None
        kind, file = self._kind_of(path)
        if kind == _CONLLU:
            return tagged_files.with_conllu_tags(path, "" if labels.canonical_of(classes) else self.conllu, tags)
        return file.with_column(tags) if kind == _COLUMNS and self._holds_words(file, classes) else None

    def further_train(self) -> list[Record]:
        """Return the untagged records in `unlabeled`."""
        if not self.unlabeled:
            return []
        if tables.kind_of(self.unlabeled) == tagged_files.CONLLU or tables.is_table(self.unlabeled):
            raise UserError(f"examples.unlabeled={self.unlabeled} is not plain text; name a file with a text per line")
        return tables.read_lines(self.unlabeled, "text")

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(itertools.chain.from_iterable(record.get("tags", ()) for record in records))

    def resolved(self, records: list[Record]) -> "Tagged":
        """Return a copy with `units` inferred from the records."""
        if self.units:
            return self
        words = list(itertools.chain.from_iterable(record["words"] for record in records if "words" in record))
        # Digits and Latin words may stay whole in files that otherwise tag characters, hence a share below 1.
        spaces = sum(word.isspace() for word in words)
        single = sum(len(word) == 1 and not word.isspace() for word in words)
        if single >= _MOSTLY_CHARACTERS * max(1, len(words) - spaces):
            units = CHARACTERS_AND_SPACES if spaces else CHARACTERS
        else:
            alone = sum(all(map(_is_mark, word)) for word in words)
            attached = sum(len(_without_marks(word)) > 1 for word in words if not all(map(_is_mark, word)))
            units = WORDS_AND_MARKS if alone > attached else WORDS
        return dataclasses.replace(self, units=units)

    def spans_in(self, text: str) -> list[tuple[int, int]]:
        """Return [start, end) of each tagged unit of a text: words, words and punctuation, or characters.

        With `words_and_punctuation`, the marks at both ends of a space-separated word are words of their own, equal
        ones together. Marks inside of a word stay, and so does the period of `U.S.` and of initials.

        If the units are unknown, as in a converted model, also split around every character in scripts without spaces,
        because such models tokenize in this way.
        """
        if self.units in (CHARACTERS, CHARACTERS_AND_SPACES):
            places = range(len(text) - len(text.lstrip()), len(text.rstrip()))
            has_spaces = self.units == CHARACTERS_AND_SPACES
            return [(place, place + 1) for place in places if has_spaces or not text[place].isspace()]
        spans = [match.span() for match in _WORD.finditer(text)]
        if self.units == WORDS:
            return spans
        if not self.units:
            spans = [part for span in spans for part in _around_unspaced(text, *span)]
        return [(start + a, start + b) for start, stop in spans for a, b in _without_marks(text[start:stop])]

    def _spacing(self, record: Record) -> list[bool]:
        if self.units or "offsets" not in record:
            return self._follows_space(record["words"])
        # A converted model may have learned from running text, as the pipelines of transformers read it.
        return [not start or record["text"][start - 1].isspace() for start, _ in record["offsets"]]

    def _follows_space(self, words: Sequence[str]) -> list[bool]:
        """Return for each word whether a space precedes it in running text."""
        pairs = zip([" ", *words], words)
        if self.units in (CHARACTERS, CHARACTERS_AND_SPACES):
            return [before.isspace() for before, _ in pairs]
        return [not (_is_joined(before[-1]) and _is_joined(word[0])) for before, word in pairs]

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        longest = self.longest(seq_len)
        room = longest - special_tokens(1)
        if room < 1:
            remedy = "raise stages.0.seq_len or examples.max_tokens"
            raise UserError(f"an example of {longest} tokens has no room for a word; {remedy}")
        records = [record if "words" in record else self._with_words(record) for record in records]
        places = [list(zip(record["words"], self._spacing(record))) for record in records]
        # Words repeat, so tokenizing each distinct one once saves most of the work.
        distinct = list(dict.fromkeys(itertools.chain.from_iterable(places)))
        encoded = tokenizer.encode_inside([word for word, _ in distinct], [spaced for _, spaced in distinct])
        # A word without pieces, such as a space, still needs a token that carries its tag.
        pieces = {place: ids or [tokenizer.unk_id] for place, ids in zip(distinct, encoded)}
        # No space precedes the first word: published byte-level BPE has other pieces for it there.
        firsts = list(dict.fromkeys(record["words"][0] for record in records))
        at_start = dict(zip(firsts, tokenizer.encode([word.strip() for word in firsts])))
        texts, tags, words, record_of, cut = [], [], [], [], 0
        for number, record in enumerate(records):
            first, *others = places[number]
            word_ids = [at_start[first[0]] or [tokenizer.unk_id], *map(pieces.get, others)]
            ids = list(itertools.chain.from_iterable(word_ids))
            # Only the first piece of each word carries its number.
            word = np.full(len(ids), -1, np.int32)
            word[np.cumsum([0, *map(len, word_ids[:-1])])] = np.arange(len(word_ids))
            numbers = np.append(self._numbers(record, classes), NO_WORD)  # so that index -1 gives NO_WORD
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

    def _with_words(self, record: Record) -> Record:
        text = record["text"]
        if not (spans := self.spans_in(text)):
            raise UserError(f"{record.get(WHERE, 'this record')} has no words; leave it out")
        return record | {"words": [text[start:end] for start, end in spans], "offsets": list(map(list, spans))}

    def _numbers(self, record: Record, classes: tuple[str, ...]) -> np.ndarray:
        """Return class indices per word, `UNTAGGED` without tags; int32."""
        places = {name: place for place, name in enumerate(classes)}
        words, tags = record["words"], record.get("tags", ())
        numbers = [
            self.index_of(tag, places, record, f"tag {tag!r} at word {number} ({word!r})")
            for number, (word, tag) in enumerate(zip(words, tags), start=1)
        ]
        return np.array(numbers or [UNTAGGED] * len(words), np.int32)


def predicted(
    guesses: np.ndarray, examples: Ragged, records: list[Record], classes: Sequence[str]
) -> list[tuple[Record, list[str]]]:
    """Return (record, its predicted tags) pairs, without records of which a window was not computed.

    Args:
      guesses: the best class of each token, int [n].
      examples: M windows with n tokens, from `Tagged.encode`.
      records: one record per window.
      classes: the tags.
    """
    pairs = []
    for record, own in by_record(examples, records):
        # -1 stays where the window that predicts a word was not evaluated.
        numbers = [-1] * len(record["words"])
        for window in own:
            tokens = slice(*examples.offsets[window : window + 2])
            # Each word is marked in only one window, so no guess is overwritten.
            for word, guess in zip(examples.token_labels["word"][tokens], guesses[tokens]):
                if word >= 0:
                    numbers[word] = int(guess)
        if min(numbers) >= 0:
            pairs.append((record, [classes[number] for number in numbers]))
    return pairs


def answer_of(record: Record, tags: list[str], classes: Sequence[str]) -> Record:
    """Return the answer to a record: `words` and `prediction`, one tag per word.

    That to a text also has `offsets`, [start, end) of each word in the text, and if the tags mark entities `entities`.
    The order of the fields is that of the columns of a file.

    Args:
      record: a record of `LabeledExamples`.
      tags: its predicted tags.
      classes: all tags, from which the scheme is inferred.
    """
    if (offsets := record.get("offsets")) is None:
        return {"words": record["words"], "prediction": tags}
    answer: Record = {"words": record["words"], "offsets": offsets, "prediction": tags}
    if canonical := labels.canonical_of(classes):
        found = sorted(labels.entities(list(map(canonical, tags))), key=lambda entity: entity[1])
        places = [(kind, offsets[first][0], offsets[last][1]) for kind, first, last in found]
        answer["entities"] = [
            {"type": kind, "text": record["text"][start:end], "start": start, "end": end} for kind, start, end in places
        ]
    return answer


def _with_tags(record: Record) -> Record:
    """Return the record; raise UserError if its tags are those of the pieces of words."""
    tags = set(record["tags"])
    others = tags - set(labels.NO_GOLD_NUMBERS)
    ignored = tags - others if all(map(str.isdecimal, others)) else tags & {labels.IGNORED}
    if ignored:
        remedy = "write whole words, and the tag of each"
        raise UserError(f"{record[WHERE]} has the tag {min(ignored)}, which marks ignored pieces; {remedy}")
    return record


def _is_joined(character: str) -> bool:
    """Return whether no space separates a character from others of this kind."""
    return is_unspaced(character) or is_wide_punctuation(character)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def _without_marks(word: str) -> list[tuple[int, int]]:
    """Return [start, end) of a space-separated word without the marks around it, and of these, equal ones together."""
    first = next((place for place, character in enumerate(word) if not _is_mark(character)), len(word))
    last = len(word) - next((count for count, character in enumerate(word[first:][::-1]) if not _is_mark(character)), 0)
    last += _ABBREVIATION.fullmatch(word[first : last + 1]) is not None
    before = [match.span() for match in _EQUAL_MARKS.finditer(word, 0, first)]
    return [*before, *[(first, last)] * (first < last), *(m.span() for m in _EQUAL_MARKS.finditer(word, last))]


def _around_unspaced(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Return the parts of text[start:stop]: characters of scripts without spaces, and what is between them."""
    unspaced = (place for place in range(start, stop) if is_unspaced(text[place]))
    return itertools.pairwise(sorted({start, stop}.union(*((place, place + 1) for place in unspaced))))
