"""Knowledge by layer: logit lens, linear and structural probes, word senses, contextuality and CKA.

Figures are curves over layers, and CKA matrices.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Labeled, Material
from bertjax.analysis.part import Figure, Part, Result, listed
from bertjax.analysis.probing import findings, similarity
from bertjax.analysis.probing.findings import Numbers, Texts
from bertjax.analysis.probing.tasks import LabeledTask, is_senses, labeled_task, read_senses
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText

# Rank of the structural probe: rows of its matrix B.
RANK = 64
# Maximum number of models compared with the first one by CKA.
_MOST_COMPARED = 8


@dataclasses.dataclass(eq=False)
class Layers(Part):
    """The part `layers`.

    Attributes:
      heldout: labeled file that scores the probes trained on the analyzed file; if empty, a third of that file is held
        out.
      rank: the structural probe's rank.
      pooling: representation of a word or text, from `tasks.POOLINGS`; if empty, `first` for words and `mean` for
        texts.
    """

    heldout: str = ""
    rank: int = RANK
    pooling: str = ""
    name: ClassVar[str] = "layers"
    title: ClassVar[str] = "What layers know"

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        numbers: Numbers = {subject.label: {} for subject in subjects}
        arrays, drawn, texts = {}, [], []
        for index, material in enumerate(materials):
            part = self._of_material(subjects, material, progress)
            for label, found in part.numbers.items():
                numbers[label][material.name] = found
            arrays |= part.arrays
            for figure in part.figures:
                drawn.append(dataclasses.replace(figure, name=f"{figure.name}-{index}") if index else figure)
            texts.append(part.text)
        return Result(numbers, arrays, drawn, "\n\n".join(filter(None, texts)))

    def _of_material(self, subjects: Sequence[Subject], material: Material, progress: Progress) -> Result:
        if isinstance(material, Labeled) and is_senses(material.path):
            records = read_senses(material.path)
            # A table of word senses gets the nearest-neighbor test only.
            numbers = {s.label: {"senses": findings.on_senses(s, material.name, records, progress)} for s in subjects}
            return Result(numbers, figures=list(figures_of_senses(material.name, numbers)))
        tasks = self._tasks(subjects, material)  # before the models run: a bad file must fail early
        texts = {subject.label: findings.on_texts(subject, material, progress) for subject in subjects}
        numbers = {label: dict(found.numbers) for label, found in texts.items()}
        arrays = _similarities(texts)
        drawn, notes = list(figures_of_texts(material.name, numbers, arrays)), []
        if not arrays:
            notes.append(f"{material.name} has fewer than 4 words, so there is no CKA.")
        for subject in subjects:
            if reason := findings.without_lens(subject, material.objective(subject)):
                notes.append(f"There is no logit lens of {subject.label} on {material.name}: it {reason}.")
        for label, found in numbers.items():
            found["cka"] = arrays.get(f"cka/{label}")
        arrays = {f"{material.name}/{name}": array for name, array in arrays.items()}
        if tasks:
            notes += self._probe(subjects, tasks, numbers, progress)
            drawn += figures_of_probes(material.name, {label: numbers[label] for label in tasks})
        return Result(numbers, arrays, drawn, " ".join(notes))

    def _tasks(self, subjects: Sequence[Subject], material: Material) -> dict[str, LabeledTask]:
        """Return {model: its labels}, without models whose labels no probe can learn: not classes of words or texts."""
        if not isinstance(material, Labeled):
            return {}
        tasks: dict[str, LabeledTask] = {}
        read: dict[str, LabeledTask] = {}
        for subject in subjects:
            format = material.format_of(subject)
            has_classes = isinstance(format, Tagged) or (isinstance(format, LabeledText) and "label" in format.labels)
            if not has_classes or not material.classes(subject):
                continue
            # Models with one file share the task and its baseline; by default, each model has its own file.
            key = repr(dataclasses.replace(format, train="", limit=0))
            if key not in read:
                options = material.examples, findings.SEED, self.heldout, self.pooling
                read[key] = labeled_task(material.name, format, *options)
            tasks[subject.label] = read[key]
        return tasks

    def _probe(
        self,
        subjects: Sequence[Subject],
        tasks: Mapping[str, LabeledTask],
        numbers: dict[str, Numbers],
        progress: Progress,
    ) -> list[str]:
        """Add the probes of each model's task to its numbers; return sentences about them."""
        baselines: dict[Any, Numbers] = {}
        for subject in subjects:
            if (task := tasks.get(subject.label)) is None:
                continue
            key = subject.encoder, subject.tokenizer.fingerprint, task
            if key not in baselines:  # checkpoints of one run share a baseline
                # Probes on random weights are the baseline: they show what words and their order alone give.
                random = findings.with_random_weights(subject)
                baselines[key] = findings.on_task(random, task, self.rank, progress)
            found, random = findings.on_task(subject, task, self.rank, progress), baselines[key]
            for name in found:
                by_layer = {measure: value for measure, value in random[name].items() if np.ndim(value)}
                found[name] |= {f"random_{measure}": value for measure, value in by_layer.items()}
            numbers[subject.label] |= found
        without_trees = dict.fromkeys(task.without_trees for task in tasks.values() if task.without_trees)
        return [f"There is no structural probe: {reason}." for reason in without_trees]


