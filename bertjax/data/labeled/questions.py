"""Extractive question answering: SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018) and files in its format."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.framing import most_context, special_tokens, windows
from bertjax.data.labeled import json_objects
from bertjax.data.labeled.base import WHERE, Classes, LabeledExamples, LabeledFormat, Record, not_empty
from bertjax.data.sources.base import OnBad, check_surrogates, object_of, read_each, stop
from bertjax.data.sources.lines import numbered_lines
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import OF_INPUT, setting


def _is_flat(entry: Any) -> bool:
    return isinstance(entry, dict) and {"question", "context"} <= entry.keys()


def _flat(item: tuple[str, Any]) -> Record:
    """Return the question of a flat entry, or of a line with one.

    Args:
      item: the location, and the entry or line.
    """
    where, entry = item
    if isinstance(entry, bytes):
        entry = object_of(entry, where, "{'question': ...}")
    context = _text(entry, "context", where)
    answers = _nested_answers(entry.get("answers"), where)
    impossible = not answers or entry.get("is_impossible") is True
    return _question(entry | {"answers": answers, "is_impossible": impossible}, context, where)


def _nested_answers(answers: Any, where: str) -> list[dict[str, Any]]:
    """Convert answers from the layout of `datasets`, {`text`: [...], `answer_start`: [...]}, to the authors' list."""
    if isinstance(answers, list):
        return answers
    columns = [answers.get(name) for name in ("text", "answer_start")] if isinstance(answers, dict) else []
    if not columns or not all(isinstance(column, list) for column in columns) or len(columns[0]) != len(columns[1]):
        shape = "{'text': [...], 'answer_start': [...]}"
        raise UserError(f"{where} has the answers {str(answers)[:40]!r}; write {shape} with lists of one length")
    return [{"text": text, "answer_start": start} for text, start in zip(*columns)]


def _questions(whole: Any, where: str, on_bad: OnBad, make: Callable[[Any, str, str], Record]) -> Iterator[Record]:
    for article, article_place in _members(whole, "data", where):
        for paragraph, paragraph_place in _members(article, "paragraphs", article_place):
            try:
                context = _text(paragraph, "context", paragraph_place)
            except UserError as error:
                on_bad(error)
                continue
            members = _members(paragraph, "qas", paragraph_place)
            yield from read_each(members, lambda item, context=context: make(item[0], context, item[1]), on_bad)


def _question(question: Any, context: str, where: str) -> Record:
    impossible = _field(question, "is_impossible", bool, where, default=False)
    answers = []
    for answer, place in () if impossible else _members(question, "answers", where):
        text, start = _text(answer, "text", place), _field(answer, "answer_start", int, place)
        answers.append({"text": text, "answer_start": start})
        # Offsets are often wrong in converted data: counted in bytes, or before a normalization of the text.
        if start < 0 or context[start : start + len(text)] != text:
            raise UserError(f"{where} has the answer {text!r}, which is not in the context at its answer_start; fix it")
    if not answers and not impossible:
        raise UserError(f"{where} has no answer; add one or set is_impossible")
    return _unanswered(question, context, where) | {"answers": answers}


def _unanswered(question: Any, context: str, where: str) -> Record:
    """Return a question without its answers."""
    text, name = _text(question, "question", where), str(question.get("id", where))
    check_surrogates(name, f"{where}: id")
    return {"id": name, "question": text, "context": context, WHERE: where}


def _members(holder: Any, name: str, where: str) -> Iterator[tuple[Any, str]]:
    """Yield a list's members with their positions in the JSON structure."""
    inside = where if where.endswith(":") else f"{where}."
    for index, member in enumerate(_field(holder, name, list, where)):
        yield member, f"{inside}{name}[{index}]"


def _text(holder: Any, name: str, where: str) -> str:
    text = _field(holder, name, str, where)
    if not text.strip():
        raise UserError(f"{where} has no text in {name!r}; fill it in or leave it out")
    check_surrogates(text, f"{where}: {name}")
    return text


def _field(holder: Any, name: str, expected: type, where: str, default: Any = None) -> Any:
    value = holder.get(name, default) if isinstance(holder, dict) else None
    if not isinstance(value, expected):
        kind = {list: "list", str: "text", int: "number", bool: "true or false"}[expected]
        raise UserError(f"{where.rstrip(':')} has no {kind} {name!r}; give a file in the format of SQuAD 1.1 or 2.0")
    return value


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
        is_json = json_objects.kind_of(path) != json_objects.PARQUET
        if is_json and _is_flat(json_objects.parsed(json_objects.first_line(path)[1])):
            lines = ((f"{path}:{number}", line) for number, line in numbered_lines(path) if line.strip())
            records = read_each(lines, _flat, on_bad)
        else:
            whole = json_objects.value_of(path)
            flat = whole if isinstance(whole, list) else whole.get("data") if isinstance(whole, dict) else None
            if isinstance(flat, list) and flat and _is_flat(flat[0]):
                records = read_each([(f"{path}:[{number}]", entry) for number, entry in enumerate(flat)], _flat, on_bad)
            else:
                records = _questions(whole, f"{path}:", on_bad, _question)
        return not_empty(records, path, "questions")

    def read_unlabeled(self, path: str, classes: Collection[str]) -> list[Record] | None:
        """Read {`id`, `question`, `context`} with locations from a JSON file that has SQuAD's list `data`."""
        if json_objects.kind_of(path) not in json_objects.SUFFIXES:
            return None
        whole = json_objects.parsed(json_objects.content_of(path))
        if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
            return None
        if whole["data"] and _is_flat(whole["data"][0]):
            places = ((entry, f"{path}:data[{number}]") for number, entry in enumerate(whole["data"]))
            return [_unanswered(entry, _text(entry, "context", where), where) for entry, where in places]
        return not_empty(_questions(whole, f"{path}:", stop, _unanswered), path, "questions")

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
