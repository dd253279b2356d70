"""Masks one head, or all heads of a layer but one, and measures the loss (Michel et al., 2019, section 3)."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.ablation import Ablation, Scores, ablation_of, lacks_objective, scored
from bertjax.analysis.material import Material
from bertjax.analysis.part import Figure, Part, Result
from bertjax.analysis.pruning import mask_without
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject
from bertjax.comparison import resampling
from bertjax.comparison.resampling import Difference
from bertjax.models.taps import HEAD_MASK

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Significance level of Michel et al. (2019, table 1).
LEVEL = 0.01
_PAPER = "Michel et al. (2019, arXiv 1905.10650)"


class Disabling(Part):
    """Loss changes, and a fine-tuned model's metric changes, with heads masked.

    Arrays, all [L, H]: `<model>/<material>/one_off_<number>` is the change in loss or metric if this head is masked,
    and `one_kept_<number>` the change if all other heads in its layer are masked. `..._p` are p-values.
    """

    name = "disabling"
    title = "Disabling heads"
    needs_attention = True

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        return lacks_objective(subject, materials)

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        numbers: dict[str, dict] = {}
        arrays: dict[str, np.ndarray] = {}
        for subject in subjects:
            for material in scored(subject, materials):
                ablation = ablation_of(subject, material)
                layers, heads = shape = ablation.shapes[HEAD_MASK]
                with progress(f"{subject.label}, {material.name}", 2 * layers * heads * ablation.tokens) as bar:
                    one_off = ablation.without_each_head(bar.update)
                    # A layer that loses nothing with a single head left needs no other head.
                    one_kept = [ablation.scores({HEAD_MASK: m}, bar.update) for m in masks_with_one_kept(shape)]
                numbers.setdefault(subject.label, {})[material.name] = _base(ablation)
                for name, scores in (("one_off", one_off), ("one_kept", one_kept)):
                    of_part, of_arrays = _changes(ablation, scores, shape)
                    numbers[subject.label][material.name][name] = of_part
                    arrays |= {f"{subject.label}/{material.name}/{name}_{key}": v for key, v in of_arrays.items()}
        return Result(numbers, arrays, _figures(numbers, arrays), _text(numbers))


def masks_with_one_kept(shape: tuple[int, int]) -> list[np.ndarray]:
    """Return masks [L, H], one per head, that keep this head alone in its layer and leave other layers whole."""
    layers, heads = shape
    numbers = np.arange(layers * heads)
    return [mask_without(shape, numbers[(numbers // heads == n // heads) & (numbers != n)]) for n in numbers]


def _base(ablation: Ablation) -> dict:
    layers, heads = ablation.shapes[HEAD_MASK]
    numbers = {"examples": ablation.examples, "units": ablation.units, "heads": layers * heads}
    return numbers | {
        "loss": ablation.unmasked.loss,
        "metric": ablation.metric or None,
        "value": ablation.unmasked.metric,
    }


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


def _number(numbers: Mapping) -> str:
    """Return the name of the number shown in figures: the metric if there is one, else the loss."""
    return numbers["metric"] or "loss"


def _figures(numbers: dict, arrays: Mapping[str, np.ndarray]) -> list[Figure]:
    pairs = {(label, material): values for label, part in numbers.items() for material, values in part.items()}
    scores = {
        f"{label}, {material}": (
            _number(values),
            values["loss"] if values["metric"] is None else values["value"],
            arrays[f"{label}/{material}/one_off_{_number(values)}"],
        )
        for (label, material), values in pairs.items()
    }
    worst = "; ".join(
        f"{label}, {material}: {_described(values['one_off'][_number(values)]['most_harmful'], _number(values))}"
        for (label, material), values in pairs.items()
    )
    kept = {
        f"{label}, {material} ({_number(values)})": {
            f"{cell['layer']}": cell["change"] for cell in values["one_kept"][_number(values)]["least_harmful_by_layer"]
        }
        for (label, material), values in pairs.items()
    }
    figures = [
        Figure(
            "scores",
            "Number of heads by the score of the model with this head off; the dashed line is the model with all heads "
            f"on. {_PAPER}, figure 1. The head whose loss hurts most: {worst}.",
            f"Histograms of scores with one head off. The head whose loss hurts most: {worst}.",
            functools.partial(_histograms, scores),
        ),
        Figure(
            "one-kept",
            "Change of the score when all heads of a layer are off but the one that serves best alone, by layer. A "
            f"change near 0 is a layer that one head replaces. {_PAPER}, tables 2 and 3.",
            "Bars of the change for each layer: "
            + "; ".join(f"{title}: {', '.join(f'{v:+.4f}' for v in by.values())}" for title, by in kept.items()),
            functools.partial(drawing.bars, kept, "change of the score by layer"),
        ),
    ]
    for material in dict.fromkeys(material for _, material in pairs):
        matrices = {label: arrays[f"{label}/{material}/one_off_loss"] for label, name in pairs if name == material}
        largest = ", ".join(f"{label} {values.max():+.4f}" for label, values in matrices.items())
        figures.append(
            Figure(
                f"one-off-{len(figures) - 1}",
                f"Change of the loss on {material} with one head off, in nats. A row is a layer, a column a head; a "
                f"positive cell is a head that helps. {_PAPER}, table 1, has changes of scores. Largest: {largest}.",
                f"Matrices of layers by heads of the change of the loss on {material}. Largest: {largest}.",
                functools.partial(drawing.matrices, matrices, "change of the loss [nats]", diverging=True),
            )
        )
    return figures


def _described(cell: Mapping, number: str) -> str:
    p = "" if np.isnan(cell["p"]) else f" (p = {cell['p']:.3f})"
    return f"layer {cell['layer']}, head {cell['head']}, {number} {cell['change']:+.4f}{p}"


def _histograms(scores: Mapping[str, tuple[str, float, np.ndarray]]) -> "Drawing":
    with drawing.style():
        figure, panels = drawing.panels(len(scores), 3.2, 2.4)
        for panel, (title, (number, unmasked, changes_LH)) in zip(panels, scores.items(), strict=True):
            panel.hist(unmasked + changes_LH.ravel(), bins=20, color=drawing.COLORS[0])
            panel.axvline(unmasked, color=drawing.COLORS[1], linestyle="--")
            panel.set(title=title, xlabel=f"{number} with one head off", ylabel="heads")
        return figure


def _text(numbers: Mapping) -> str:
    lines = []
    for label, by_material in numbers.items():
        for material, values in by_material.items():
            number = _number(values)
            off, kept = values["one_off"][number], values["one_kept"][number]["least_harmful_by_layer"]
            heads = values["one_off"]["loss"]
            total = values["heads"]
            # Not significant is weak evidence: with few examples, everything is replaceable.
            replaced = sum(cell["p"] >= LEVEL for cell in kept)
            score = values["loss"] if number == "loss" else values["value"]
            start = f"{label} on {material} ({values['examples']:,} examples): {number} {score:.4f}."
            # With fewer units, `Ablation.changes` leaves p-values as NaN.
            if values["units"] < resampling.LEAST_EXAMPLES:
                lines.append(f"{start} The number of rows, {values['units']}, is too small for p-values.")
                continue
            lines.append(
                f"{start} With one head off, "
                f"{off['significant']} of {total} heads change it at p < {LEVEL} ({total * LEVEL:.1f} are expected by "
                f"chance), {off['worse']} for the worse; {heads['significant']} change the loss. One head, chosen on "
                f"the same examples, replaces its layer without a significant change in {replaced} of {len(kept)} "
                "layers."
            )
    rule = (
        "Each head is switched off in turn by a mask on its output, and then all heads of a layer but one. P-values "
        "are two-sided, by the paired bootstrap over rows of examples."
    )
    return f"{rule}\n\n{' '.join(lines)}"
