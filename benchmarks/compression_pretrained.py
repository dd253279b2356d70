"""The rows of the compression benchmark whose student is pretrained before it is fine-tuned.

Seeds and steps of pretraining are the same for all rows, and the tasks share a pretraining.
"""

from pathlib import Path

from benchmarks.compression_commands import (
    ADAPTING_STEPS,
    PRETRAINING_STEPS,
    THREE,
    Command,
    Commands,
    augmented,
    cut,
    distilled,
    pretraining,
    trained,
    tuned,
)
from benchmarks.compression_tasks import Place

# {method: settings of the losses against the teacher, which replace that of the masked tokens}
_LOSSES = {
    "relations": ("relations.kind=relations", "relations.heads=12"),
    "tinybert": ("states.kind=hidden", "states.projection=True", "maps.kind=attention"),
}
# A new model learns faster than one that starts with weights of the teacher.
_NEW_RATE = "--config.optimizer.learning_rate=5e-4"


def three_layers(method: str) -> Commands:
    """A student of three layers that is pretrained first: `distilbert`, a key of `_LOSSES`, or `mlm` alone."""

    def commands(place: Place) -> list[Command]:
        flags = pretraining(place.corpus, PRETRAINING_STEPS, place.adapted)
        config = f"configs/distilbert.py:{place.adapted}"
        if method != "distilbert":
            config, flags = f"configs/adapt.py:{place.adapted}", [*flags, *cut(THREE)]
        if method in _LOSSES:
            objective = "--config.tasks.mlm.objective"
            distilled = "{'kind': 'distilled', 'objective': {'kind': 'mlm'}, 'own_factor': 0.0}"
            losses = [f"{objective}.losses.{loss}" for loss in _LOSSES[method]]
            flags += [f"{objective}={distilled}", f"{objective}.teacher={place.adapted}", *losses]
        return _then_tuned(place, _shared(place, method), config, flags)

    return commands


def then_distilled(place: Place) -> list[Command]:
    """Pretrain, learn the soft labels of the teacher, then the labels.

    The transfer set is the training texts and a variant of each. Their labels are not used.
    """
    augment, unlabeled = augmented(place)
    return [
        three_layers("mlm")(place)[0],
        augment,
        distilled(place, "tinybert_soft", _shared(place, "mlm") / "export", [unlabeled], to="distilled"),
        tuned(place, place.out / "distilled" / "export"),
    ]


def albert(width: int) -> Commands:
    """A student of six layers with one set of weights, pretrained from random ones as a masked LM, as `pretrained`.

    It cannot start with weights of the teacher, whose layers differ. ALBERT's sentence order is left out.
    """

    def commands(place: Place) -> list[Command]:
        pretrained = _shared(place, f"albert-{width}")
        new = ["--config.init_from=", "--config.model.preset=albert_base", "--config.model.layers=6"]
        new += [f"--config.model.width={width}", f"--config.model.feedforward={4 * width}", _NEW_RATE]
        flags = pretraining(place.corpus, PRETRAINING_STEPS, place.adapted)
        return _then_tuned(place, pretrained, f"configs/adapt.py:{place.adapted}", [*flags, *new])

    return commands


def tinybert(place: Place) -> list[Command]:
    """All of TinyBERT: states and attention on the corpus, then on the texts of the task, then soft labels."""
    augment, unlabeled = augmented(place)
    [general, _] = three_layers("tinybert")(place)
    start = _shared(place, "tinybert") / "export"
    return [
        general,
        augment,
        distilled(place, "tinybert_layers", start, [unlabeled], to="layers"),
        distilled(place, "tinybert_soft", place.out / "layers" / "export", [unlabeled]),
    ]


def mobilebert(is_taught: bool) -> Commands:
    """A new student with bottlenecks, six layers and the width of its teacher: half of the steps are transfer.

    The teacher has no inverted bottlenecks: one that starts from random weights would know less than the other rows'.
    """

    def commands(place: Place) -> list[Command]:
        steps = PRETRAINING_STEPS // 2
        flags = [*pretraining(place.corpus, steps, place.adapted), "--config.optimizer.kind=adamw", _NEW_RATE]
        flags += [f"--config.stages.1.{name}" for name in (f"steps={steps}", "seq_len=128", "batch=16")]
        flags += ["--config.stages.1.learning_rate=5e-4", f"--config.stages.1.warmup_steps={steps // 10}"]
        if not is_taught:
            flags += [_alone(task, "mlm") for task in ("transfer", "distillation")]
        pretrained = _shared(place, "mobilebert" if is_taught else "mobilebert-alone")
        return _then_tuned(place, pretrained, f"configs/mobilebert.py:{place.adapted}", flags)

    return commands


def small_vocabulary(width: int, is_taught: bool) -> Commands:
    """A new student with 5,000 pieces of its own, as deep as its teacher.

    The student that learns alone comes first: the teacher is extended by its pieces, and continues on mixed text.
    """

    def commands(place: Place) -> list[Command]:
        flags = [*pretraining(place.corpus, PRETRAINING_STEPS, None), _NEW_RATE]
        flags += [f"--config.model.width={width}", f"--config.model.feedforward={4 * width}"]
        alone, taught, mixed, continued = (
            _shared(place, name) for name in (f"small-{width}-alone", f"small-{width}", "mixed", "continued")
        )
        recipe = "configs/small_vocabulary.py"
        first, tuned_alone = _then_tuned(place, alone, f"{recipe}:{place.adapted}", [*flags, _alone("bert", "bert")])
        if not is_taught:
            return [first, tuned_alone]
        on_both = pretraining(place.corpus, ADAPTING_STEPS, mixed)
        return [
            first,
            ["bertjax.extend", str(place.adapted), f"--to={mixed}", f"--mix={alone}/export/tokenizer"],
            trained(f"configs/adapt.py:{mixed}", continued, place.seed, *on_both),
            *_then_tuned(place, taught, f"{recipe}:{continued}/export", flags),
        ]

    return commands


def _shared(place: Place, method: str) -> Path:
    """Return the folder of a pretraining, which all tasks share."""
    return place.out.parent / f"{method}-pretrained-{place.seed}"


def _then_tuned(place: Place, pretrained: Path, config: str, flags: list[str]) -> list[Command]:
    return [trained(config, pretrained, place.seed, *flags), tuned(place, pretrained / "export")]


def _alone(task: str, kind: str) -> str:
    """Return the flag that gives a pretraining task an objective without its teacher."""
    return f"--config.tasks.{task}.objective={{'kind': '{kind}'}}"
