"""The recipe for labeled files beside the usual first attempts: TF-IDF, and transformers' Trainer by default.

    python -m benchmarks.classify --model=HF_FOLDER --data=FOLDER --tasks=XQuAD,SST-2,CoNLL-2003 --seeds=3 \
        --out=benchmarks/results/classify.jsonl --torch-python=OTHER_VENV/bin/python
    python -m benchmarks.classify --model=HF_FOLDER --data=FOLDER --tasks=SST-2,NSMC --per-class=8,32 --seeds=3 \
        --arms=simple,recipe,few --out=benchmarks/results/classify_few.jsonl
    python -m benchmarks.classify --out=benchmarks/results/classify.jsonl --markdown

Nothing is tuned for a task. The arm `recipe` is `configs/finetune/classify.py` as it is, except that it evaluates only
at the end. So are `cls`, which is `classify.py:cls`, and `few`, which is `few.py`. `trainer` has the defaults of
`TrainingArguments`: 3 epochs, batch 8, 5e-5, linear decay, no warm-up, no weight decay. `simple` needs no network:
TF-IDF of words with logistic regression (for numbers ridge regression, for tags the most frequent tag of each word),
scikit-learn's defaults. All arms get the same records and the same scoring. With `--per-class` there are only so many
training records of each class, which the seed draws.
XQuAD is a task of 48 classes: which article is a question about? A fifth of the questions of each article is held out.
FOLDER is described in benchmarks/README.md. A restarted command continues with the missing runs.
"""

import argparse
import dataclasses
import gzip
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import resumable
from benchmarks.commands import call
from benchmarks.resumable import Line, finished
from benchmarks.train_step import machine, threads
from bertjax.analysis.labeled_files import COLUMNS
from bertjax.cli import convert
from bertjax.data.labeled.base import Record
from bertjax.data.labeled.split import limited
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.objectives.finetuning import answers
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

