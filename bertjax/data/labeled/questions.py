"""Extractive question answering: SQuAD and files in its format."""

import dataclasses
from collections import Counter
from collections.abc import Collection
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.framing import most_context, special_tokens, windows
from bertjax.data.labeled import json_objects, squad
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record
from bertjax.data.sources.base import OnBad
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError

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
    stride: int = 128
    max_question: int = 64
    labels: ClassVar[tuple[str, ...]] = ("start", "end", "begin", "stop", "most_context")
    token_settings: ClassVar[tuple[str, ...]] = ("max_tokens", "stride", "max_question")

    def __post_init__(self):
        super().__post_init__()
        for field in ("stride", "max_question"):
            if getattr(self, field) < 1:
                raise UserError(f"examples.{field}={getattr(self, field)} must be at least 1 token")

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("question", "context")

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        return squad.read(path, on_bad)

    def read_unlabeled(self, path: str, classes: Collection[str]) -> list[Record] | None:
        return squad.read_questions(path) if json_objects.kind_of(path) in json_objects.SUFFIXES else None

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(ANSWER if record["answers"] else NO_ANSWER for record in records)

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        longest = self.longest(seq_len)
        room = longest - special_tokens(2, tokenizer.pair_separators)
        if room <= self.max_question:
            raise UserError(
                f"an example of {longest} tokens has no room for a context after a question of examples.max_question="
                f"{self.max_question} tokens; raise stages.0.seq_len, or lower examples.max_question"
            )
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
            for window, (start, stop) in enumerate(bounds):
                first.append(question)
                second.append(ids[start:stop])
                spans.append(spans_of[start:stop])
                best.append(owners[start:stop] == window)
                answers.append(_within(answer, start, stop, len(question) + tokenizer.pair_separators))
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
