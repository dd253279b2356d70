"""The rows of the compression benchmark: the commands that make each small model, and the row to compare it with.

A model is made by commands that users type. `without` names the same student without the method: the same initial
weights, epochs and rates, except that `pretrained-distilled` and `tinybert-general` train once more.
"""

from pathlib import Path
from typing import NamedTuple

from benchmarks import compression_pretrained as pretrained
from benchmarks.compression_commands import THREE, Command, Commands, augmented, cut, distilled, tuned
from benchmarks.compression_tasks import TASKS, Place

_TWO = (0, 3)
_EIGHT_BITS = "--config.quantization.bits=8", "--config.model.activation_bits=8"
_LAYERS_ONLY = (
    '--config.optimizer.frozen=["^encoder/(embeddings|pooler)/","^heads/"]',
    "--config.optimizer.multipliers=[]",
)
_LOSSES = "--config.tasks.classify.objective.losses"
_THREE_BITS = "--config.quantization.layer_bits=[3, 3, 3, 3, 3, 3]"  # of a teacher with six layers


class Row(NamedTuple):
    """A line of the table.

    Attributes:
      source: the paper.
      commands: the commands that make the model, each a module and its flags.
      without: name of the row without the method; empty for a baseline.
      model: where the commands leave the model, in the folder of the cell.
      is_trained: whether the model depends on the seed.
      shape: name of a baseline whose model has the same sizes and speed; empty for one of its own.
    """

    source: str
    commands: Commands
    without: str = ""
    model: str = "tuned/export"
    is_trained: bool = True
    shape: str = ""


def _plain(layers: tuple[int, ...], *flags: str) -> Commands:
    return lambda place: [tuned(place, place.teacher, *cut(layers), *flags)]


def _plain_teacher(*flags: str) -> Commands:
    return lambda place: [tuned(place, place.teacher, *flags)]


def _taught(method: str, layers: tuple[int, ...] = THREE) -> Commands:
    return lambda place: [distilled(place, method, place.teacher, cut(layers))]


def _bilstm(method: str = "") -> Commands:
    """A new BiLSTM with the tokenizer of the teacher, at the rate of a model that starts from random weights.

    It reads the texts of a pair separately.
    """

    def commands(place: Place) -> list[Command]:
        new = ["--config.model.preset=bilstm", f"--config.data.tokenizer.model={place.teacher}/tokenizer"]
        new += ["--config.optimizer.learning_rate=1e-3", "--config.optimizer.multipliers=[]"]
        new += ["--config.model.block.pairs=siamese"] * ("pair" in TASKS[place.task].columns)
        return [distilled(place, method, None, new) if method else tuned(place, None, *new)]

    return commands


def _theseus(*flags: str) -> Commands:
    def commands(place: Place) -> list[Command]:
        replaced = distilled(place, "theseus", place.teacher, [*cut(THREE), *flags], to="replaced")
        return [replaced, tuned(place, place.out / "replaced" / "export", *flags)]

    return commands


def _twice(place: Place) -> list[Command]:
    first = tuned(place, place.teacher, *cut(THREE), to="first")
    return [first, tuned(place, place.out / "first" / "export")]


def _tinybert(place: Place) -> list[Command]:
    augment, unlabeled = augmented(place)
    layers = distilled(place, "tinybert_layers", place.teacher, [*cut(THREE), unlabeled], to="layers")
    return [augment, layers, distilled(place, "tinybert_soft", place.out / "layers" / "export", [unlabeled])]


def _internal(stacked: bool) -> Commands:
    """Layers learn attention and [CLS] of the teacher one after another, or with those below, and then the labels.

    The layers share the four epochs of a fine-tuning.
    """

    def commands(place: Place) -> list[Command]:
        made, start, student = [], place.teacher, cut(THREE)
        for layer in range(1, 1 + len(THREE)):
            pairs = [[own, 2 * own] for own in range(1 if stacked else layer, layer + 1)]
            flags = [f"{_LOSSES}.{loss}.pairs_of_layers={pairs}" for loss in ("maps", "states")]
            flags += [*student, "--config.stages.0.epochs=1.33"]
            made.append(distilled(place, "internal_layers", start, flags, to=f"layer-{layer}"))
            start, student = place.out / f"layer-{layer}" / "export", []
        return [*made, distilled(place, "soft", start, [])]

    return commands


