"""Parts `disabling` and `importance`: heads that are switched off, ranked and pruned.

Michel et al. (2019, section 4, arXiv 1905.10650): a head's importance is I_h = E|d L(x) / d xi_h| over examples x,
where xi_h multiplies its output. For a feed-forward neuron, the factor multiplies its activation. As in that formula,
the absolute value is taken per example. The authors' code (are-16-heads-really-better-than-1) takes it per token before
summing, which gives larger numbers in nearly the same order.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.ablation import Ablation, Scores, Update, ablation_of, mask_without
from bertjax.analysis.material import Material
from bertjax.analysis.page import caption
from bertjax.analysis.part import Case, Figure, Part, by_material, highest, listed
from bertjax.analysis.reduce import Progress
from bertjax.analysis.subject import Subject
from bertjax.comparison import resampling
from bertjax.comparison.resampling import Difference
from bertjax.models.cut import FILE, Importance, normalized
from bertjax.models.taps import FEEDFORWARD_MASK, HEAD_MASK

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Pruned shares of heads or neurons, as in figure 3 of the paper.
SHARES = tuple(tenths / 10 for tenths in range(11))
# A model keeps its score if it loses at most this fraction of it.
TOLERATED = 0.1


def least_first(*keys: np.ndarray) -> np.ndarray:
    """Return indices of the flattened entries, lowest first; int64.

    Args:
      keys: arrays of one shape. Ties in the first are broken by the next, then by index.
    """
    # `lexsort` sorts by its last key first, hence `reversed`.
    return np.lexsort([key.ravel() for key in reversed(keys)])


def in_order(shape: tuple[int, int], order: np.ndarray) -> list[np.ndarray]:
    """Return one mask per entry of `SHARES`, pruning in a fixed order."""
    return [mask_without(shape, order[: round(share * len(order))]) for share in SHARES]


def by_importance(
    shape: tuple[int, int], importance_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return one mask per entry of `SHARES` and the pruning order, with importance computed again at each share.

    The least important remaining entries are pruned first. Importance is divided by its layer's norm, pruned entries
    included.

    Args:
      shape: [L, H] or [L, F].
      importance_of: maps a mask [L, ...] to the importance [L, ...] of all entries.
    """
    total = int(np.prod(shape))
    pruned, masks = np.empty(0, np.int64), []
    for share in SHARES:
        if (count := round(share * total)) > len(pruned):
            # Pruning changes what the others are worth, so importance is measured on the pruned model, not once.
            order = least_first(normalized(importance_of(masks[-1])))
            left = order[~np.isin(order, pruned)]
            pruned = np.concatenate([pruned, left[: count - len(pruned)]])
        masks.append(mask_without(shape, pruned))
    return masks, pruned


def kept_up_to(scores: Sequence[float]) -> float:
    """Return the largest of `SHARES` up to which the model keeps its score.

    Args:
      scores: score at each of `SHARES`, higher is better.
    """
    lost = np.asarray(scores) < scores[0] - TOLERATED * abs(scores[0])
    # `argmax` finds the first loss; the appended True stands for a score that is never lost.
    return SHARES[int(np.argmax(np.append(lost, True))) - 1]


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
        largest = highest({title: [*row.values()] for title, row in kept.items()}, "+.4f", np.abs)
        yield self.figure("one-kept", drawing.bars({"": kept}, "change of the score", "layer"), largest=largest)
        for number, (material, of_models) in enumerate(by_material(cases), 1):
            matrices = {label: case.arrays["one_off_loss"] for label, case in of_models.items()}
            chart = drawing.matrices(matrices, "change of the loss [nats]", diverging=True)
            yield self.figure("one-off", chart, number, material=material, largest=highest(matrices, "+.4f"))

    def sentence(self, case: Case) -> str:
        (number, score), values = _score(case), case.numbers
        # With fewer units, `Ablation.changes` leaves p-values as NaN.
        if values["units"] < resampling.LEAST_EXAMPLES:
            return f"{number} {score:.4f}. The number of rows, {values['units']}, is too small for p-values."
        off, kept = values["one_off"][number], values["one_kept"][number]["least_harmful_by_layer"]
        counts = {"heads": values["heads"], "chance": values["heads"] * LEVEL, "level": LEVEL, "layers": len(kept)}
        # Not significant is weak evidence: with few examples, everything is replaceable.
        counts |= {"of_loss": values["one_off"]["loss"]["significant"], "replaced": sum(c["p"] >= LEVEL for c in kept)}
        return caption("disabling/case", number=number, score=score, **counts, **off)[0]


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


# Cost of forward plus backward pass, in forward passes.
_BACKWARD = 3
_CURVES = {
    "heads_by_importance": "heads, by importance",
    # Two orders for heads: by gradient, and by the score with each head masked alone.
    "heads_by_difference": "heads, by single differences",
    "neurons_by_importance": "neurons, by importance",
}