ARMS = ("simple", "recipe", "trainer", "cls", "few")
# {arm: name of its column}
COLUMNS_OF_ARMS = {"simple": "simple", "trainer": "Trainer, defaults", "recipe": "recipe", "cls": "recipe, `cls`"}
COLUMNS_OF_FEW = {"simple": "simple", "recipe": "`classify.py`", "few": "`few.py`"}
RECIPES = {"recipe": "classify.py", "cls": "classify.py:cls", "few": "few.py"}
METRICS = {"STS-B": "spearman", "CoNLL-2003": "f1"}
# {task: (training file, held-out file, records of the training file; 0 for all)}
FILES = {
    "XQuAD": ("qa/xquad.en.json", "", 0),
    "SST-2": ("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 2000),
    "MRPC": ("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", 2000),
    "STS-B": ("glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", 2000),
    "NSMC": ("nsmc/train.tsv", "nsmc/test.tsv", 2000),
    "CoNLL-2003": ("conll2003/train.txt", "conll2003/valid.txt", 1000),
}
# What `TrainingArguments` and BERT's configuration have by default.
DEFAULTS = {
    "epochs": 3.0,
    "examples": 8,
    "learning_rate": 5e-5,
    "warmup_share": 0.0,
    "b1": 0.9,
    "b2": 0.999,
    "epsilon": 1e-8,
    "weight_decay": 0.0,
    "clip_norm": 1.0,
    "seq_len": 128,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "stride": 64,
}
# Held-out files are cut to so many random records, because the machine of the committed figures is slow.
HELDOUT_LIMIT = 1000


def records_of(
    task: str, data: Path, folder: Path, all_train: bool = False
) -> tuple[LabeledText | Tagged, list[Record], list[Record]]:
    """Return the format of a task with files in `folder`, and the records of both files."""
    train, heldout, limit = FILES[task]
    limit = 0 if all_train else limit
    if task == "XQuAD":
        paths = _questions(_file(data / train), folder)
        format = LabeledText(text="text", **paths)
    elif task == "CoNLL-2003":
        format = Tagged(
            train=_file(data / train), heldout=_file(data / heldout), tag=1
        )  # the last column is another one
    else:
        text, pair, label = COLUMNS.get(task, ("document", "", "label"))
        format = LabeledText(
            train=_file(data / train), heldout=_file(data / heldout), text=text, pair=pair, label=label,
            on_bad_record="skip",
        )  # fmt: skip
    train, heldout = (
        limited(format.read(path), dataclasses.replace(format, limit=count))
        for path, count in ((format.train, limit), (format.heldout, HELDOUT_LIMIT))
    )
    return format, train, heldout


def drawn(records: list[Record], label: str, per_class: int, seed: int) -> list[Record]:
    """Return `per_class` random records of each class in random order, or all of a class that has fewer."""
    shuffled = [records[index] for index in np.random.default_rng(seed).permutation(len(records))]
    taken: Counter[Any] = Counter()
    chosen = []
    for record in shuffled:
        if taken[record[label]] < per_class:
            taken[record[label]] += 1
            chosen.append(record)
    return chosen


def _questions(path: str, folder: Path) -> dict[str, str]:
    """Write the questions of XQuAD with the number of their article; each fifth one is held out."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    lines: dict[str, list[str]] = {"train": [], "heldout": []}
    for number, article in enumerate(articles):
        questions = [question["question"] for part in article["paragraphs"] for question in part["qas"]]
        for place, text in enumerate(questions):
            split = "train" if place % 5 else "heldout"
            lines[split].append(json.dumps({"text": text, "label": f"article {number:02}"}) + "\n")
    paths = {split: folder / f"{split}.jsonl" for split in lines}
    for split, path in paths.items():
        path.write_text("".join(lines[split]))
    return {split: str(path) for split, path in paths.items()}


def _file(path: Path) -> str:
    packed = path.with_name(f"{path.name}.gz")
    return str((packed if packed.exists() and not path.exists() else path).absolute())


class Job:
    """A task for all arms: the records, written as files of bertjax and as a job of `benchmarks/arms/trainer.py`.

    Args:
      task: name of the task.
      data: folder of the tasks.
      folder: where to write the files.
      per_class: training records of each class, drawn from all of them; 0 takes the records of `FILES`.
      seed: seed of that draw.
    """

    def __init__(self, task: str, data: Path, folder: Path, per_class: int = 0, seed: int = 0):
        self.task = task
        self.format, self.train, self.heldout = records_of(task, data, folder, all_train=per_class > 0)
        self.is_tagged, self.is_number = isinstance(self.format, Tagged), task == "STS-B"
        if per_class:
            self.train = drawn(self.train, self.format.label, per_class, seed)
        counts = {} if self.is_number else self.format.class_counts(self.train)
        self.classes = tuple(sorted(counts))
        self.files = {split: self._write(folder, split) for split in ("train", "heldout")}

    def labels(self, split: str) -> list[Any]:
        """Return the labels of a file: names, numbers, or the tags of each sentence."""
        if self.is_tagged:
            return [record["tags"] for record in getattr(self, split)]
        values = [record[self.format.label] for record in getattr(self, split)]
        return [float(value) if self.is_number else str(value) for value in values]

    def texts(self, split: str) -> list[list[str]]:
        """Return the one or two texts of each record."""
        return [[record[name] for name in self.format.inputs] for record in getattr(self, split)]

    def _write(self, folder: Path, split: str) -> Path:
        if self.is_tagged:
            path = folder / f"{split}.chosen.txt"
            sentences = ("\n".join(map("\t".join, zip(r["words"], r["tags"]))) for r in getattr(self, split))
            path.write_text("\n\n".join(sentences) + "\n")
            return path
        path, names = folder / f"{split}.chosen.jsonl", (*self.format.inputs, self.format.label)
        with open(path, "w", encoding="utf-8") as file:
            for record in getattr(self, split):
                file.write(json.dumps({name: record[name] for name in names}) + "\n")
        return path

    def score(self, predictions: list[Any]) -> float:
        """Return F1 of entities, Spearman's correlation or accuracy on the held-out records."""
        labels = self.labels("heldout")
        if self.is_tagged:
            return answers.entity_scores(labels, predictions)["f1"]
        if self.is_number:
            from scipy.stats import spearmanr

            return float(spearmanr(labels, predictions).statistic)
        return float(np.mean([label == guess for label, guess in zip(labels, predictions, strict=True)]))

    def majority(self) -> float | None:
        """Return the score of the most frequent class of the training file; None for numbers."""
        if self.is_number:
            return None
        [(guess, _)] = self.format.class_counts(self.train).most_common(1)
        return self.score([[guess] * len(r["words"]) if self.is_tagged else guess for r in self.heldout])


def simple(job: Job) -> list[Any]:
    """Predict without a network, by scikit-learn's defaults."""
    if job.is_tagged:
        counts: dict[str, Counter] = defaultdict(Counter)
        for record in job.train:
            for word, tag in zip(record["words"], record["tags"]):
                counts[word][tag] += 1
        best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        return [[best.get(word, "O") for word in record["words"]] for record in job.heldout]
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline

    texts = {split: [" ".join(parts) for parts in job.texts(split)] for split in ("train", "heldout")}
    model = make_pipeline(TfidfVectorizer(), Ridge() if job.is_number else LogisticRegression(max_iter=1000))
    return model.fit(texts["train"], job.labels("train")).predict(texts["heldout"]).tolist()


def recipe(job: Job, arm: str, seed: int, export: Path, folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """Train with the command that users run; return the predictions and figures."""
    variant = ":tags" if job.is_tagged else ":regression" if job.is_number else ""
    if variant and arm != "recipe":
        raise UserError(f"--arms has {arm!r}, which has no classes to predict on {job.task}; leave one of them out")
    settings = {f"examples.{split}": path for split, path in job.files.items()}
    if not job.is_tagged:
        fields = dict(zip(("text", "pair"), job.format.inputs)) | {"label": job.format.label}
        settings |= {f"examples.{name}": value for name, value in fields.items()}
    overrides = [f"tasks.classify.{name}={value}" for name, value in settings.items()]
    overrides += [f"init_from={export}", f"seed={seed}", "runtime.keep_best=0", f"eval.every={10**9}"]
    flags = ["--platform=cpu", f"--workdir={folder}", *(f"--config.{override}" for override in overrides)]
    call("bertjax.train", f"--config=configs/finetune/{RECIPES[arm]}{variant}", *flags)
    names = (*job.format.inputs, "words")
    predicted = defaultdict(list)
    for line in (folder / "predictions" / "heldout.jsonl").read_text().splitlines():
        record = json.loads(line)
        predicted[_key(record, names)].append(record["prediction"])
    summary = json.loads((folder / "summary.json").read_text())
    config = json.loads((folder / "config.json").read_text())["config"]
    return [predicted[_key(record, names)].pop(0) for record in job.heldout], {
        "updates": summary["steps"],
        "learning_rate": config["optimizer"]["learning_rate"],
        "train_seconds": summary["accounts"]["step"] + summary["accounts"]["data_wait"],
    }


def _key(record: Record, names: tuple[str, ...]) -> str:
    return json.dumps([record.get(name) for name in names])


def trainer(job: Job, seed: int, model: Path, folder: Path, python: str) -> tuple[list[Any], dict[str, Any]]:
    """Train with transformers' defaults; return the predictions and figures."""
    number = {name: index for index, name in enumerate(job.classes)}

    def inputs(split: str) -> list[dict]:
        if job.is_tagged:
            return [{"words": record["words"]} for record in getattr(job, split)]
        return [{"texts": texts} for texts in job.texts(split)]

    def label(value: Any) -> dict:
        if job.is_tagged:
            return {"tags": [number[tag] for tag in value]}
        return {"label": value if job.is_number else number[value]}

    settings = DEFAULTS | {
        "kind": job.format.kind,
        "model": str(model.absolute()),
        "seed": seed,
        "threads": threads(),
        "classes": len(job.classes),
        "train": [given | label(value) for given, value in zip(inputs("train"), job.labels("train"))],
        "heldout": inputs("heldout"),
    }
    (folder / "job.json").write_text(json.dumps(settings))
    call("benchmarks.arms.trainer", str(folder / "job.json"), python=python)
    predictions = json.loads((folder / "predictions.json").read_text())
    figures = json.loads((folder / "figures.json").read_text())
    if job.is_tagged:
        predictions = [[job.classes[tag] for tag in tags] for tags in predictions]
    elif not job.is_number:
        predictions = [job.classes[guess] for guess in predictions]
    return predictions, figures


def measure(task: str, seed: int, arm: str, per_class: int, args: argparse.Namespace) -> Line:
    """Run one arm and return its line of the file."""
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        job, figures = Job(task, args.data, folder, per_class, seed), {}
        if arm == "simple":
            predictions = simple(job)
        elif arm in RECIPES:
            convert.run(args.model, folder / "export")
            predictions, figures = recipe(job, arm, seed, folder / "export", folder / "run")
        else:
            predictions, figures = trainer(job, seed, args.model, folder, args.torch_python)
        score = job.score(predictions)
        print(f"{METRICS.get(task, 'accuracy')} {score:.4f}", file=sys.stderr)
        return {
            "task": task,
            "arm": arm,
            "seed": seed,
            **({"per_class": per_class} if per_class else {}),
            "metric": METRICS.get(task, "accuracy"),
            "score": score,
            "majority": job.majority(),
            "classes": len(job.classes),
            "train_records": len(job.train),
            "heldout_records": len(job.heldout),
            "wall_seconds": time.monotonic() - began,
            **figures,
            "machine": machine(),
        }


def missing(
    tasks: Sequence[str], arms: Sequence[str], seeds: int, sizes: Sequence[int], lines: list[Line]
) -> list[tuple[str, int, str, int]]:
    """Return (task, seed, arm, examples of a class) of the runs without a line.

    The arm `simple` has seed 0 only, unless seeds draw the examples.
    """
    done = {(line["task"], line["seed"], line["arm"], line.get("per_class", 0)) for line in lines}
    runs = [(task, seed, arm, size) for task in tasks for size in sizes for seed in range(seeds) for arm in arms]
    return [run for run in runs if run not in done and not (run[2] == "simple" and run[1] and not run[3])]


def markdown(lines: list[Line]) -> str:
    """Return a table with a row for each task and number of examples: the mean over the seeds, and their number."""
    names = COLUMNS_OF_FEW if any("per_class" in line for line in lines) else COLUMNS_OF_ARMS
    columns = {arm: name for arm, name in names.items() if any(line["arm"] == arm for line in lines)}
    rows = [
        f"| task | metric | records | majority | {' | '.join(columns.values())} |",
        "|---|---|---|---|" + "---|" * len(columns),
    ]
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    sizes = {(line["task"], line.get("per_class", 0)) for line in lines}
    for task, size in sorted(sizes, key=lambda each: (tasks.index(each[0]), each[1])):
        own = [line for line in lines if (line["task"], line.get("per_class", 0)) == (task, size)]
        majority = own[0]["majority"]
        records = f"{size} of each of {own[0]['classes']}" if size else f"{own[0]['train_records']:,}"
        cells = [task, own[0]["metric"], records, "" if majority is None else f"{majority:.3f}"]
        for arm in columns:
            scores = [line["score"] for line in own if line["arm"] == arm]
            spread = f" ± {np.std(scores, ddof=1):.3f}" if len(scores) > 1 else ""
            cells.append(f"{np.mean(scores):.3f}{spread} ({len(scores)})" if scores else "")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.classify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, help="folder of transformers with a BERT and its tokenizer")
    parser.add_argument("--data", type=Path, help="folder of the tasks")
    parser.add_argument("--tasks", default="XQuAD", help=f"tasks with commas between them: {', '.join(FILES)}")
    parser.add_argument(
        "--arms", default="simple,recipe,trainer", help=f"arms with commas between them: {', '.join(ARMS)}"
    )
    parser.add_argument("--per-class", default="0", help="numbers of training examples of each class; 0 for all")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (simple has no seed)")
    parser.add_argument("--torch-python", default=sys.executable, help="the Python of the arm trainer")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, one for each run")
    parser.add_argument("--markdown", action="store_true", help="print the table of --out")
    args = parser.parse_args(argv)
    if args.markdown:
        print(markdown(finished(args.out)))
        return 0
    tasks, arms = resumable.chosen(args.tasks, FILES, "--tasks"), resumable.chosen(args.arms, ARMS, "--arms")
    if not args.data or not args.model:
        raise UserError("--data or --model is missing; name the folders of the tasks and of the model")
    sizes = [int(size) for size in args.per_class.split(",")]
    runs = missing(tasks, arms, args.seeds, sizes, finished(args.out))
    resumable.run(
        {f"{task}, {size} a class, seed {seed}, {arm}": run for run in runs for task, seed, arm, size in [run]},
        args.out,
        lambda run: measure(*run, args),
    )
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
