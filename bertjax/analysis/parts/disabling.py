"""Masks one head, or all heads of a layer but one, and measures the loss (Michel et al., 2019, section 3)."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.ablation import Ablation, Scores, ablation_of
from bertjax.analysis.material import Material
from bertjax.analysis.part import Case, Figure, Part, by_material, highest
from bertjax.analysis.pruning import mask_without
from bertjax.analysis.reduce import Progress
from bertjax.analysis.subject import Subject
from bertjax.comparison import resampling
from bertjax.comparison.resampling import Difference
from bertjax.models.taps import HEAD_MASK

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Significance level of Michel et al. (2019, table 1).
LEVEL = 0.01


class Disabling(Part):
    """Loss changes, and a fine-tuned model's metric changes, with heads masked.

    Arrays, all [L, H]: `<model>/<material>/one_off_<number>` is the change in loss or metric if this head is masked,
    and `one_kept_<number>` the change if all other heads in its layer are masked. `..._p` are p-values.
    """

    name = "disabling"
    title = "Disabling heads"
    needs_attention = True
    needs_objective = True

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        ablation = ablation_of(subject, material)
        layers, heads = shape = ablation.shapes[HEAD_MASK]
        with progress(f"{subject.label}, {material.name}", 2 * layers * heads * ablation.tokens) as bar:
            one_off = ablation.without_each_head(bar.update)
            # A layer that loses nothing with a single head left needs no other head.
            one_kept = [ablation.scores({HEAD_MASK: mask}, bar.update) for mask in masks_with_one_kept(shape)]
        whole = ablation.unmasked
        numbers = {"examples": ablation.examples, "units": ablation.units, "heads": layers * heads}
        numbers |= {"loss": whole.loss, "metric": ablation.metric or None, "value": whole.metric}
        arrays = {}
        for name, scores in (("one_off", one_off), ("one_kept", one_kept)):
            numbers[name], of_name = _changes(ablation, scores, shape)
            arrays |= {f"{name}_{key}": values for key, values in of_name.items()}
        return numbers, arrays

    def figures(self, cases: Sequence[Case]) -> Iterator[Figure]:
        worst, kept = [], {}
        for case in cases:
            number, _ = _score(case)
            worst.append(f"{case.title}: {_described(case.numbers['one_off'][number]['most_harmful'], number)}")
            cells = case.numbers["one_kept"][number]["least_harmful_by_layer"]
            kept[f"{case.title} ({number})"] = {cell["layer"]: cell["change"] for cell in cells}
        histograms = drawing.Chart("Histograms of the score.", functools.partial(_histograms, cases))
        yield self.figure("scores", histograms, worst="; ".join(worst))
        largest = highest({title: np.abs([*row.values()]) for title, row in kept.items()}, ".4f")
        yield self.figure("one-kept", drawing.bars({"": kept}, "change of the score", "layer"), largest=largest)
        for number, (material, of_models) in enumerate(by_material(cases), 1):
            matrices = {label: case.arrays["one_off_loss"] for label, case in of_models.items()}
            chart = drawing.matrices(matrices, "change of the loss [nats]", diverging=True)
            yield self.figure("one-off", chart, number, material=material, largest=highest(matrices, "+.4f"))

    def sentence(self, case: Case) -> str:
        (number, score), values, total = _score(case), case.numbers, case.numbers["heads"]
        start = f"{case.model} on {case.material} ({values['examples']:,} examples): {number} {score:.4f}."
        # With fewer units, `Ablation.changes` leaves p-values as NaN.
        if values["units"] < resampling.LEAST_EXAMPLES:
            return f"{start} The number of rows, {values['units']}, is too small for p-values."
        off, kept = values["one_off"][number], values["one_kept"][number]["least_harmful_by_layer"]
        # Not significant is weak evidence: with few examples, everything is replaceable.
        replaced = sum(cell["p"] >= LEVEL for cell in kept)
        return (
            f"{start} With one head off, {off['significant']} of {total} heads change it at p < {LEVEL} "
            f"({total * LEVEL:.1f} are expected by chance), {off['worse']} for the worse; "
            f"{values['one_off']['loss']['significant']} change the loss. One head, chosen on the same examples, "
            f"replaces its layer without a significant change in {replaced} of {len(kept)} layers."
        )


def masks_with_one_kept(shape: tuple[int, int]) -> list[np.ndarray]:
    """Return masks [L, H], one per head, that keep this head alone in its layer and leave other layers whole."""
    layers, heads = shape
    numbers = np.arange(layers * heads)
    return [mask_without(shape, numbers[(numbers // heads == n // heads) & (numbers != n)]) for n in numbers]


def _changes(ablation: Ablation, scores: Sequence[Scores], shape: tuple[int, int]) -> tuple[dict, dict]:
    """Return ({number: summary}, {number or number_p: [L, H]}) of changes under one mask per head."""
    numbers, arrays = {}, {}
    for name, change in ablation.changes(scores).items():
        values_LH, p_LH = change.value.reshape(shape), change.p.reshape(shape)
        arrays |= {name: values_LH, f"{name}_p": p_LH}
        # A higher loss is worse, a higher metric is better.
        harm_LH = values_LH if name == "loss" else -values_LH
        numbers[name] = {
            "significant": int(np.count_nonzero(p_LH < LEVEL)),
            "worse": int(np.count_nonzero((p_LH < LEVEL) & (harm_LH > 0))),
            "most_harmful": _cell(change, shape, int(harm_LH.argmax())),
            # In `one_kept`, this is the head that replaces its layer best.
            "least_harmful_by_layer": [
                _cell(change, shape, layer * shape[1] + int(row_H.argmin())) for layer, row_H in enumerate(harm_LH)
            ],
        }
    return numbers, arrays


def _cell(change: Difference, shape: tuple[int, int], index: int) -> dict:
    """Return a head, counted from 1, with its change, 95% interval and p-value."""
    layer, head = divmod(index, shape[1])
    value, low, high, p = (float(values[index]) for values in change)
    return {"layer": layer + 1, "head": head + 1, "change": value, "interval": [low, high], "p": p}


def _score(case: Case) -> tuple[str, float]:
    """Return name and value of the whole model's score in figures: the metric if there is one, else the loss."""
    numbers = case.numbers
    return (numbers["metric"], numbers["value"]) if numbers["metric"] else ("loss", numbers["loss"])


def _described(cell: Mapping, number: str) -> str:
    p = "" if np.isnan(cell["p"]) else f" (p = {cell['p']:.3f})"
    return f"layer {cell['layer']}, head {cell['head']}, {number} {cell['change']:+.4f}{p}"


def _histograms(cases: Sequence[Case]) -> "Drawing":
    figure, panels = drawing.panels(len(cases), 3.2, 2.4)
    for panel, case in zip(panels, cases, strict=True):
        number, unmasked = _score(case)
        panel.hist(unmasked + case.arrays[f"one_off_{number}"].ravel(), bins=20, color=drawing.COLORS[0])
        panel.axvline(unmasked, color=drawing.COLORS[1], linestyle="--")
        panel.set(title=case.title, xlabel=f"{number} with one head off", ylabel="heads")
    return figure
