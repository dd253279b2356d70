"""Labels that are probably wrong, by confident learning.

Northcutt et al. (2021), Confident Learning: Estimating Uncertainty in Dataset Labels, section 3.1 (arXiv 1911.00068).
The probabilities must come from a model that was not trained on these labels.
"""

from collections.abc import Collection, Sequence

import numpy as np

from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled.base import Record


def suspects_of(
    probabilities_MC: np.ndarray, labels_M: np.ndarray, unknown: Collection[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples whose labels are probably wrong, and the classes that they probably have.

    The threshold of a class is the mean probability of the class over the examples with this label. An example is
    suspect if its label is not the most probable class, nor the most probable one among the classes that reach their
    thresholds (equation 1 of the paper). The order is that of the probability of its label, the lowest first.

    Args:
      probabilities_MC: class probabilities of examples that the model was not trained on.
      labels_M: labels, int.
      unknown: classes that are never suggested.

    Returns:
      (indices of the suspects, int64 [S], the most suspect first; their probable classes, int64 [S]).
    """
    probabilities_MC, count = probabilities_MC.astype(np.float64), probabilities_MC.shape[1]
    of_label_M = np.take_along_axis(probabilities_MC, labels_M[:, None], axis=1)[:, 0]
    number_C = np.bincount(labels_M, minlength=count)
    sums_C = np.bincount(labels_M, weights=of_label_M, minlength=count)
    # A class without examples has no threshold that an example could reach.
    thresholds_C = np.divide(sums_C, number_C, out=np.full(count, np.inf), where=number_C > 0)
    thresholds_C[list(unknown)] = np.inf
    is_confident_MC = probabilities_MC >= thresholds_C
    probable_M = np.where(is_confident_MC, probabilities_MC, -1.0).argmax(axis=1)
    # If the label is as probable as any class, as with equal probabilities, nothing speaks against it.
    is_improbable_M = probabilities_MC.max(axis=1) > of_label_M
    is_suspect_M = is_confident_MC.any(axis=1) & (probable_M != labels_M) & is_improbable_M
    (indices,) = np.nonzero(is_suspect_M)
    order = np.argsort(of_label_M[indices], kind="stable")
    return indices[order], probable_M[indices[order]]


def suspect_records(records: Sequence[Record], label: str) -> list[Record]:
    """Return the suspect records among predictions with probabilities, the most suspect first.

    A class that only one fold has was never seen by the model that predicts its records. Its threshold would be near 0,
    and nearly every record would reach it, so it has none.

    Args:
      records: records with `probabilities`, {class: probability}, as `predict` and evaluations return them, and with
        `fold` if several models predicted them.
      label: the field of the label.

    Returns:
      The records with `suggested`, the probable class, and `label_probability`.
    """
    if not records:
        return []
    classes = list(records[0]["probabilities"])
    probabilities_MC, labels_M = arrays_of(records, label)
    return [
        {name: value for name, value in records[index].items() if name != "probabilities"}
        | {"suggested": classes[probable], "label_probability": float(probabilities_MC[index, labels_M[index]])}
        for index, probable in zip(*suspects_of(probabilities_MC, labels_M, _unseen(records, labels_M)), strict=True)
    ]


def _unseen(records: Sequence[Record], labels_M: np.ndarray) -> list[int]:
    """Return the classes all of whose records are in one of several folds."""
    if "fold" not in records[0]:
        return []
    folds_M = np.array([record["fold"] for record in records])
    return [each for each in np.unique(labels_M).tolist() if len(np.unique(folds_M[labels_M == each])) == 1]


def arrays_of(records: Sequence[Record], label: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (class probabilities, float64 [M, C]; labels, int64 [M]) of records with `probabilities`."""
    classes = list(records[0]["probabilities"])
    number = {name: index for index, name in enumerate(classes)}
    labels_M = np.array([number[label_names.class_of(record[label])] for record in records])
    return np.array([[record["probabilities"][name] for name in classes] for record in records]), labels_M
