"""The host side of objectives on labels, in numpy: predictions and scores from outputs, of JAX or of ONNX Runtime.

Scores equal those of scikit-learn and scipy.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled import tagged
from bertjax.data.labeled.base import WHERE, Record
from bertjax.objectives.finetuning import calibration
from bertjax.objectives.host import Host, RecordScores, Traits


def without_location(record: Record) -> Record:
    """Return a record without the file and line that it was read from."""
    return {key: value for key, value in record.items() if key != WHERE}


def record_scores(records: Sequence[Record], values: np.ndarray) -> RecordScores:
    """Return record scores with equal weights."""
    return [(record, float(value), 1.0) for record, value in zip(records, values, strict=True)]


def majority_accuracy(labels: np.ndarray, counts: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return the accuracy of always predicting the most frequent training class, by training `counts`."""
    return {"majority_accuracy": (float(np.sum(labels == np.argmax(counts))), len(labels))}


def rounded(classes: Iterable[str], values_C: Iterable[float]) -> dict[str, float]:
    """Return {class: probability}."""
    return {name: round(float(value), 6) for name, value in zip(classes, values_C, strict=True)}


def numbers_of(vector: np.ndarray) -> list[float]:
    """Return a vector as numbers, each the shortest decimal with the same float32 value."""
    # `float(number)` would print float32 0.1 as 0.10000000149011612.
    return [float(str(number)) for number in vector]


class ClassAnswers(Host):
    """One class per example, from its `probabilities`.

    With two classes, `f1` scores the second class (`1` in MRPC and QQP); with more classes it is the macro average.

    Attributes:
      temperature, precision, threshold: see `Classification`.
    """

    temperature: ClassVar[float | None] = None
    precision: ClassVar[float | None] = None
    threshold: ClassVar[float | None] = None

    @property
    def traits(self) -> Traits:
        has_threshold = self.precision is not None or self.threshold is not None
        return Traits(labels=("label",), tuned_settings=("temperature", *["threshold"] * has_threshold))

    def score(self, outputs, examples, records):
        labels_M, probabilities_MC = examples.labels["label"].astype(int), outputs["probabilities"]
        guesses_M = probabilities_MC.argmax(axis=-1)
        # Numbers of examples by class: right ones, by label, by prediction. Floats, because squares are large.
        sets = labels_M[labels_M == guesses_M], labels_M, guesses_M
        right_C, labels_C, guesses_C = (np.bincount(each, minlength=len(self.classes)).astype(float) for each in sets)
        f1_C = _f1(right_C, labels_C + guesses_C)
        return {
            "f1": float(f1_C[1] if len(f1_C) == 2 else f1_C.mean()),
            "matthews": _matthews(right_C, labels_C, guesses_C),
            **self._calibration(probabilities_MC, labels_M),
        }

    def _calibration(self, probabilities_MC: np.ndarray, labels_M: np.ndarray) -> dict[str, float]:
        """Return `temperature`, the calibration error before and after it, and what `threshold` accepts."""
        temperature = self.temperature or calibration.fit_temperature(probabilities_MC, labels_M)
        scaled_MC = calibration.scaled(probabilities_MC, temperature)
        scores = {
            "temperature": temperature,
            "ece": calibration.expected_calibration_error(probabilities_MC, labels_M),
            "ece_calibrated": calibration.expected_calibration_error(scaled_MC, labels_M),
        }
        if "threshold" not in self.traits.tuned_settings:
            return scores
        confidences_M, is_right_M = scaled_MC.max(axis=-1), scaled_MC.argmax(axis=-1) == labels_M
        threshold = self.threshold
        if threshold is None:
            threshold = calibration.fit_threshold(confidences_M, is_right_M, cast(float, self.precision))
        is_accepted_M = confidences_M > threshold
        scores |= {"threshold": threshold, "coverage": float(is_accepted_M.mean())}
        return scores | ({"precision": float(is_right_M[is_accepted_M].mean())} if is_accepted_M.any() else {})

    def scores(self, outputs, examples, records):
        is_right = outputs["probabilities"].argmax(axis=-1) == examples.labels["label"]
        return {"accuracy": record_scores(records, is_right)}

    def predictions(self, outputs, examples, records):
        """Return records with `prediction`, a class, and `probabilities`, {class: probability}, at `temperature`.

        With a threshold, `accepted` is whether the probability of the prediction is above it.
        """
        probabilities_MC = outputs["probabilities"]
        if self.temperature is not None:
            probabilities_MC = calibration.scaled(probabilities_MC, self.temperature)
        return [
            without_location(record) | class_probabilities(self.classes, of_record_C) | self._accepted(of_record_C)
            for record, of_record_C in zip(records, probabilities_MC, strict=True)
        ]

    def _accepted(self, probabilities_C: np.ndarray) -> dict[str, bool]:
        return {} if self.threshold is None else {"accepted": bool(probabilities_C.max() > self.threshold)}


