"""Calibration of class probabilities: temperature scaling, expected calibration error, and a threshold for answers.

Temperature scaling divides all logits by one number T (Guo et al., 2017, arXiv 1706.04599, section 4.2). It changes no
prediction, only how sure the model is. Functions take probabilities instead of logits: log p equals the logits up to a
constant, which the softmax ignores.
"""

import numpy as np

# Bins of the expected calibration error, as in Guo et al. (2017).
BINS = 15
# The search for T covers any classifier; beyond these bounds probabilities are uniform or 0 and 1 to all digits.
_LOWEST, _HIGHEST = 0.01, 100.0
# Logs of probabilities that float32 has rounded to 0.
_TINY = np.finfo(np.float32).tiny


def scaled(probabilities_MC: np.ndarray, temperature: float) -> np.ndarray:
    """Return softmax(log p / T), the probabilities at a temperature; float64 [M, C]."""
    logits_MC = _logits(probabilities_MC) / temperature
    powers_MC = np.exp(logits_MC - logits_MC.max(axis=-1, keepdims=True))
    return powers_MC / powers_MC.sum(axis=-1, keepdims=True)


def fit_temperature(probabilities_MC: np.ndarray, labels_M: np.ndarray) -> float:
    """Return the temperature with the lowest mean cross-entropy of the labels, between 0.01 and 100.

    It is 1 if every prediction is right: then the cross-entropy falls all the way to T = 0, where every probability is
    0 or 1, and no mistake shows how often a sure answer is wrong.

    Args:
      probabilities_MC: class probabilities at temperature 1.
      labels_M: true classes, int.
    """
    from scipy.optimize import minimize_scalar

    if np.all(probabilities_MC.argmax(axis=-1) == labels_M):
        return 1.0
    logits_MC, columns_M = _logits(probabilities_MC), labels_M.astype(int)

    def loss(log_temperature: float) -> float:
        scaled_MC = logits_MC * np.exp(-log_temperature)
        highest_M = scaled_MC.max(axis=-1)
        log_sums_M = highest_M + np.log(np.exp(scaled_MC - highest_M[:, None]).sum(axis=-1))
        return float(np.mean(log_sums_M - scaled_MC[np.arange(len(columns_M)), columns_M]))

    # The loss is convex in 1 / T, so it has one minimum in log T as well.
    bounds = np.log(_LOWEST), np.log(_HIGHEST)
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x))


def bins_of(confidences_M: np.ndarray) -> np.ndarray:
    """Return the bin of each confidence, from 1 to `BINS` (0 for a confidence of 0); int64 [M]."""
    return np.ceil(confidences_M.astype(np.float64) * BINS).astype(int)


def expected_calibration_error(probabilities_MC: np.ndarray, labels_M: np.ndarray) -> float:
    """Return the mean distance between confidence and accuracy over bins of equal width (Guo et al., 2017, eq. 3).

    The confidence of a prediction is its probability. Bin m holds confidences in ((m - 1) / 15, m / 15], and has the
    weight of its predictions.
    """
    confidences_M = probabilities_MC.max(axis=-1).astype(np.float64)
    is_right_M = probabilities_MC.argmax(axis=-1) == labels_M
    bins_M = bins_of(confidences_M)
    # The weight of a bin cancels the division by its size: |sum of right - sum of confidences| / M.
    differences = np.bincount(bins_M, weights=is_right_M - confidences_M, minlength=BINS + 1)
    return float(np.abs(differences).sum() / len(labels_M))


def fit_threshold(confidences_M: np.ndarray, is_right_M: np.ndarray, precision: float) -> float:
    """Return the threshold that accepts the most predictions among which at least this share is right.

    A prediction is accepted if its confidence is above the threshold. It lies halfway between two confidences, so that
    rounding in another library changes no decision. 0 accepts all; 1 accepts none, if no threshold reaches the
    precision.

    Args:
      confidences_M: probability of each prediction.
      is_right_M: whether each prediction is right.
      precision: smallest share of right predictions, in (0, 1).
    """
    order = np.argsort(-confidences_M, kind="stable")
    sorted_M = confidences_M[order].astype(np.float64)
    precisions_M = np.cumsum(is_right_M[order]) / np.arange(1, len(order) + 1)
    # Equal confidences are accepted together.
    is_last_M = np.append(sorted_M[1:] < sorted_M[:-1], True)
    (candidates,) = np.nonzero((precisions_M >= precision) & is_last_M)
    if not len(candidates):
        return 1.0
    last = candidates[-1]
    return 0.0 if last == len(order) - 1 else float((sorted_M[last] + sorted_M[last + 1]) / 2)


def _logits(probabilities_MC: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probabilities_MC.astype(np.float64), _TINY))
