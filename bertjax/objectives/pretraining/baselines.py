"""Scores of model-free baselines."""

import numpy as np


def token_baselines(
    term: str, batch: dict[str, np.ndarray], token_counts: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Host: return the unigram distribution's loss (counts + 1) and the accuracy of always guessing the top token."""
    labels = batch[f"{term}_labels_BK"][batch[f"{term}_weights_BK"] > 0]
    # Add-one smoothing: held-out tokens may be missing from the training split.
    smoothed = token_counts + 1
    losses = np.log(smoothed.sum()) - np.log(smoothed[labels])
    return {
        "unigram_loss": (float(losses.sum()), len(labels)),
        "majority_accuracy": (float(np.sum(labels == np.argmax(token_counts))), len(labels)),
    }


def majority(term: str, labels: np.ndarray, num_labels: int) -> dict[str, tuple[np.ndarray, float]]:
    """Return the baseline `<term>_majority`: number of correct answers for each constant answer."""
    # One count per possible answer; the best one is selected after all batches are added.
    return {f"{term}_majority": (np.bincount(labels, minlength=num_labels), len(labels))}