def class_probabilities(classes: Sequence[str], probabilities_C: np.ndarray) -> Record:
    """Return `prediction`, the most probable class, and `probabilities`, {class: probability}."""
    best = classes[int(np.argmax(probabilities_C))]
    return {"prediction": best, "probabilities": rounded(classes, probabilities_C)}


class SetAnswers(Host):
    """Any number of classes per example, from its `probabilities`, one per class.

    `f1` is micro-averaged over all decisions, `macro_f1` is the mean over classes, and `exact_match` is the share of
    examples with a completely correct set.

    Attributes:
      threshold: predict a class if its probability is above this.
    """

    threshold: ClassVar[float] = 0.5
    best_metric: ClassVar[str] = "f1"

    def score(self, outputs, examples, records):
        labels_MC, guesses_MC = examples.labels["label_set"] > 0, outputs["probabilities"] > self.threshold
        both_C, either_C = (labels_MC & guesses_MC).sum(axis=0), labels_MC.sum(axis=0) + guesses_MC.sum(axis=0)
        of_all = {"f1": float(_f1(both_C.sum(), either_C.sum()))} if either_C.any() else {}
        return of_all | {"macro_f1": float(_f1(both_C, either_C).mean())}

    def scores(self, outputs, examples, records):
        is_right = np.all((outputs["probabilities"] > self.threshold) == examples.labels["label_set"], axis=-1)
        return {"exact_match": record_scores(records, is_right)}

    def predictions(self, outputs, examples, records):
        """Return records with `prediction`, a list of classes, and `probabilities`, {class: probability}."""
        return [
            without_location(record)
            | {
                "prediction": [name for name, p in zip(self.classes, of_record_C) if p > self.threshold],
                "probabilities": rounded(self.classes, of_record_C),
            }
            for record, of_record_C in zip(records, outputs["probabilities"], strict=True)
        ]


class NumberAnswers(Host):
    """A `number` per example."""

    best_metric: ClassVar[str] = "spearman"

    def score(self, outputs, examples, records):
        """Return correlations with the labels, 0 if predictions are constant, and the loss of their mean."""
        labels = examples.labels["label"]
        return correlations(outputs["number"], labels) | {"label_variance": float(labels.var())}

    def predictions(self, outputs, examples, records):
        """Return records with `prediction`, a number."""
        return [
            without_location(record) | {"prediction": round(float(number), 6)}
            for record, number in zip(records, outputs["number"], strict=True)
        ]


class TagAnswers(Host):
    """A tag per word, from `guesses`, the best tag's index at each token.

    If tags mark entities (O, B-PER, I-PER, ...; see `bertjax.data.labeled.labels`), precision, recall and F1 count
    whole entities over all types together, as in CoNLL-2003 (`conlleval`). Other tags are scored only by accuracy.
    """

    traits: ClassVar[Traits] = Traits(labels=("tag", "word"))

    @property
    def best_metric(self) -> str:
        return "f1" if self.marks_entities else "token_accuracy"

    @property
    def marks_entities(self) -> bool:
        """Whether the tags follow an entity scheme."""
        return label_names.canonical_of(self.classes) is not None

    def _predicted(self, outputs: Mapping[str, np.ndarray], examples: Ragged, records: list[Record]):
        return tagged.predicted(outputs["guesses"], examples, records, self.classes)

    def score(self, outputs, examples, records):
        if not self.marks_entities:
            return {}
        pairs = self._predicted(outputs, examples, records)
        return entity_scores([record["tags"] for record, _ in pairs], [tags for _, tags in pairs], self.classes)

    def scores(self, outputs, examples, records):
        pairs = self._predicted(outputs, examples, records)
        right = ((record, sum(map(str.__eq__, tags, record["tags"]))) for record, tags in pairs)
        return {"token_accuracy": [(record, float(count), float(len(record["tags"]))) for record, count in right]}

    def predictions(self, outputs, examples, records):
        """Return records with `words` and `prediction`, one tag per word, see `tagged.answer_of`."""
        pairs = self._predicted(outputs, examples, records)
        return [without_location(record) | tagged.answer_of(record, tags, self.classes) for record, tags in pairs]


