"""The rows of the compression benchmark: the commands that make each small model, and the row to compare it with.

A model is made by commands that users type. `without` names the same student without the method: the same initial
weights, epochs and rates, except that `pretrained-distilled` trains once more. Layers of three-layer students are 0, 2
and 4 of the teacher.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.compression_tasks import TASKS, Place

_CLASSIFY, _DISTILL = "configs/finetune/classify.py:cls", "configs/finetune/distill.py"
_THREE, _TWO = (0, 2, 4), (0, 3)
_EIGHT_BITS = "--config.quantization.bits=8", "--config.model.activation_bits=8"
_THREE_BITS = "--config.quantization.layer_bits=[3, 3, 3, 3, 3, 3]"  # of a teacher with six layers
# Masked LM that gives the teacher a head, and the steps of each row that pretrains a student.
ADAPTING_STEPS, PRETRAINING_STEPS = 400, 800


Command = list[str]


class Row(NamedTuple):
    """A line of the table.

    Attributes:
      source: the paper.
      commands: the commands that make the model, each a module and its flags.
      without: name of the row without the method; empty for a baseline.
      model: where the commands leave the model, in the folder of the cell.
      is_trained: whether the model depends on the seed.
    """

    source: str
    commands: Callable[[Place], list[Command]]
    without: str = ""
    model: str = "tuned/export"
    is_trained: bool = True


def adapting(model: Path, corpus: str, to: Path) -> list[Command]:
    """Return the commands that train a converted encoder as a masked LM; the result is `to / "export"`."""
    return [_trained(f"configs/adapt.py:{model}", to, 0, *_on(corpus, ADAPTING_STEPS, model))]


def tuned(place: Place, start: Path | None, *flags: str, config: str = _CLASSIFY, to: str = "tuned") -> Command:
    """Return the command that fine-tunes a model, or a new one; the result is `place.out / to / "export"`."""
    task, prefix = TASKS[place.task], "--config.tasks.classify.examples"
    files = [f"{prefix}.{split}={place.data / split}.jsonl" for split in ("train", "heldout")]
    columns = [f"{prefix}.{name}={column}" for name, column in task.columns.items()]
    if config == _CLASSIFY and task.kind != "classification":
        columns.append(f"--config.tasks.classify.objective.kind={task.kind}")
    shape = [f"--config.init_from={start}"] * (start is not None) + ["--config.stages.0.seq_len=64"]
    return _trained(config, place.out / to, place.seed, *shape, *files, *columns, *flags)


def _trained(config: str, workdir: Path, seed: int, *flags: str) -> Command:
    return [
        "bertjax.train",
        f"--config={config}",
        f"--workdir={workdir}",
        "--platform=cpu",
        f"--config.seed={seed}",
        *flags,
    ]


def _on(corpus: str, steps: int, model: Path) -> list[str]:
    """Return the flags of pretraining on a corpus with the tokenizer of a model."""
    return [
        f"--config.data.corpus={corpus}",
        f"--config.data.tokenizer.model={model}/tokenizer",
        f"--config.stages.0.steps={steps}",
        "--config.stages.0.epochs=0",
        "--config.stages.0.seq_len=128",
        "--config.stages.0.batch=16",
        "--config.optimizer.warmup_steps=0",
        "--config.optimizer.warmup_share=0.1",
        "--config.eval.every=0",
    ]


def _cut(layers: tuple[int, ...]) -> list[str]:
    return [f"--config.model.layers={len(layers)}", f"--config.init_layers={list(layers)}"]


def _plain(layers: tuple[int, ...], *flags: str) -> Callable[[Place], list[Command]]:
    return lambda place: [tuned(place, place.teacher, *_cut(layers), *flags)]


def _plain_teacher(*flags: str) -> Callable[[Place], list[Command]]:
    return lambda place: [tuned(place, place.teacher, *flags)]


def _distilled(method: str, layers: tuple[int, ...] = _THREE) -> Callable[[Place], list[Command]]:
    return lambda place: [_step(place, method, place.teacher, _cut(layers))]


def _step(place: Place, method: str, start: Path | None, flags: list[str], to: str = "tuned") -> Command:
    teacher = f"--config.tasks.classify.objective.teacher={place.teacher}"
    variant = f"{method}-regression" if TASKS[place.task].kind == "regression" else method
    return tuned(place, start, *flags, teacher, config=f"{_DISTILL}:{variant}", to=to)


def _bilstm(method: str = "") -> Callable[[Place], list[Command]]:
    """A new BiLSTM with the tokenizer of the teacher, at the rate of a model that starts from random weights."""

    def commands(place: Place) -> list[Command]:
        new = ["--config.model.preset=bilstm", f"--config.data.tokenizer.model={place.teacher}/tokenizer"]
        new += ["--config.optimizer.learning_rate=1e-3", "--config.optimizer.multipliers=[]"]
        return [_step(place, method, None, new) if method else tuned(place, None, *new)]

    return commands


def _theseus(place: Place) -> list[Command]:
    replaced = _step(place, "theseus", place.teacher, _cut(_THREE), to="replaced")
    return [replaced, tuned(place, place.out / "replaced" / "export")]


def _twice(place: Place) -> list[Command]:
    first = tuned(place, place.teacher, *_cut(_THREE), to="first")
    return [first, tuned(place, place.out / "first" / "export")]


def _augmented(place: Place) -> tuple[Command, str]:
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


def _tinybert(place: Place) -> list[Command]:
    augment, unlabeled = _augmented(place)
    layers = _step(place, "tinybert_layers", place.teacher, [*_cut(_THREE), unlabeled], to="layers")
    return [augment, layers, _step(place, "tinybert_soft", place.out / "layers" / "export", [unlabeled])]


def _in_int8(*flags: str) -> Callable[[Place], list[Command]]:
    def commands(place: Place) -> list[Command]:
        export = str(place.out / "tuned" / "export")
        return [
            tuned(place, place.teacher, *flags),
            ["bertjax.compress", export, f"--to={place.out / 'int8'}", "--quantize=int8"],
        ]

    return commands


def _pruning(kind: str) -> list[str]:
    return [f"--config.pruning.kind={kind}", "--config.pruning.remaining=0.15"]


def _four_bits_later(place: Place) -> list[Command]:
    """Fine-tune, then round to 4 bits: a step at a rate of nearly zero."""
    one_step = ["--config.quantization.bits=4", "--config.optimizer.learning_rate=1e-12"]
    one_step += ["--config.stages.0.epochs=0", "--config.stages.0.steps=1", "--config.stages.0.min_steps=0"]
    first = tuned(place, place.teacher, to="first")
    return [first, tuned(place, place.out / "first" / "export", *one_step)]


def _narrow(by_importance: bool) -> Callable[[Place], list[Command]]:
    def commands(place: Place) -> list[Command]:
        report, cut, order = place.out / "report", str(place.out / "cut"), []
        labeled = place.data / "train.jsonl"
        analysis = [
            "bertjax.analyze",
            str(place.teacher),
            "--parts=importance",
            "--examples=200",
            f"--labeled={labeled}",
        ]
        if by_importance:
            order = [f"--importance={report}/importance.json"]
        return [
            *([[*analysis, f"--out={report}", "--platform=cpu"]] if by_importance else []),
            ["bertjax.compress", str(place.teacher), f"--to={cut}", "--heads=6", "--mlp=768", *order],
            tuned(place, Path(cut)),
        ]

    return commands


def _pretrained(method: str) -> Callable[[Place], list[Command]]:
    """A student of three layers that is pretrained first: DistilBERT, relations, or as a masked LM alone."""

    def commands(place: Place) -> list[Command]:
        flags = _on(place.corpus, PRETRAINING_STEPS, place.adapted)
        config = f"configs/distilbert.py:{place.adapted}"
        if method != "distilbert":
            config, flags = f"configs/adapt.py:{place.adapted}", [*flags, *_cut(_THREE)]
        if method == "relations":
            flags += [
                f"--config.tasks.mlm.objective.teacher={place.adapted}",
                "--config.tasks.mlm.objective.own_factor=0.0",
            ]
            flags += ["--config.tasks.mlm.objective.teacher_losses.relations.kind=relations"]
            flags += ["--config.tasks.mlm.objective.teacher_losses.relations.heads=12"]
        pretrained = _shared(place, method)
        return [
            _trained(config, pretrained, place.seed, *flags),
            tuned(place, pretrained / "export"),
        ]

    return commands


def _shared(place: Place, method: str) -> Path:
    """Return the folder of a pretraining, which all tasks share."""
    return place.out.parent / f"{method}-pretrained-{place.seed}"


def _pretrained_distilled(place: Place) -> list[Command]:
    """Pretrain, learn the soft labels of the teacher, then the labels.

    The transfer set is the training texts and a variant of each. Their labels are not used.
    """
    augment, unlabeled = _augmented(place)
    return [
        _pretrained("mlm")(place)[0],
        augment,
        _step(place, "tinybert_soft", _shared(place, "mlm") / "export", [unlabeled], to="distilled"),
        tuned(place, place.out / "distilled" / "export"),
    ]


def _albert(width: int) -> Callable[[Place], list[Command]]:
    """A student of six layers with one set of weights, pretrained from random ones as a masked LM, as `pretrained`.

    It cannot start with weights of the teacher, whose layers differ. ALBERT's sentence order is left out.
    """

    def commands(place: Place) -> list[Command]:
        pretrained = _shared(place, f"albert-{width}")
        new = ["--config.init_from=", "--config.model.preset=albert_base", "--config.model.layers=6"]
        new += [f"--config.model.width={width}", f"--config.model.feedforward={4 * width}"]
        new += ["--config.optimizer.learning_rate=5e-4"]
        flags = _on(place.corpus, PRETRAINING_STEPS, place.adapted)
        return [
            _trained(f"configs/adapt.py:{place.adapted}", pretrained, place.seed, *flags, *new),
            tuned(place, pretrained / "export"),
        ]

    return commands


def _curvature_bits(place: Place) -> list[Command]:
    report = place.out / "report"
    labeled = f"--labeled={place.data / 'train.jsonl'}"
    analysis = [
        "bertjax.analyze",
        str(place.teacher),
        "--parts=curvature",
        "--examples=100",
        labeled,
        f"--out={report}",
    ]
    _, *flags = tuned(place, place.teacher, _EIGHT_BITS[0])
    return [[*analysis, "--platform=cpu"], ["benchmarks.arms.train_layer_bits", str(report), *flags]]


def _trimmed(place: Place) -> list[Command]:
    """The teacher with the pieces of the training texts; other words of the development set have other pieces."""
    cut = f"--to={place.out / 'cut'}"
    return [["bertjax.compress", str(place.teacher), cut, f"--vocabulary={place.data / 'texts.txt'}", "--platform=cpu"]]


ROWS: dict[str, Row] = {
    "teacher": Row("six layers, 384 wide", lambda place: [tuned(place, place.adapted)]),
    "three-layers": Row("", _plain(_THREE)),
    "two-layers": Row("", _plain(_TWO)),
    "soft": Row("Hinton et al. (2015)", _distilled("soft"), "three-layers"),
    "pkd": Row("PKD, skip (Sun et al., 2019)", _distilled("pkd"), "three-layers"),
    "pkd-last": Row("PKD, last (Sun et al., 2019)", _distilled("pkd_last"), "three-layers"),
    "pkd-two": Row("PKD, skip, two layers", _distilled("pkd", _TWO), "two-layers"),
    "internal": Row("internal representations (Aguilar et al., 2020)", _distilled("internal"), "three-layers"),
    "three-layers-twice": Row("", _twice),
    "theseus": Row("BERT-of-Theseus (Xu et al., 2020)", _theseus, "three-layers-twice"),
    "tinybert": Row("TinyBERT, task steps (Jiao et al., 2020)", _tinybert, "three-layers-twice"),
    "bilstm": Row("", _bilstm()),
    "bilstm-soft": Row("BiLSTM, soft labels (Tang et al., 2019)", _bilstm("logits"), "bilstm"),
    "int8": Row("", _in_int8(), model="int8"),
    "q8bert": Row("Q8BERT, weights (Zafrir et al., 2019)", _in_int8(_EIGHT_BITS[0]), "int8", "int8"),
    "q8bert-activations": Row("Q8BERT, weights and activations", _in_int8(*_EIGHT_BITS), "int8", "int8"),
    "four-bits": Row("", _four_bits_later),
    "four-bits-trained": Row("4 bits, trained", _plain_teacher("--config.quantization.bits=4"), "four-bits"),
    "three-bits": Row("3 bits in all layers, trained", _plain_teacher(_EIGHT_BITS[0], _THREE_BITS)),
    "q-bert": Row("Q-BERT, 2 and 4 bits by curvature (Shen et al., 2020)", _curvature_bits, "three-bits"),
    "magnitude": Row("magnitude pruning, 15% remain (Han et al., 2015)", _plain_teacher(*_pruning("magnitude"))),
    "movement": Row("movement pruning (Sanh et al., 2020)", _plain_teacher(*_pruning("movement")), "magnitude"),
    "narrow": Row("", _narrow(by_importance=False)),
    "narrow-importance": Row("cut by importance (Michel et al., 2019)", _narrow(by_importance=True), "narrow"),
    "pretrained": Row("", _pretrained("mlm")),
    "distilbert": Row("DistilBERT (Sanh et al., 2019)", _pretrained("distilbert"), "pretrained"),
    "pretrained-distilled": Row("pretrained distillation (Turc et al., 2019)", _pretrained_distilled, "pretrained"),
    "relations": Row("MiniLM v2 relations (Wang et al., 2021)", _pretrained("relations"), "pretrained"),
    "albert": Row("shared layers, 384 wide (Lan et al., 2020)", _albert(384)),
    "albert-wide": Row("shared layers, 768 wide (Lan et al., 2020)", _albert(768)),
    "vocabulary": Row("pieces of the training texts, not trained", _trimmed, model="cut", is_trained=False),
}  # fmt: skip
