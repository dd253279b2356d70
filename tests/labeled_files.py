"""Synthetic labeled files: the label is determined by a word, so that a very small model can learn it."""

import gzip
import itertools
import json
import random
from pathlib import Path


def file_of(folder: Path, name: str, content: str | bytes) -> str:
    """Write a file, compressed if its name ends in .gz, and return its path."""
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(folder / name)


WORDS = ["abc", "cab", "bad", "fed", "gig", "hid", "jig", "ebb", "add", "beg"]


def sentences(count: int, seed: int = 0) -> list[dict]:
    """{sentence, label, score, other}: `yes` and a high score if the sentence has the word `good`."""
    draw = random.Random(seed)
    records = []
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randint(2, 8))
        is_good = draw.random() < 0.6
        words.insert(draw.randrange(len(words) + 1), "good" if is_good else "jade")
        other = " ".join(draw.choices(WORDS, k=draw.randint(2, 8)))
        score = round((4.0 if is_good else 1.0) + draw.uniform(-0.5, 0.5), 2)
        records.append(
            {"sentence": " ".join(words), "other": other, "label": "yes" if is_good else "no", "score": score}
        )
    return records


def write(folder: Path, train: int = 160, heldout: int = 40) -> tuple[Path, Path]:
    """train.jsonl and dev.jsonl."""
    paths = folder / "train.jsonl", folder / "dev.jsonl"
    for seed, (path, count) in enumerate(zip(paths, (train, heldout))):
        path.write_text("".join(json.dumps(record) + "\n" for record in sentences(count, seed)))
    return paths


PEOPLE, PLACES, QUESTIONS = ["ada", "jed", "gia"], ["cadiz", "gabia", "hebei"], ["bid", "cage", "jig"]


def vocabulary(path: Path) -> Path:
    """A vocab.txt whose pieces are these words."""
    words = [*WORDS, *PEOPLE, *PLACES, *QUESTIONS, "."]
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##a", *words]) + "\n")
    return path


def conll(path: Path, sentences: int, seed: int = 0) -> Path:
    """Words in the first column; in the last `B-PER`, `B-LOC` or `O`, determined by the word."""
    draw, lines = random.Random(seed), []
    for _ in range(sentences):
        words = draw.choices(WORDS + 2 * PEOPLE + PLACES, k=draw.randint(2, 7))
        tags = ["B-PER" if word in PEOPLE else "B-LOC" if word in PLACES else "O" for word in words]
        lines += [*(f"{word} X {tag}" for word, tag in zip(words, tags)), ""]
    path.write_text("\n".join(lines))
    return path


def conllu(path: Path, sentences: int, seed: int = 0) -> Path:
    """CoNLL-U with comments, multiword tokens and empty nodes; the part of speech is determined by the word."""
    draw, lines = random.Random(seed), []
    for sentence in range(sentences):
        words = draw.choices(WORDS + 2 * PEOPLE + PLACES, k=draw.randint(2, 7))
        lines += [f"# sent_id = {sentence}", "1-2\t" + "".join(words[:2]) + "\t_" * 8]
        for number, word in enumerate(words, start=1):
            tag = "PROPN" if word in PEOPLE + PLACES else "VERB" if word in WORDS[:5] else "NOUN"
            lines.append(f"{number}\t{word}\t{word}\t{tag}" + "\t_" * 6)
        lines += ["7.1\tgood\tgood\tADJ" + "\t_" * 6, ""]
    path.write_text("\n".join(lines))
    return path


def squad(path: Path, contexts: int, seed: int = 0, impossible: bool = False) -> Path:
    """`bid` asks for the only person of a context, `cage` for the only place; `jig` has no answer."""
    draw, paragraphs = random.Random(seed), []
    for number in range(contexts):
        person, place = draw.choice(PEOPLE), draw.choice(PLACES)
        words = draw.sample([person, place, *draw.sample(WORDS, 3)], 5)
        context, answers = " ".join(words) + ".", {"bid": person, "cage": place}
        questions = [
            {"id": f"{number} {ask}", "question": ask, "answers": [{"text": text, "answer_start": context.index(text)}]}
            for ask, text in answers.items()
        ]
        if impossible:
            questions.append({"id": f"{number} jig", "question": "jig", "answers": [], "is_impossible": True})
        paragraphs.append({"context": context, "qas": questions})
    path.write_text(json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


def similar(path: Path, pairs: int, seed: int = 0) -> Path:
    """{one, two, label, score}: texts that have the same person score 5, others 0."""
    draw, records = random.Random(seed), []
    for _ in range(pairs):
        people = [draw.choice(PEOPLE[:2]) for _ in range(2)]
        one, two = (" ".join([*draw.choices(WORDS, k=draw.randint(1, 4)), person]) for person in people)
        alike = people[0] == people[1]
        records.append({"one": one, "two": two, "label": "same" if alike else "other", "score": 5.0 if alike else 0.0})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def repeated(path: Path, pairs: int, seed: int = 0) -> Path:
    """{one, two}: both texts of a pair have the same two words, in any order, among random words."""
    draw, lines, keys = random.Random(seed), [], list(itertools.combinations(WORDS, 2))
    for _ in range(pairs):
        key = draw.choice(keys)
        one, two = (" ".join(draw.sample([*key, *draw.choices(PEOPLE + PLACES, k=3)], 5)) for _ in range(2))
        lines.append(json.dumps({"one": one, "two": two}) + "\n")
    path.write_text("".join(lines))
    return path


def choices(path: Path, records: int, seed: int = 0) -> Path:
    """{context, choices, label}: of three texts the right one has a person, the others have places."""
    draw, lines = random.Random(seed), []
    for _ in range(records):
        label = draw.randrange(3)
        clues = [draw.choice(PEOPLE if number == label else PLACES) for number in range(3)]
        texts = [" ".join(draw.sample([word, draw.choice(WORDS)], 2)) for word in clues]
        context = " ".join(draw.choices(WORDS, k=draw.randint(1, 2)))
        lines.append(json.dumps({"context": context, "choices": texts, "label": label}) + "\n")
    path.write_text("".join(lines))
    return path
