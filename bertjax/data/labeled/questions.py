"""Extractive question answering: SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018) and files in its format."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.framing import most_context, special_tokens, windows
from bertjax.data.labeled import tables
from bertjax.data.labeled.base import WHERE, Classes, LabeledExamples, LabeledFormat, Record, not_empty
from bertjax.data.labeled.tables import member
from bertjax.data.sources.base import OnBad, check_surrogates, object_of, read_each, stop
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import OF_INPUT, setting

# A question as it is read: its location, the question, and the context of its paragraph; None if it has its own.
_Entry = tuple[str, Any, str | None]
_FORM = "give a file in the format of SQuAD 1.1 or 2.0"
_ANSWERS = "{'text': [...], 'answer_start': [...]}"


def _is_flat(entry: Any) -> bool:
    return isinstance(entry, dict) and {"question", "context"} <= entry.keys()


def _entries(whole: Any, path: str, on_bad: OnBad, flat_place: str = "") -> Iterator[_Entry]:
    """Yield the questions of a list of flat entries, or of articles with paragraphs.

    Args:
      whole: what the file holds.
      path: the file.
      on_bad: called with the error for each paragraph without a context.
      flat_place: what precedes the number of a flat entry in its location.
    """
    flat = whole.get("data") if isinstance(whole, dict) else whole
    if isinstance(flat, list) and flat and _is_flat(flat[0]):
        yield from ((f"{path}:{flat_place}[{number}]", entry, None) for number, entry in enumerate(flat))
        return
    for article, article_place in _members(whole, "data", f"{path}:"):
        for paragraph, place in _members(article, "paragraphs", article_place):
            try:
                context = member(paragraph, "context", str, place, _FORM)
            except UserError as error:
                on_bad(error)
            else:
                yield from ((where, question, context) for question, where in _members(paragraph, "qas", place))


def _question(item: _Entry) -> Record:
    """Return a question without its answers."""
    where, entry, context = item
    text = member(entry, "question", str, where, _FORM)
    context = member(entry, "context", str, where, _FORM) if context is None else context
    name = str(entry.get("id", where.rpartition(":")[2]))  # the same in every folder: it is part of the fingerprint
    check_surrogates(name, f"{where}: id")
    return {"id": name, "question": text, "context": context, WHERE: where}


def _answered(item: _Entry) -> Record:
    """Return a question with its answers."""
    record, (where, entry, context) = _question(item), item
    answers = entry.get("answers")
    if isinstance(answers, dict):  # the layout of `datasets`
        texts, starts = (member(answers, name, list, where, f"write {_ANSWERS}") for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise UserError(f"{where} has {len(texts)} answers and {len(starts)} places; write {_ANSWERS}")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
    if context is None:
        is_impossible = answers == [] or entry.get("is_impossible") is True
    else:
        is_impossible = member(entry, "is_impossible", bool, where, _FORM, default=False)
    record["answers"] = []
    for answer, place in () if is_impossible else _members({"answers": answers}, "answers", where):
        text, start = (member(answer, n, kind, place, _FORM) for n, kind in (("text", str), ("answer_start", int)))
        record["answers"].append({"text": text, "answer_start": start})
        # Offsets are often wrong in converted data: counted in bytes, or before a normalization of the text.
        if start < 0 or record["context"][start : start + len(text)] != text:
            raise UserError(f"{where} has the answer {text!r}, which is not in the context at its answer_start; fix it")
    if not record["answers"] and not is_impossible:
        raise UserError(f"{where} has no answer; add one or set is_impossible")
    return record


def _members(holder: Any, name: str, where: str) -> Iterator[tuple[Any, str]]:
    """Yield a list's members with their positions in the JSON structure."""
    inside = where if where.endswith(":") else f"{where}."
    for index, value in enumerate(member(holder, name, list, where, _FORM)):
        yield value, f"{inside}{name}[{index}]"


# Classes of questions.
ANSWER, NO_ANSWER = "answer", "no_answer"
# Stand for an answer position that is unknown, or outside the window.
_UNKNOWN, _ELSEWHERE = -1, -2


