"""For `benchmarks/finetuning.py --smoke`: made-up examples in GLUE's columns, and a very small random BERT."""

import random
from pathlib import Path

from bertjax.config import from_dict
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.export import Export
from bertjax.interop import huggingface
from bertjax.training.program import Program

_EXAMPLES = 64
_SIZES = {"layers": 2, "width": 32, "heads": 2, "feedforward": 64, "max_positions": 128}
_WORDS = ["abc", "cab", "bad", "fed", "gig", "hid", "jig", "ebb", "add", "beg", "good", "jade"]
# Task -> columns of its files; a classification and a regression.
TASKS = {
    "MRPC": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "STS-B": ("index", "sentence1", "sentence2", "score"),
}


def write(folder: Path) -> tuple[Path, Path]:
    """Returns a folder of transformers and one of GLUE."""
    draw = random.Random(0)
    for task in TASKS:
        (folder / "glue" / task).mkdir(parents=True)
        for split in ("train", "dev"):
            rows = [_row(task, number, draw) for number in range(_EXAMPLES)]
            lines = ["\t".join(row) for row in (TASKS[task], *rows)]
            (folder / "glue" / task / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    tokens = tokenizer.train([" ".join(_WORDS)] * 9, TokenizerConfig(kind="wordpiece", vocab_size=50))
    config = from_dict({"model": _SIZES, "stages": [{"seq_len": 128}]})
    program = Program(config, tokens.vocab_size)
    made = Export(config, program.encoder, program.init_state()["params"], tokens, {})
    huggingface.write(folder / "model", made)
    return folder / "model", folder / "glue"


def _row(task: str, number: int, draw: random.Random) -> tuple[str, ...]:
    texts = [" ".join(draw.choices(_WORDS, k=draw.randint(2, 8))) for _ in range(2)]
    if task == "MRPC":
        return str(draw.randrange(2)), "0", "0", *texts
    return str(number), *texts, f"{draw.uniform(0, 5):.3f}"
