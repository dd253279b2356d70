"""Made-up labelled sentences: the label follows from a word, so that a very small model can learn it."""

import json
import random
from pathlib import Path

WORDS = ["abc", "cab", "bad", "fed", "gig", "hid", "jig", "ebb", "add", "beg"]


def sentences(count: int, seed: int = 0) -> list[dict]:
    """{sentence, label, score, other}: `yes` and a high score where the sentence has the word `good`."""
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
