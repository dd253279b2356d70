"""The commands that the rows of the compression benchmark consist of, each a module of bertjax and its flags."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.compression_tasks import TASKS, Place

Command = list[str]
Commands = Callable[[Place], list[Command]]

_CLASSIFY, _DISTILL = "configs/finetune/classify.py:cls", "configs/finetune/distill.py"
THREE = (0, 2, 4)  # layers of the teacher that a student of three layers starts with
# Masked LM that gives the teacher a head, and the steps of each row that pretrains a student.
ADAPTING_STEPS, PRETRAINING_STEPS = 400, 800


def tuned(place: Place, start: Path | None, *flags: str, config: str = _CLASSIFY, to: str = "tuned") -> Command:
    """Return the command that fine-tunes a model, or a new one; the result is `place.out / to / "export"`."""
    task, prefix = TASKS[place.task], "--config.tasks.classify.examples"
    files = [f"{prefix}.{split}={place.data / split}.jsonl" for split in ("train", "heldout")]
    columns = [f"{prefix}.{name}={column}" for name, column in task.columns.items()]
    if config == _CLASSIFY and task.kind != "classification":
        columns.append(f"--config.tasks.classify.objective.kind={task.kind}")
    shape = [f"--config.init_from={start}"] * (start is not None) + ["--config.stages.0.seq_len=64"]
    return trained(config, place.out / to, place.seed, *shape, *files, *columns, *flags)


def trained(config: str, workdir: Path, seed: int, *flags: str) -> Command:
    """Return a command of training on the CPU."""
    return [
        "bertjax.train",
        f"--config={config}",
        f"--workdir={workdir}",
        "--platform=cpu",
        f"--config.seed={seed}",
        *flags,
    ]


def pretraining(corpus: str, steps: int, model: Path | None) -> list[str]:
    """Return the flags of pretraining on a corpus, with the tokenizer of a model or with one that is trained on it."""
    return [
        f"--config.data.corpus={corpus}",
        *([] if model is None else [f"--config.data.tokenizer.model={model}/tokenizer"]),
        f"--config.stages.0.steps={steps}",
        "--config.stages.0.epochs=0",
        "--config.stages.0.seq_len=128",
        "--config.stages.0.batch=16",
        "--config.optimizer.warmup_steps=0",
        "--config.optimizer.warmup_share=0.1",
        "--config.eval.every=0",
    ]


def cut(layers: tuple[int, ...]) -> list[str]:
    """Return the flags of a student that starts with some layers of a model."""
    return [f"--config.model.layers={len(layers)}", f"--config.init_layers={list(layers)}"]


def distilled(place: Place, method: str, start: Path | None, flags: list[str], to: str = "tuned") -> Command:
    """Return the command that fine-tunes a model against the teacher by a variant of `distill.py`."""
    teacher = f"--config.tasks.classify.objective.teacher={place.teacher}"
    variant = f"{method}-regression" if TASKS[place.task].kind == "regression" else method
    return tuned(place, start, *flags, teacher, config=f"{_DISTILL}:{variant}", to=to)


def augmented(place: Place) -> tuple[Command, str]:
    """Return the command that writes a variant of each training text, and the flag that trains on them too."""
    more = place.out / "more.jsonl"
    augment = [
        "bertjax.augment",
        str(place.data / "train.jsonl"),
        f"--model={place.adapted}",
        f"--to={more}",
        "--copies=1",
    ]
    columns = [f"--{name}={column}" for name, column in TASKS[place.task].columns.items()]
    command = [*augment, *columns, f"--seed={place.seed}", "--platform=cpu"]
    return command, f"--config.tasks.classify.examples.unlabeled={more}"


def adapting(model: Path, corpus: str, to: Path) -> list[Command]:
    """Return the commands that train a converted encoder as a masked LM; the result is `to / "export"`."""
    return [trained(f"configs/adapt.py:{model}", to, 0, *pretraining(corpus, ADAPTING_STEPS, model))]