def _in_int8(*flags: str) -> Commands:
    """Fine-tune the teacher once more, and round it."""
    return lambda place: [tuned(place, place.teacher, *flags), _to_int8(place, place.out / "tuned" / "export")]


def _rounded(place: Place) -> list[Command]:
    return [_to_int8(place, place.teacher)]


def _to_int8(place: Place, export: Path) -> Command:
    return ["bertjax.compress", str(export), f"--to={place.out / 'int8'}", "--quantize=int8"]


def _pruned(kind: str, start: str = "teacher") -> Commands:
    """Prune a model while it is trained: `teacher`, which knows the task, or `adapted`, which learns it."""
    flags = f"--config.pruning.kind={kind}", "--config.pruning.remaining=0.15"
    return lambda place: [tuned(place, getattr(place, start), *flags)]


def _four_bits_later(place: Place) -> list[Command]:
    """Fine-tune, then round to 4 bits: a step at a rate of nearly zero."""
    one_step = ["--config.quantization.bits=4", "--config.optimizer.learning_rate=1e-12"]
    one_step += ["--config.stages.0.epochs=0", "--config.stages.0.steps=1", "--config.stages.0.min_steps=0"]
    first = tuned(place, place.teacher, to="first")
    return [first, tuned(place, place.out / "first" / "export", *one_step)]