def _similarities(texts: Mapping[str, Texts]) -> dict[str, np.ndarray]:
    """Return CKA between the layers of each model, and between the first model and others with equal tokens.

    Empty if the texts have fewer than 4 words, the least that the estimate without bias needs.
    """
    texts = {label: found for label, found in texts.items() if found.grams}
    if not texts:
        return {}
    similarities = {f"cka/{label}": similarity.cka(found.grams, found.grams) for label, found in texts.items()}
    (first, own), *others = texts.items()
    for label, found in others[:_MOST_COMPARED]:
        # CKA compares states of the same tokens, so both models must read the same pieces.
        if found.key == own.key:
            similarities[f"cka/{first} and {label}"] = similarity.cka(own.grams, found.grams)
    return similarities


def _known(values: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Return the curves with a number; one is NaN on all layers if the texts have too few words for its measure."""
    return {label: line for label, line in values.items() if not np.all(np.isnan(line))}


def _curves(name: str, values: Mapping[str, Sequence[float]], y: str, **of_caption: Any) -> Iterator[Figure]:
    """Yield a figure of curves over layers, whose caption has their highest values; none if no curve has a number."""
    if values := _known(values):
        lines = {label: (range(len(line)), line) for label, line in values.items()}
        chart = drawing.curves(lines, "layer (0: embeddings)", y)
        highest = []
        for label, line in values.items():
            is_constant = np.nanmin(line) == np.nanmax(line)  # a baseline without layers, such as the majority class
            where = "" if is_constant else f" (layer {int(np.nanargmax(line))})"
            highest.append(f"{label} {np.nanmax(line):.3f}{where}")
        yield drawing.figure(f"layers/{name}", chart, highest=", ".join(highest), **of_caption)


def _last(measured: Mapping[str, Numbers], name: str) -> str:
    """Return a measure on the last layer of each model that has it."""
    known = _known({label: found[name] for label, found in measured.items()})
    return listed({label: line[-1] for label, line in known.items()}, ".2f")


def figures_of_texts(material: str, numbers: dict[str, Numbers], arrays: dict[str, np.ndarray]) -> Iterator[Figure]:
    """Yield figures of measures that need no labels: lens, contextuality, variance and CKA."""
    lenses = {label: found["lens"] for label, found in numbers.items() if "lens" in found}
    accuracies = {label: found["accuracy"] for label, found in lenses.items()}
    yield from _curves("lens", accuracies, "accuracy at masked tokens", material=material)
    rank = "geometric_mean_rank"
    logarithms = {label: np.log10(found[rank]) for label, found in lenses.items()}
    yield from _curves(
        "rank", logarithms, "log10 of the geometric mean rank", material=material, last=_last(lenses, rank)
    )
    measured = {label: found["contextuality"] for label, found in numbers.items()}
    names = {"self_similarity": "self-similarity", "intra_sentence_similarity": "in a sentence"}
    contexts = {
        f"{label}, {title}": found[f"adjusted_{name}"]
        for label, found in measured.items()
        for name, title in names.items()
    }
    last = _last(measured, "anisotropy")
    yield from _curves("contextuality", contexts, "cosine, adjusted", material=material, last=last)
    variances, last = (
        {k: found["explained_variance"] for k, found in measured.items()},
        _last(measured, "random_variance"),
    )
    yield from _curves("variance", variances, "share of variance", material=material, last=last)
    if arrays:
        matrices = {name.removeprefix("cka/"): array for name, array in arrays.items()}
        chart = drawing.matrices(matrices, "CKA", (0.0, 1.0), "layer", first=0)
        ends = listed({name: array[0, -1] for name, array in matrices.items()}, ".2f")
        yield drawing.figure("layers/cka", chart, material=material, ends=ends)


def figures_of_probes(material: str, numbers: dict[str, Numbers]) -> Iterator[Figure]:
    """Yield figures of probes: accuracy, code length and, with syntax trees, UUAS and rank correlation."""
    probes = {label: found["probe"] for label, found in numbers.items()}
    first, baselines = next(iter(probes.values())), ("control", "random")
    sizes = {"train": first["train"], "heldout": first["heldout"]}
    accuracies = _beside(probes, "accuracy", baselines, "majority")
    yield from _curves("probe", accuracies, "accuracy", material=material, **sizes)
    yield from _curves("code", _beside(probes, "compression", baselines), "compression", material=material)
    if trees := {label: found["trees"] for label, found in numbers.items() if "trees" in found}:
        rank = next(iter(trees.values()))["rank"]
        edges, distances = (_beside(trees, name, ("random",), f"chain_{name}") for name in ("uuas", "spearman"))
        yield from _curves("uuas", edges, "UUAS", material=material, rank=rank)
        yield from _curves("spearman", distances, "Spearman correlation", material=material)


def _beside(
    found: Mapping[str, Numbers], measure: str, others: Sequence[str], constant: str = ""
) -> dict[str, np.ndarray]:
    """Return curves of a measure, its baselines, and a baseline that is constant over layers."""
    lines = {}
    for label, numbers in found.items():
        lines[label] = numbers[measure]
        for other in others:
            if f"{other}_{measure}" in numbers:
                lines[f"{label}, {other}"] = numbers[f"{other}_{measure}"]
    if constant:
        longest = max(len(line) for line in lines.values())
        title = constant.replace("_uuas", "").replace("_spearman", "")
        # The majority class and the chain of words depend on the labels only: models with one file share the line.
        values = {label: numbers[constant] for label, numbers in found.items()}
        is_shared = len(set(values.values())) == 1
        for label, value in values.items():
            lines[title if is_shared else f"{label}, {title}"] = np.full(longest, value)
    return lines


def figures_of_senses(material: str, numbers: dict[str, Numbers]) -> Iterator[Figure]:
    """Yield the figure of word senses."""
    found = {label: values["senses"] for label, values in numbers.items()}
    yield from _curves("senses", _beside(found, "accuracy", (), "most_frequent"), "accuracy", material=material)
