"""Reader for SQuAD 1.1 and 2.0 JSON (Rajpurkar et al., 2016 and 2018)."""

from collections.abc import Callable, Iterator
from typing import Any

from etils import epath

from bertjax.data.labeled import json_objects
from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.base import OnBad, check_surrogates, json_of, object_of, read_each, stop
from bertjax.data.sources.lines import numbered_lines
from bertjax.runtime.errors import UserError


def read(path: str, on_bad: OnBad = stop) -> list[Record]:
    """Read questions as {`id`, `question`, `context`, `answers`: [{`text`, `answer_start`}]} with their locations.

    Unanswerable questions (`is_impossible` in SQuAD 2.0) have an empty list of answers.

    Accepts the authors' nested layout and the flat records that the `datasets` library writes: a question, its context
    and {`text`: [...], `answer_start`: [...]}, as JSON lines, as an array or in the list `data`.

    Args:
      path: a .json or .jsonl file, plain, .gz, .zst or .xz.
      on_bad: called with the error for each bad context or question; if it returns, that one is dropped.

    Raises:
      UserError: the file cannot be read, is not in SQuAD's format, or no question is left; the message names the line
        or the position in the JSON structure.
    """
    lines = [(f"{path}:{number}", line) for number, line in numbered_lines(epath.Path(path))]
    filled = [(where, line) for where, line in lines if line.strip()]
    if filled and _is_flat(json_objects.parsed(filled[0][1])):
        records = list(read_each(filled, _flat, on_bad))
    else:
        whole = json_of(b"\n".join(line for _, line in lines), path)
        flat = whole if isinstance(whole, list) else whole.get("data") if isinstance(whole, dict) else None
        if isinstance(flat, list) and flat and _is_flat(flat[0]):
            places = [(f"{path}:[{number}]", entry) for number, entry in enumerate(flat)]
            records = list(read_each(places, _flat, on_bad))
        else:
            records = list(_questions(whole, f"{path}:", on_bad, _question))
    if not records:
        raise UserError(f"{path} has no questions; give a file with at least one")
    return records


def read_questions(path: str) -> list[Record] | None:
    """Read the questions to predict, {`id`, `question`, `context`} with locations; answers are ignored.

    Returns:
      The questions; None for files without SQuAD's list `data`, such as JSON lines of questions.

    Raises:
      UserError: the file cannot be read, a question is bad, or there is none.
    """
    whole = json_objects.parsed(json_objects.content_of(path))
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
        return None
    if whole["data"] and _is_flat(whole["data"][0]):
        places = ((entry, f"{path}:data[{number}]") for number, entry in enumerate(whole["data"]))
        records = [_unanswered(entry, _text(entry, "context", where), where) for entry, where in places]
    else:
        records = list(_questions(whole, f"{path}:", stop, _unanswered))
    if not records:
        raise UserError(f"{path} has no questions; give a file with at least one")
    return records


def _is_flat(entry: Any) -> bool:
    return isinstance(entry, dict) and {"question", "context"} <= entry.keys()


def _flat(item: tuple[str, Any]) -> Record:
    """Return the question of a flat entry, or of a line with one.

    Args:
      item: the location, and the entry or line.
    """
    where, entry = item
    if isinstance(entry, bytes):
        entry = object_of(entry, where, "question")
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
        raise UserError(
            f"{where} has the answers {str(answers)[:40]!r}; write {{'text': [...], 'answer_start': [...]}} with lists "
            "of one length"
        )
    return [{"text": text, "answer_start": start} for text, start in zip(*columns)]


def _questions(whole: Any, where: str, on_bad: OnBad, make: Callable[[Any, str, str], Record]) -> Iterator[Record]:
    for article, article_place in _members(whole, "data", where):
        if isinstance(article, dict) and "qas" in article and "paragraphs" not in article:  # as in KorQuAD 2
            article, article_place = {"paragraphs": [article]}, f"{article_place}:"
        for paragraph, paragraph_place in _members(article, "paragraphs", article_place):
            try:
                context = _text(paragraph, "context", paragraph_place)
            except UserError as error:
                on_bad(error)
                continue
            members = _members(paragraph, "qas", paragraph_place)
            yield from read_each(members, lambda item, context=context: make(item[0], context, item[1]), on_bad)


def _question(question: Any, context: str, where: str) -> Record:
    if isinstance(question, dict) and "answer" in question and "answers" not in question:
        raise UserError(
            f"{where} has one 'answer', as KorQuAD 2 does, whose contexts are pages of HTML; give a file in the format "
            "of SQuAD 1.1 or 2.0, such as KorQuAD 1"
        )
    impossible = _field(question, "is_impossible", bool, where, default=False)
    answers = [] if impossible else [_answer(*answer) for answer in _members(question, "answers", where)]
    if not answers and not impossible:
        raise UserError(f"{where} has no answer; add one or set is_impossible")
    for answer in answers:
        start, text = answer["answer_start"], answer["text"]
        # Offsets are often wrong in converted data: counted in bytes, or before a normalization of the text.
        if start < 0 or context[start : start + len(text)] != text:
            raise UserError(
                f"{where} has the answer {text!r}, which is not in the context at its answer_start; correct it"
            )
    return _unanswered(question, context, where) | {"answers": answers}


def _unanswered(question: Any, context: str, where: str) -> Record:
    """Return a question without its answers."""
    text, name = _text(question, "question", where), str(question.get("id", where))
    check_surrogates(name, f"{where}: id")
    return {"id": name, "question": text, "context": context, WHERE: where}


def _answer(answer: Any, where: str) -> dict[str, str | int]:
    return {"text": _text(answer, "text", where), "answer_start": _field(answer, "answer_start", int, where)}


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