class EmbeddingAnswers(Host):
    """A vector per example, `embedding`."""

    def predictions(self, outputs: dict[str, np.ndarray], examples: Any = None, records: Any = None) -> list[Record]:
        """Return `embedding`, D numbers."""
        return [{"embedding": numbers_of(vector)} for vector in outputs["embedding"]]


def scores_by_class(classes: Sequence[str], confusion_CC: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return {class: {`precision`, `recall`, `f1`, `support`, `taken_for`}}, and two averages. A ratio 0 / 0 is 0.

    `taken_for` is {wrong class that is predicted most often: count}; empty if all predictions are right. The last two
    entries are `macro avg`, the mean over classes, and `weighted avg`, weighted by support; they have no `taken_for`.
    """
    # Recall divides by the row sums (true class), precision by the column sums (prediction).
    right, support = np.diag(confusion_CC), confusion_CC.sum(axis=1)
    precision, recall = ratio(right, confusion_CC.sum(axis=0)), ratio(right, support)
    table = np.stack([precision, recall, ratio(2 * precision * recall, precision + recall)])
    rows = [*zip(classes, table.T, support)]
    rows.append(("macro avg", table.mean(axis=1), support.sum()))
    # [3, C] @ [C]: weight each class by its examples.
    rows.append(("weighted avg", table @ support / support.sum(), support.sum()))
    scores: dict[str, dict[str, Any]] = {
        name: dict(zip(("precision", "recall", "f1"), map(float, values))) | {"support": int(count)}
        for name, values, count in rows
    }
    # Without the diagonal, the largest number of a row is its most frequent error.
    for name, wrong_C in zip(classes, confusion_CC - np.diag(right)):
        scores[name]["taken_for"] = {classes[wrong_C.argmax()]: int(wrong_C.max())} if wrong_C.any() else {}
    return scores


def ratio(parts: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Divide; the result is 0 where the divisor is 0."""
    return np.divide(parts, whole, out=np.zeros(np.broadcast_shapes(parts.shape, whole.shape)), where=whole != 0)


def _f1(both: np.ndarray, either: np.ndarray) -> np.ndarray:
    """Return 2 TP / (predicted + actual), 0 if there are neither."""
    return ratio(2.0 * both, either)


def _matthews(right_C: np.ndarray, labels_C: np.ndarray, guesses_C: np.ndarray) -> float:
    """Return Matthews' correlation for several classes (Gorodkin, 2004); 0 if labels or answers are of one class."""
    total = labels_C.sum()
    spread = (total**2 - guesses_C @ guesses_C) * (total**2 - labels_C @ labels_C)
    return float((right_C.sum() * total - labels_C @ guesses_C) / np.sqrt(spread)) if spread > 0 else 0.0


def correlations(numbers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation; 0 if either side is constant."""
    # The correlation with a constant is not defined.
    if np.ptp(numbers) == 0 or np.ptp(labels) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    pairs = {"pearson": (numbers, labels), "spearman": (_ranks(numbers), _ranks(labels))}
    return {name: float(np.corrcoef(np.stack(pair), dtype=np.float64)[0, 1]) for name, pair in pairs.items()}


def _ranks(values_M: np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values share the mean of their ranks. With a NaN among them, no value has a rank."""
    _, places_M, counts = np.unique(values_M, return_inverse=True, return_counts=True)
    return np.where(np.isnan(values_M).any(), np.nan, (np.cumsum(counts) - (counts + 1) / 2)[places_M])


def entity_scores(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], classes: Iterable[str] = ()
) -> dict[str, float]:
    """Return micro-averaged `precision`, `recall` and `f1` over whole entities; 0 if there is nothing to count.

    Args:
      gold: correct tags per sentence.
      predicted: predicted tags per sentence.
      classes: all tags, from which the scheme is inferred; by default all tags in `gold` and `predicted`.
    """
    gold, predicted = list(gold), list(predicted)
    canonical = label_names.canonical_of(classes or {tag for tags in (*gold, *predicted) for tag in tags}) or str
    correct = num_gold = num_predicted = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        of_gold, of_predicted = (label_names.entities([*map(canonical, tags)]) for tags in (gold_tags, predicted_tags))
        correct += len(of_gold & of_predicted)
        num_gold += len(of_gold)
        num_predicted += len(of_predicted)
    return {
        "precision": correct / max(1, num_predicted),
        "recall": correct / max(1, num_gold),
        "f1": 2 * correct / max(1, num_gold + num_predicted),
    }
