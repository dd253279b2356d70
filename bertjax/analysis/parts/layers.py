"""Knowledge by layer: logit lens, linear and structural probes, word senses, contextuality and CKA.

Figures are curves over layers, and CKA matrices.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.material import Labeled, Material
from bertjax.analysis.part import Figure, Part, Result
from bertjax.analysis.probing import findings, senses, similarity
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
            return Result(numbers, figures=[figure_of_senses(material.name, numbers)], text=_senses_text(numbers))
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


def best(values: Sequence[float]) -> tuple[int, float]:
    """Return the layer with the highest value, and the value; (0, NaN) if all are NaN."""
    if np.all(np.isnan(values)):
        return 0, float("nan")
    layer = int(np.nanargmax(values))
    return layer, float(values[layer])


def _best(label: str, values: Sequence[float], spec: str) -> str:
    layer, value = best(values)
    return f"{label} is best on layer {layer}: {value:{spec}}."


def _known(values: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Return the curves with a number; one is NaN on all layers if the texts have too few words for its measure."""
    return {label: line for label, line in values.items() if not np.all(np.isnan(line))}


def _curves(name: str, values: Mapping[str, Sequence[float]], y: str, caption: str) -> Figure:
    """Draw curves over layers; the alternative text lists first, best and last value per curve."""
    parts = [
        f"{label}: {line[0]:.3f} on layer 0, {line[-1]:.3f} on layer {len(line) - 1}, "
        f"highest {np.nanmax(line):.3f} on layer {int(np.nanargmax(line))}"
        for label, line in _known(values).items()
    ]
    lines = {label: (range(len(line)), line) for label, line in values.items()}
    draw = functools.partial(drawing.curves, lines, "layer (0: embeddings)", y)
    return Figure(name, caption, f"Curves over layers, {y}. {'; '.join(parts)}.", draw)


def figures_of_texts(material: str, numbers: dict[str, Numbers], arrays: dict[str, np.ndarray]) -> Iterator[Figure]:
    """Yield figures of measures that need no labels: lens, contextuality, variance and CKA."""
    if lenses := {label: found["lens"] for label, found in numbers.items() if "lens" in found}:
        first = next(iter(lenses.values()))
        yield _curves(
            "lens",
            {label: found["accuracy"] for label, found in lenses.items()},
            "accuracy at masked tokens",
            f"Logit lens on {material}: the masked-LM head reads the states of each layer as if they were the last. A "
            "curve that rises late means that the prediction is made late (nostalgebraist, 2020; Belrose et al., "
            f"2023). The last layer of the first model predicts {first['accuracy'][-1]:.1%} of the masked tokens.",
        )
        yield _curves(
            "rank",
            {label: np.log10(found["geometric_mean_rank"]) for label, found in lenses.items()},
            "log10 of the geometric mean rank",
            f"Rank of the masked token on {material} by the logit lens, 1 for the most probable piece. The last layer "
            f"of the first model has the geometric mean {first['geometric_mean_rank'][-1]:.1f}.",
        )
    names = {"self_similarity": "self-similarity", "intra_sentence_similarity": "in a sentence"}
    measured = {label: found["contextuality"] for label, found in numbers.items()}
    # The captions quote the first model with enough words to measure; if none has, the figure is left out.
    known = (name for name, found in measured.items() if np.isfinite(found["anisotropy"][-1]))
    label = next(known, next(iter(measured)))
    first = measured[label]
    contexts = {
        f"{label}, {title}": found[f"adjusted_{name}"]
        for label, found in measured.items()
        for name, title in names.items()
    }
    if contexts := _known(contexts):
        yield _curves(
            "contextuality",
            contexts,
            "cosine, adjusted",
            f"Contextuality on {material}: cosine of two occurrences of a word (self-similarity), and of a word and "
            "the mean of its sentence, each less the cosine of words from different sentences (Ethayarajh, 2019), "
            f"which is {first['anisotropy'][-1]:.2f} on the last layer of {label}. A lower self-similarity means that "
            "vectors depend more on the context.",
        )
    if variances := _known({label: found["explained_variance"] for label, found in measured.items()}):
        yield _curves(
            "variance",
            variances,
            "share of variance",
            f"Maximum explainable variance on {material}: the share that one static vector could explain at most of "
            "the variance of a word's vectors (Ethayarajh, 2019). Words from different sentences have "
            f"{first['random_variance'][-1]:.2f} on the last layer of {label}.",
        )
    if arrays:
        matrices = {name.removeprefix("cka/"): array for name, array in arrays.items()}
        yield Figure(
            "cka",
            f"Linear CKA of layers on {material}, 1 for states that differ by a rotation and a factor (Kornblith et "
            "al., 2019; unbiased by minibatches as Nguyen et al., 2021). Rows are the layers of the model named first. "
            "Blocks of high values are layers that hold about the same.",
            " ".join(
                f"{name}: layer 0 and the last have {array[0, -1]:.2f}; the lowest value is {np.nanmin(array):.2f}."
                for name, array in matrices.items()
            ),
            functools.partial(drawing.matrices, matrices, "CKA", 0.0, 1.0, columns="layer", first=0),
        )


