"""Files of questions in the JSON of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018) as records."""

import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.lines import numbered_lines
from bertjax.errors import UserError


def read(path: str) -> list[Record]:
    """Return the questions, each {`id`, `question`, `context`, `answers`: [{`text`, `answer_start`}]} and its place.

    A question that its context does not answer (`is_impossible` in SQuAD 2.0) has an empty list of answers.

    Args:
      path: a .json file, plain, .gz, .zst or .xz.

    Raises:
      UserError: the file cannot be read, is not in SQuAD's format, or has no questions; the message names the line or
        the place in the structure.
    """
    if not path:
        raise UserError("examples.train or examples.heldout is empty; name a SQuAD .json file for each")
    content = b"\n".join(line for _, line in numbered_lines(epath.Path(path)))
    try:
        whole = json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno} is not JSON ({error.msg}); correct the file") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line} is not UTF-8 ({error.reason}); convert the file") from None
    records = list(_questions(whole, f"{path}:"))
    if not records:
        raise UserError(f"{path} has no questions; give a file with at least one")
    return records


def _questions(whole: Any, where: str) -> Iterator[Record]:
    for article, article_place in _members(whole, "data", where):
        for paragraph, paragraph_place in _members(article, "paragraphs", article_place):
            context = _text(paragraph, "context", paragraph_place)
            for question, place in _members(paragraph, "qas", paragraph_place):
                impossible = _field(question, "is_impossible", bool, place, default=False)
                answers = [] if impossible else [_answer(*answer) for answer in _members(question, "answers", place)]
                if not answers and not impossible:
                    raise UserError(f"{place} has no answer; add one, or set is_impossible")
                yield {
                    "id": str(question.get("id", place)),
                    "question": _text(question, "question", place),
                    "context": context,
                    "answers": answers,
                    WHERE: place,
                }


def _answer(answer: Any, where: str) -> dict[str, str | int]:
    return {"text": _text(answer, "text", where), "answer_start": _field(answer, "answer_start", int, where)}


def _members(holder: Any, name: str, where: str) -> Iterator[tuple[Any, str]]:
    """Yield the members of a list, each with its place."""
    inside = where if where.endswith(":") else f"{where}."
    for index, member in enumerate(_field(holder, name, list, where)):
        yield member, f"{inside}{name}[{index}]"


def _text(holder: Any, name: str, where: str) -> str:
    text = _field(holder, name, str, where)
    if not text.strip():
        raise UserError(f"{where} has no text in {name!r}; fill it in or leave it out")
    return text


def _field(holder: Any, name: str, expected: type, where: str, default: Any = None) -> Any:
    value = holder.get(name, default) if isinstance(holder, dict) else None
    if not isinstance(value, expected):
        kind = {list: "list", str: "text", int: "number", bool: "true or false"}[expected]
        raise UserError(f"{where.rstrip(':')} has no {kind} {name!r}; give a file in the format of SQuAD 1.1 or 2.0")
    return value
