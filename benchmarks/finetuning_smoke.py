"""Synthetic examples of four tasks and a very small random BERT, for `benchmarks/finetuning.py --smoke`."""

import json
import random
from pathlib import Path

from benchmarks.finetuning_cell import SOURCES
from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.interop import huggingface
from bertjax.training.program import Program

_EXAMPLES = 64
_SIZES = {"layers": 2, "width": 32, "heads": 2, "feedforward": 64, "max_positions": 384}
_WORDS = ["abc", "cab", "bad", "fed", "gig", "hid", "jig", "ebb", "add", "beg", "good", "jade"]
# Columns of GLUE's files; a classification and a regression.
_COLUMNS = {
    "MRPC": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "STS-B": ("index", "sentence1", "sentence2", "score"),
}
TASKS = (*_COLUMNS, "CoNLL-2003", "QA")


def write(folder: Path) -> tuple[Path, Path]:
    """Write a folder of transformers and a folder of data; return both."""
    draw, makers = random.Random(0), {"CoNLL-2003": _tagged, "QA": _questions}
    for task in TASKS:
        for file in (SOURCES[task].train, SOURCES[task].heldout):
            path = folder / "data" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(makers[task](draw) if task in makers else _table(task, draw))
    tokens = tokenizer.train([" ".join(_WORDS)] * 9, TokenizerConfig(kind="wordpiece", vocab_size=50))
    config = from_dict({"model": _SIZES, "stages": [{"seq_len": 384}]})
    program = Program(config, tokens.vocab_size)
    made = Export(to_dict(config), program.encoder, program.init_state()["params"], tokens, {})
    huggingface.write(folder / "model", made)
    return folder / "model", folder / "data"


def _words(draw: random.Random, fewest: int, most: int) -> list[str]:
    return draw.choices(_WORDS, k=draw.randint(fewest, most))


def _table(task: str, draw: random.Random) -> str:
    rows = [_row(task, number, draw) for number in range(_EXAMPLES)]
    return "\n".join("\t".join(row) for row in (_COLUMNS[task], *rows)) + "\n"


def _row(task: str, number: int, draw: random.Random) -> tuple[str, ...]:
    texts = [" ".join(_words(draw, 2, 8)) for _ in range(2)]
    if task == "MRPC":
        return str(draw.randrange(2)), "0", "0", *texts
    return str(number), *texts, f"{draw.uniform(0, 5):.3f}"


def _tagged(draw: random.Random) -> str:
    """Return sentences in which `good` is the name of a person; the last one is longer than a row of 128 tokens."""
    sentences = [_words(draw, 2, 8) for _ in range(_EXAMPLES - 1)] + [_words(draw, 200, 200)]
    tags = {"good": "B-PER"}
    return "\n".join("".join(f"{word} {tags.get(word, 'O')}\n" for word in sentence) for sentence in sentences)


def _questions(draw: random.Random) -> str:
    """Return two questions for each context, answered by a word of it. Some contexts exceed a row of 384 tokens."""
    paragraphs = []
    for number in range(_EXAMPLES // 2):
        words = _words(draw, 500, 600) if number % 8 == 0 else _words(draw, 4, 20)
        questions = []
        for of_context in range(2):
            place = draw.randrange(len(words))
            answer = {"text": words[place], "answer_start": len(" ".join([*words[:place], ""]))}
            question = " ".join(_words(draw, 2, 6))
            questions.append({"id": f"{number}-{of_context}", "question": question, "answers": [answer]})
        paragraphs.append({"context": " ".join(words), "qas": questions})
    return json.dumps({"data": [{"paragraphs": paragraphs}]})
