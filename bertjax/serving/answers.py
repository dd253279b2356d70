"""Answers from logits, in numpy: the same values and names as `predictions` of the objectives.

Probabilities are rounded to six digits, as `bertjax predict` does.
"""

from typing import Any

import numpy as np

from bertjax.serving.description import CLASSIFICATION, EMBEDDING, MULTI_LABEL, REGRESSION, Description


def softmax(logits_MC: np.ndarray) -> np.ndarray:
    """Return probabilities over the last axis, float64: differences of float32 logits keep all of their digits."""
    shifted_MC = logits_MC.astype(np.float64)
    shifted_MC = np.exp(shifted_MC - shifted_MC.max(axis=-1, keepdims=True))  # the largest power is 1: no overflow
    return shifted_MC / shifted_MC.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), float64, without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))


def values_of(description: Description, outputs: np.ndarray) -> np.ndarray:
    """Return probabilities [M, C] (classes), numbers [M] (regression) or vectors [M, D] (embeddings).

    Args:
      description: the model.
      outputs: rows of its output, float32 [M, C] or [M, D].
    """
    if description.task == CLASSIFICATION:
        return softmax(outputs)
    if description.task == MULTI_LABEL:
        return sigmoid(outputs)
    if description.task == REGRESSION:
        numbers_M = outputs[:, 0].astype(np.float64)
        return sigmoid(numbers_M) if description.activation == "sigmoid" else numbers_M
    return outputs


def answers_of(description: Description, values: np.ndarray) -> list[dict[str, Any]]:
    """Return one answer per row of `values_of`, as JSON values.

    - classification: `prediction`, `probabilities` by class, and with a threshold `accepted`.
    - multi_label: `prediction`, the list of classes above the threshold, and `probabilities`.
    - regression: `prediction`, a number.
    - embedding: `embedding`, a list of numbers.
    """
    return [_ANSWERS[description.task](description, value) for value in values]


def _class(description: Description, value_C: np.ndarray) -> dict[str, Any]:
    best = int(value_C.argmax())
    answer: dict[str, Any] = {"prediction": description.labels[best], "probabilities": _named(description, value_C)}
    if description.threshold is not None:
        answer["accepted"] = bool(value_C[best] > description.threshold)
    return answer


def _classes(description: Description, value_C: np.ndarray) -> dict[str, Any]:
    threshold = 0.5 if description.threshold is None else description.threshold
    chosen = [name for name, value in zip(description.labels, value_C, strict=True) if value > threshold]
    return {"prediction": chosen, "probabilities": _named(description, value_C)}


def _named(description: Description, value_C: np.ndarray) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in zip(description.labels, value_C, strict=True)}


_ANSWERS = {
    CLASSIFICATION: _class,
    MULTI_LABEL: _classes,
    REGRESSION: lambda _, value: {"prediction": round(float(value), 6)},
    # `float(number)` would print float32 0.1 as 0.10000000149011612.
    EMBEDDING: lambda _, value: {"embedding": [float(str(number)) for number in value]},
}
