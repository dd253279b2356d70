"""RACE: reading exams with four choices per question (Lai et al., 2017, arXiv 1704.04683), original files."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from etils import epath

from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.labeled.choices import ChoiceFormat
from bertjax.data.sources.base import OnBad, check_surrogates, json_of
from bertjax.data.sources.lines import numbered_lines
from bertjax.runtime.errors import UserError

LETTERS = ("A", "B", "C", "D")
_BLANK = "_"


@dataclasses.dataclass(frozen=True)
class Race(ChoiceFormat):
    """One record {`article`, `question`, `A`, `B`, `C`, `D`, `answer`} per question; `answer` is 0 to 3.

    `train` and `heldout` are folders. All .txt files in them and in their subfolders (`RACE/train` has `middle` and
    `high`) are read in path order. The first segment is the article. The second is the question and a choice, or the
    question with the choice filled into its blank `_`, as in `race_utils.py` of google-research/albert.
    """

    kind: str = dataclasses.field(init=False, default="race")
    context: ClassVar[str] = "article"
    question: ClassVar[str] = "question"
    choices: ClassVar[tuple[str, ...]] = LETTERS
    label: ClassVar[str] = "answer"

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        if not path:
            raise UserError("examples.train or examples.heldout is empty; name a folder such as RACE/train for each")
        folder = epath.Path(path).expanduser()
        files = sorted([*folder.glob("*.txt"), *folder.glob("*/*.txt")])
        records = [record for file in files if not file.name.startswith(".") for record in _questions(file, on_bad)]
        if not records:
            raise UserError(f"{path} has no questions in .txt files; name a folder such as RACE/train or RACE/dev/high")
        return records

    def second_segments(self, record: Record) -> list[str]:
        question, choices = record[self.question], self.choices_of(record)
        # Cloze questions have a blank; the others are real questions.
        if _BLANK in question:
            return [question.replace(_BLANK, choice) for choice in choices]
        return [f"{question} {choice}" for choice in choices]


def _questions(file: epath.Path, on_bad: OnBad) -> Iterator[Record]:
    """Yield a file's questions; each file is a JSON object with one article."""
    try:
        article, *lists = _exam(file)
    except UserError as error:
        on_bad(error)
        return
    # Question n, its options and its answer have the same place in the three lists.
    for number, entry in enumerate(zip(*lists)):
        try:
            record = _question(article, number, *entry, str(file))
        except UserError as error:
            on_bad(error)
        else:
            yield record


def _question(article: str, number: int, question: Any, options: Any, answer: Any, file: str) -> Record:
    if not isinstance(question, str):
        raise UserError(f"{file}: questions[{number}] is {question!r}, not a text; correct it")
    if not _are_texts(options):
        raise UserError(f"{file}: options[{number}] must be a list of {len(LETTERS)} texts; correct it")
    if answer not in LETTERS:
        raise UserError(f"{file}: answers[{number}] is {answer!r}; write one of {', '.join(LETTERS)}")
    where, choices = f"{file}: questions[{number}]", dict(zip(LETTERS, options))
    check_surrogates(" ".join([question, *options]), where)
    return {"article": article, "question": question, **choices, "answer": LETTERS.index(answer), WHERE: where}


def _exam(file: epath.Path) -> tuple[str, list, list, list]:
    """Return a file's article, questions, options and answers."""
    whole = _object(file)
    article = whole.get("article")
    if not isinstance(article, str) or not article.strip():
        raise UserError(f"{file} has no text in 'article'; fill it in or remove the file")
    check_surrogates(article, f"{file}: article")
    lists = [whole.get(name) for name in ("questions", "options", "answers")]
    if not all(isinstance(entries, list) for entries in lists) or len(set(map(len, lists))) > 1:
        raise UserError(f"{file} must have lists 'questions', 'options' and 'answers' of one length; correct it")
    return article, *lists


def _are_texts(options: Any) -> bool:
    return isinstance(options, list) and [type(option) for option in options] == [str] * len(LETTERS)


def _object(file: epath.Path) -> dict[str, Any]:
    whole = json_of(b"\n".join(line for _, line in numbered_lines(file)), str(file))
    if not isinstance(whole, dict):
        raise UserError(f"{file} is not a JSON object with an article and its questions; correct or remove the file")
    return whole