@dataclasses.dataclass(frozen=True)
class Questions(LabeledFormat):
    """`[CLS] question [SEP] context [SEP]`, or several windows of the context (Devlin et al., 2019, 4.2 and 4.3).

    Labels: `start` and `end`, the positions of the first and last token of the first answer in the example. Both are
    the position of [CLS] if the question has no answer or the window does not hold all of it, and -1 if the answers are
    unknown. Token labels: `begin` and `stop`, the token's characters context[begin:stop], -1 outside the context;
    `most_context`, whether no other window gives the token more context.

    Attributes:
      stride: tokens from one window's start to the next.
      max_question: maximum number of question tokens; longer questions are cut.
      on_bad_record: `stop` at, or `skip` and count, questions without text or answer and answers that do not occur in
        the context at their `answer_start`.
    """

    kind: str = dataclasses.field(init=False, default="questions")
    stride: int = setting(128, least=1, metadata=OF_INPUT)
    max_question: int = setting(64, least=1, metadata=OF_INPUT)
    inputs: ClassVar[tuple[str, ...]] = ("question", "context")
    labels: ClassVar[tuple[str, ...]] = ("start", "end", "begin", "stop", "most_context")
    token_settings: ClassVar[tuple[str, ...]] = ("max_tokens", "stride", "max_question")

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        """Read questions as {`id`, `question`, `context`, `answers`: [{`text`, `answer_start`}]} with their locations.

        Unanswerable questions (`is_impossible` in SQuAD 2.0) have an empty list of answers.

        Accepts the authors' nested layout and the flat records that the `datasets` library writes: a question, its
        context and {`text`: [...], `answer_start`: [...]}, as JSON lines, as an array, in the list `data`, or as
        Parquet.
        """
        if tables.kind_of(path) != tables.PARQUET and _is_flat(tables.parsed(tables.first_line(path))):
            lines = tables.filled_lines(path)
            entries = read_each(lines, lambda item: (item[0], object_of(item[1], item[0], _FORM), None), on_bad)
        else:
            entries = _entries(tables.value_of(path), path, on_bad)
        return not_empty(read_each(entries, _answered, on_bad), path, "questions")

    def read_unlabeled(self, path: str, classes: Collection[str]) -> list[Record] | None:
        """Read {`id`, `question`, `context`} with locations from a JSON file that has SQuAD's list `data`."""
        whole = tables.parsed(tables.content_of(path)) if tables.kind_of(path) in tables.JSON else None
        if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
            return None
        return not_empty(map(_question, _entries(whole, path, stop, "data")), path, "questions")

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(ANSWER if record["answers"] else NO_ANSWER for record in records)

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        longest = self.longest(seq_len)
        room = longest - special_tokens(2, tokenizer.pair_separators)
        if room <= self.max_question:
            room = f"has no room for a context after examples.max_question={self.max_question}"
            raise UserError(f"an example of {longest} tokens {room}; raise stages.0.seq_len, or lower it")
        questions = tokenizer.encode([record["question"] for record in records])
        # Several questions share a context, which is tokenized only once.
        distinct = list(dict.fromkeys(record["context"] for record in records))
        contexts = dict(zip(distinct, tokenizer.encode_with_offsets(distinct)))
        first, second, spans, best, answers, record_of = [], [], [], [], [], []
        for number, (record, question) in enumerate(zip(records, questions)):
            question = question[: self.max_question]
            ids, spans_of = contexts[record["context"]]
            if not ids:
                raise UserError(f"{record.get(WHERE, 'this record')} has a context without tokens; leave it out")
            bounds = windows(len(ids), room - len(question), self.stride)
            owners = most_context(bounds)
            answer = self._answer(record, spans_of, classes)
            for window, (start, end) in enumerate(bounds):
                first.append(question)
                second.append(ids[start:end])
                spans.append(spans_of[start:end])
                best.append(owners[start:end] == window)
                answers.append(_within(answer, start, end, len(question) + tokenizer.pair_separators))
                record_of.append(number)
        starts, ends = np.array(answers, np.int32).reshape(-1, 2).T
        begins, stops = np.concatenate(spans).astype(np.int32).T
        token_labels = {"begin": (begins, -1), "stop": (stops, -1), "most_context": (np.concatenate(best), False)}
        ragged = add_special_tokens(first, second, Vocabulary.of(tokenizer), {}, token_labels)
        labels = {"start": _places(starts, ragged), "end": _places(ends, ragged)}
        notes = {
            f"cut to {self.max_question} tokens of question": sum(len(ids) > self.max_question for ids in questions),
            f"read in windows of {longest} tokens": int(np.sum(np.bincount(record_of) > 1)),
        }
        return LabeledExamples(
            ragged=dataclasses.replace(ragged, labels=labels),
            records=records,
            record_of=np.array(record_of, np.int64),
            notes={what: count for what, count in notes.items() if count},
        )

    def _answer(self, record: Record, spans: np.ndarray, classes: tuple[str, ...]) -> tuple[int, int] | None:
        """Return the first and last context token of the first answer; (-1, -1) without one, None if unknown."""
        if "answers" not in record:
            return None
        if not record["answers"]:
            if NO_ANSWER not in classes:
                where = record.get(WHERE, "this record")
                raise UserError(f"{where} has no answer, but all questions of the training file have one; leave it out")
            return -1, -1
        answer = record["answers"][0]
        start, stop = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        # Answers may start or end inside a token, so take every token that overlaps the answer.
        touched = np.flatnonzero((spans[:, 0] < stop) & (spans[:, 1] > start))
        return (int(touched[0]), int(touched[-1])) if len(touched) else (-1, -1)


def _within(answer: tuple[int, int] | None, start: int, stop: int, shift: int) -> tuple[int, int]:
    """Return an answer's positions within the text of a window [start, stop) whose context starts at `shift`."""
    if answer is None:
        return _UNKNOWN, _UNKNOWN
    first, last = answer
    if start <= first and last < stop:
        return first - start + shift, last - start + shift
    return _ELSEWHERE, _ELSEWHERE


def _places(in_text: np.ndarray, ragged: Ragged) -> np.ndarray:
    """Map results of `_within` to positions in the examples; int32 [M]."""
    places = np.where(in_text == _ELSEWHERE, ragged.cls_index, in_text + ragged.text_index)
    return np.where(in_text == _UNKNOWN, -1, places).astype(np.int32)