def _narrow(by_importance: bool) -> Commands:
    """Return the commands that keep half of the heads and neurons: the most important ones, or as many at random."""

    def commands(place: Place) -> list[Command]:
        report, narrow, order = place.out / "report", place.out / "cut", place.out / "report" / "importance.json"
        labeled, teacher = place.data / "train.jsonl", str(place.teacher)
        analysis = ["bertjax.analyze", teacher, "--parts=importance", "--examples=200", f"--labeled={labeled}"]
        made = [[*analysis, f"--out={report}", "--platform=cpu"]]
        if not by_importance:
            shuffled = place.out / "shuffled.json"
            made.append(["benchmarks.arms.shuffled_importance", teacher, str(order), str(shuffled), str(place.seed)])
            order = shuffled
        return [
            *made,
            ["bertjax.compress", teacher, f"--to={narrow}", "--heads=6", "--mlp=768", f"--importance={order}"],
            tuned(place, narrow),
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
    "three-layers": Row("", _plain(THREE)),
    "two-layers": Row("", _plain(_TWO)),
    "soft": Row("Hinton et al. (2015)", _taught("soft"), "three-layers"),
    "pkd": Row("PKD, skip (Sun et al., 2019)", _taught("pkd"), "three-layers"),
    "pkd-last": Row("PKD, last (Sun et al., 2019)", _taught("pkd_last"), "three-layers"),
    "pkd-two": Row("PKD, skip, two layers", _taught("pkd", _TWO), "two-layers"),
    "internal": Row("internal representations (Aguilar et al., 2020)", _taught("internal"), "three-layers"),
    "three-layers-twice": Row("", _twice, shape="three-layers"),
    "theseus": Row("BERT-of-Theseus (Xu et al., 2020)", _theseus(), "three-layers-twice"),
    "theseus-layers": Row("BERT-of-Theseus, layers only", _theseus(*_LAYERS_ONLY), "three-layers-twice"),
    "internal-progressive": Row("internal, one layer at a time", _internal(stacked=False), "three-layers-twice"),
    "internal-stacked": Row("internal, with the layers below", _internal(stacked=True), "three-layers-twice"),
    "tinybert": Row("TinyBERT, task steps (Jiao et al., 2020)", _tinybert, "three-layers-twice"),
    "bilstm": Row("", _bilstm()),
    "bilstm-soft": Row("BiLSTM, soft labels (Tang et al., 2019)", _bilstm("logits"), "bilstm"),
    "rounded": Row("8 bits, not trained", _rounded, model="int8", is_trained=False, shape="int8"),
    "int8": Row("fine-tuned again, then 8 bits", _in_int8(), model="int8"),
    "q8bert": Row("Q8BERT, weights (Zafrir et al., 2019)", _in_int8(_EIGHT_BITS[0]), "int8", "int8"),
    "q8bert-activations": Row("Q8BERT, weights and activations", _in_int8(*_EIGHT_BITS), "int8", "int8"),
    "four-bits": Row("fine-tuned again, then 4 bits", _four_bits_later, shape="teacher"),
    "four-bits-trained": Row("4 bits, trained", _plain_teacher("--config.quantization.bits=4"), "four-bits"),
    "three-bits": Row("3 bits in all layers, trained", _plain_teacher(_EIGHT_BITS[0], _THREE_BITS), shape="teacher"),
    "q-bert": Row("Q-BERT, 2 and 4 bits by curvature (Shen et al., 2020)", _curvature_bits, "three-bits"),
    "magnitude": Row("magnitude pruning, 15% remain (Han et al., 2015)", _pruned("magnitude"), shape="teacher"),
    "movement": Row("movement pruning (Sanh et al., 2020)", _pruned("movement"), "magnitude"),
    "magnitude-encoder": Row("magnitude, while the task is learned", _pruned("magnitude", "adapted"), shape="teacher"),
    "movement-encoder": Row("movement, while the task is learned", _pruned("movement", "adapted"), "magnitude-encoder"),
    "narrow": Row("half of the heads and neurons, at random", _narrow(by_importance=False)),
    "narrow-importance": Row("the most important half (Michel et al., 2019)", _narrow(by_importance=True), "narrow"),
    "pretrained": Row("", pretrained.three_layers("mlm"), shape="three-layers"),
    "distilbert": Row("DistilBERT (Sanh et al., 2019)", pretrained.three_layers("distilbert"), "pretrained"),
    "pretrained-distilled": Row(
        "pretrained distillation (Turc et al., 2019)", pretrained.then_distilled, "pretrained"
    ),
    "relations": Row("MiniLM v2 relations (Wang et al., 2021)", pretrained.three_layers("relations"), "pretrained"),
    "tinybert-general": Row("TinyBERT, all steps (Jiao et al., 2020)", pretrained.tinybert, "pretrained"),
    "mobilebert-alone": Row("", pretrained.mobilebert(is_taught=False)),
    "mobilebert": Row("MobileBERT (Sun et al., 2020)", pretrained.mobilebert(is_taught=True), "mobilebert-alone"),
    "small-96-alone": Row("", pretrained.small_vocabulary(96, is_taught=False)),
    "small-96": Row("Zhao et al. (2019), 96 wide", pretrained.small_vocabulary(96, is_taught=True), "small-96-alone"),
    "small-48-alone": Row("", pretrained.small_vocabulary(48, is_taught=False)),
    "small-48": Row("Zhao et al. (2019), 48 wide", pretrained.small_vocabulary(48, is_taught=True), "small-48-alone"),
    "albert": Row("shared layers, 384 wide (Lan et al., 2020)", pretrained.albert(384)),
    "albert-wide": Row("shared layers, 768 wide (Lan et al., 2020)", pretrained.albert(768)),
    "vocabulary": Row("pieces of the training texts, not trained", _trimmed, model="cut", is_trained=False),
}  # fmt: skip


def shape_of(row: str) -> str:
    """Return the row that stands for the sizes and the speed of a row: that without the method, or its `shape`."""
    same = ROWS[row].without or ROWS[row].shape
    return shape_of(same) if same else row
