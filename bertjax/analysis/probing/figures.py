"""Figures for the part `layers`: curves over layers, and CKA matrices."""

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.part import Figure
from bertjax.analysis.probing.findings import Numbers


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


def of_texts(material: str, numbers: dict[str, Numbers], arrays: dict[str, np.ndarray]) -> Iterator[Figure]:
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
    # Captions name the first model whose texts have enough words; without one there is no figure.
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


def of_probes(material: str, numbers: dict[str, Numbers]) -> Iterator[Figure]:
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


def of_senses(material: str, numbers: dict[str, Numbers]) -> Figure:
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