def figures_of_probes(material: str, numbers: dict[str, Numbers]) -> Iterator[Figure]:
    """Yield figures of probes: accuracy, code length and, with syntax trees, UUAS and rank correlation."""
    probes = {label: found["probe"] for label, found in numbers.items()}
    label, first = next(iter(probes.items()))
    yield _curves(
        "probe",
        _beside(probes, "accuracy", ("control", "random"), "majority"),
        "accuracy",
        f"Linear probes of {material}, trained on {first['train']:,} labels and scored on {first['heldout']:,} others. "
        "The control task gives each word a random label that it keeps: accuracy on it is memory of words (Hewitt & "
        "Liang, 2019). A probe on random weights shows what the words and their order alone give. "
        f"{_best(label, first['accuracy'], '.1%')}",
    )
    yield _curves(
        "code",
        _beside(probes, "compression", ("control", "random")),
        "compression",
        f"Online code of the labels of {material}: how many times shorter they are, given the states, than if all "
        "classes were equally probable (Voita & Titov, 2020). It counts how soon a probe learns, not only how well. "
        f"{_best(label, first['compression'], '.2f')}",
    )
    if trees := {label: found["trees"] for label, found in numbers.items() if "trees" in found}:
        label, first = next(iter(trees.items()))
        yield _curves(
            "uuas",
            _beside(trees, "uuas", ("random",), "chain_uuas"),
            "UUAS",
            f"Structural probe of rank {first['rank']} on {material}: share of the edges of the syntax trees that the "
            "nearest words under a linear map have (Hewitt & Manning, 2019), without punctuation. The chain joins "
            f"neighbors. {_best(label, first['uuas'], '.3f')}",
        )
        if not np.all(np.isnan(first["spearman"])):
            yield _curves(
                "spearman",
                _beside(trees, "spearman", ("random",), "chain_spearman"),
                "Spearman correlation",
                f"Structural probe on {material}: rank correlation of squared distances and of the edges between two "
                f"words, over sentences of 5 to 50 words. {_best(label, first['spearman'], '.3f')}",
            )


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


def figure_of_senses(material: str, numbers: dict[str, Numbers]) -> Figure:
    found = {label: values["senses"] for label, values in numbers.items()}
    label, first = next(iter(found.items()))
    return _curves(
        "senses",
        _beside(found, "accuracy", (), "most_frequent"),
        "accuracy",
        f"Word senses of {material}: share of occurrences whose nearest neighbor among the other occurrences of the "
        "word has the same sense (Wiedemann et al., 2019). The baseline takes the most frequent sense. "
        f"{_best(label, first['accuracy'], '.1%')}",
    )
