"""Minimal pairs for several models: preferences pair by pair."""

from collections.abc import Sequence

from bertjax.analysis.subject import Subject
from bertjax.data.labeled.base import Record
from bertjax.inference.likelihood import is_causal
from bertjax.inference.masked import masked_lm
from bertjax.inference.minimal_pairs import GROUPINGS
from bertjax.runtime.errors import UserError
from bertjax.training.results.scores import Scores, scores_of_records


def check(subjects: Sequence[Subject]) -> None:
    """Check all models before the first one judges a pair.

    Raises:
      UserError: a model has neither a masked-LM head nor a causal one.
    """
    for subject in subjects:
        if not (masked_lm(subject.export) or is_causal(subject.export)):
            raise UserError(
                f"{subject.label} has neither a masked-LM head nor a causal one, which minimal pairs need; leave it out"
            )


def scores_of(pairs: Sequence[Record], judged: Sequence[Record]) -> dict[str, Scores]:
    """Return accuracy per pair: overall, and for each group in the coarsest grouping that the pairs have."""
    points = [(pair, judgment["point"], 1.0) for pair, judgment in zip(pairs, judged, strict=True)]
    scores = {"accuracy": scores_of_records(points)}
    # The finest grouping, BLiMP's 67 paradigms, would be too many rows for a comparison.
    grouping = next((name for name in reversed(GROUPINGS) if any(name in pair for pair in pairs)), None)
    for group in dict.fromkeys(str(pair[grouping]) for pair in pairs if grouping in pair):
        members = [point for point in points if str(point[0].get(grouping)) == group]
        scores[f"{group}/accuracy"] = scores_of_records(members)
    return scores
