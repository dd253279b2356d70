"""Importance of heads and neurons, and scores while the least important ones are pruned.

Michel et al. (2019, section 4, arXiv 1905.10650): a head's importance is I_h = E|d L(x) / d xi_h| over examples x,
where xi_h multiplies its output. For a feed-forward neuron, the factor multiplies its activation. As in that formula,
the absolute value is taken per example. The authors' code (are-16-heads-really-better-than-1) takes it per token before
summing, which gives larger numbers in nearly the same order.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.ablation import Ablation, Scores, Update, ablation_of
from bertjax.analysis.material import Material
from bertjax.analysis.part import Case, Figure, Part, by_material, highest, listed
from bertjax.analysis.pruning import SHARES, TOLERATED, by_importance, in_order, kept_up_to, least_first
from bertjax.analysis.reduce import Progress
from bertjax.analysis.subject import Subject
from bertjax.models.importance import FILE, Importance
from bertjax.models.taps import FEEDFORWARD_MASK, HEAD_MASK

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
    (`bertjax.models.importance`). With several models or materials, each has a file of its own,
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
            yield self.figure("heads", chart, number, material=material, largest=highest(matrices, ".4f"))
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
        shares = ", ".join(f"{title} {case.numbers[curve]['kept_up_to']:.0%}" for curve, title in _CURVES.items())
        return f"{case.model} on {case.material} ({case.numbers['examples']:,} examples): {shares}."


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