class ImportanceOfParts(Part):
    """Importance of heads and neurons, and scores during pruning.

    Arrays: `<model>/<material>/heads` [L, H] and `neurons` [L, F], and for each curve `<curve>_loss` and
    `<curve>_<metric>` [11], one value per pruned tenth. The file `importance.json` has the first two
    (`bertjax.models.cut`). With several models or materials, each has a file of its own,
    `importance-<model>-<material>.json`.
    """

    name = "importance"
    title = "Importance and pruning of heads"
    needs_attention = True
    needs_objective = True
    constants = {"kept_share": 1 - TOLERATED, "lost_share": TOLERATED}
    other_axes = ("shares", *_CURVES)

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        ablation = ablation_of(subject, material)
        with progress(f"{subject.label}, {material.name}", _passes(ablation) * ablation.tokens) as bar:
            importance = ablation.importance({}, _slow(bar.update))
            curves = _curves(ablation, importance, bar.update)
        arrays = {"heads": importance[HEAD_MASK], "neurons": importance[FEEDFORWARD_MASK]}
        numbers = {"examples": ablation.examples, "metric": ablation.metric or None, "shares": list(SHARES)}
        numbers["objective"] = type(ablation.objective).__name__
        for name, scores in curves.items():
            numbers[name] = _numbers(ablation, scores)
            scores = {key: np.array(value) for key, value in numbers[name].items() if key != "kept_up_to"}
            arrays |= {f"{name}_{key}": values for key, values in scores.items()}
        return numbers, arrays

    def files(self, cases: Sequence[Case]) -> dict[str, bytes]:
        files = {}
        for case in cases:
            # Labels may contain slashes and spaces; a file name must not.
            pair = re.sub(r"[^\w.@-]+", "-", f"{case.model}-{case.material}")
            about = case.model, case.material, case.numbers["examples"], case.numbers["objective"]
            importance = Importance(case.arrays["heads"], case.arrays["neurons"], *about)
            files[FILE.replace(".", f"-{pair}.") if len(cases) > 1 else FILE] = importance.to_json()
        return files

    def figures(self, cases: Sequence[Case]) -> Iterator[Figure]:
        for number, (material, of_models) in enumerate(by_material(cases), 1):
            matrices = {label: case.arrays["heads"] for label, case in of_models.items()}
            chart = drawing.matrices(matrices, "importance [nats]", (0.0, None))
            yield self.figure("heads", chart, number, material=material, largest=highest(matrices, ".3g"))
            score = next(iter(of_models.values())).numbers["metric"] or "loss"
            for of, curves in (("heads", tuple(_CURVES)[:2]), ("neurons", tuple(_CURVES)[2:])):
                lines, kept = {}, {}
                for label, case in of_models.items():
                    for curve in curves:
                        title = f"{label}, {_CURVES[curve].partition(', ')[2]}"
                        lines[title] = [100 * share for share in SHARES], case.numbers[curve][score]
                        kept[title] = case.numbers[curve]["kept_up_to"]
                chart = drawing.curves(lines, f"{of} pruned [%]", score)
                values = {"material": material, "score": score, "kept": listed(kept, ".0%")}
                yield self.figure(f"pruned-{of}", chart, number, **values)

    def sentence(self, case: Case) -> str:
        return f"{listed({title: case.numbers[curve]['kept_up_to'] for curve, title in _CURVES.items()}, '.0%')}."


def _passes(ablation: Ablation) -> int:
    """Return the number of forward passes over all examples; a backward pass counts as `_BACKWARD`."""
    layers, heads = ablation.shapes[HEAD_MASK]
    return layers * heads + len(_CURVES) * (len(SHARES) - 1) + _BACKWARD * (1 + 2 * (len(SHARES) - 2))


def _slow(update: Update) -> Update:
    return lambda tokens: update(_BACKWARD * tokens)


def _curves(ablation: Ablation, importance: Mapping[str, np.ndarray], update: Update) -> dict[str, list[Scores]]:
    """Return {curve: scores at each of `SHARES`}."""

    def importance_of(name: str, mask: np.ndarray) -> np.ndarray:
        # The first step prunes from the whole model, for which importance is already known.
        if mask.all():
            return importance[name]
        return ablation.importance({name: mask}, _slow(update))[name]

    masks = {
        curve: (name, by_importance(ablation.shapes[name], functools.partial(importance_of, name))[0])
        for curve, name in (("heads_by_importance", HEAD_MASK), ("neurons_by_importance", FEEDFORWARD_MASK))
    }
    changes = [_harm(ablation, scores) for scores in ablation.without_each_head(update)]
    # The metric decides first and the loss breaks ties: on few examples many heads change the metric equally.
    order = least_first(*np.array(changes).T)
    masks["heads_by_difference"] = HEAD_MASK, in_order(ablation.shapes[HEAD_MASK], order)
    return {
        curve: [ablation.unmasked, *(ablation.scores({name: mask}, update) for mask in masks_of_shares[1:])]
        for curve, (name, masks_of_shares) in sorted(masks.items())
    }


def _harm(ablation: Ablation, scores: Scores) -> tuple[float, float]:
    """Return how much the metric falls and the loss rises; without a metric, the rise twice."""
    rise = scores.loss - ablation.unmasked.loss
    return (ablation.unmasked.metric - scores.metric if ablation.metric else rise), rise


def _numbers(ablation: Ablation, curve: Sequence[Scores]) -> dict:
    """Return loss and metric at each share, and the largest share up to which the model keeps its score."""
    numbers = {"loss": [scores.loss for scores in curve]}
    if ablation.metric:
        numbers[ablation.metric] = [scores.metric for scores in curve]
        return numbers | {"kept_up_to": kept_up_to(numbers[ablation.metric])}
    return numbers | {"kept_up_to": kept_up_to([-loss for loss in numbers["loss"]])}
