"""Knowledge by layer: logit lens, linear and structural probes, word senses, contextuality and CKA."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.analysis.material import Labeled, Material
from bertjax.analysis.part import Part, Result
from bertjax.analysis.probing import figures, findings, senses, similarity
from bertjax.analysis.probing.figures import best
from bertjax.analysis.probing.findings import Numbers, Texts
from bertjax.analysis.probing.tasks import LabeledTask, labeled_task
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
        if isinstance(material, Labeled) and senses.is_senses(material.path):
            records = senses.read(material.path)
            # A table of word senses gets the nearest-neighbor test only.
            numbers = {s.label: {"senses": findings.on_senses(s, material.name, records, progress)} for s in subjects}
            return Result(numbers, figures=[figures.of_senses(material.name, numbers)], text=_senses_text(numbers))
        tasks = self._tasks(subjects, material)  # before the models run: a bad file must fail early
        texts = {subject.label: findings.on_texts(subject, material, progress) for subject in subjects}
        numbers = {label: dict(found.numbers) for label, found in texts.items()}
        arrays = _similarities(texts)
        drawn, notes = list(figures.of_texts(material.name, numbers, arrays)), []
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
            drawn += figures.of_probes(material.name, {label: numbers[label] for label in tasks})
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
        notes = [_probe_text(label, numbers[label]) for label in tasks]
        without_trees = dict.fromkeys(task.without_trees for task in tasks.values() if task.without_trees)
        return notes + [f"There is no structural probe: {reason}." for reason in without_trees]


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


def _probe_text(label: str, found: Numbers) -> str:
    probe = found["probe"]
    layer, accuracy = best(probe["accuracy"])
    text = (
        f"{label}: the linear probe is best on layer {layer}, with {accuracy:.1%} of the held-out labels; random "
        f"weights have {best(probe['random_accuracy'])[1]:.1%} and the majority class {probe['majority']:.1%}. "
        f"The shortest code of the labels is {best(probe['compression'])[1]:.2f} times shorter than the uniform one."
    )
    if "trees" in found:
        trees = found["trees"]
        layer, uuas = best(trees["uuas"])
        text += (
            f" The structural probe is best on layer {layer}, with UUAS {uuas:.3f}; random weights have "
            f"{best(trees['random_uuas'])[1]:.3f} and a chain of words {trees['chain_uuas']:.3f}."
        )
    return text


def _senses_text(numbers: dict[str, Numbers]) -> str:
    sentences = []
    for label, found in numbers.items():
        layer, accuracy = best(found["senses"]["accuracy"])
        sentences.append(
            f"{label}: the nearest neighbor has the same sense for {accuracy:.1%} of the occurrences on layer {layer}; "
            f"the most frequent sense for {found['senses']['most_frequent']:.1%}."
        )
    return " ".join(sentences)
