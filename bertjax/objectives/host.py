"""The host side of objectives, in numpy: features, scores and predictions. It also answers for ONNX files."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, final

import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.data.store import TokenStore


@dataclasses.dataclass(frozen=True)
class Output:
    """Predictions for a batch; a tree of JAX (`bertjax.objectives.base`).

    Attributes:
      array: [B, N, ...] per example, [B, T, ...] per token, [B, N / 2, ...] per pair of examples, or [B, ...] per row.
        Layers and heads are later axes: attention maps and all layers' hidden states are per token, [B, T, L, ...].
      per: `example`, `token`, `pair` or `row`.
    """

    array: Any
    per: str = dataclasses.field(metadata={"static": True})


def is_real(per: str, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a mask of the output elements that are not padding: bool, [B, N], [B, T], [B, N / 2] or [B]."""
    # Empty slots have example id -1, padding tokens have example number 0.
    is_example_BN = batch["example_ids_BN"] >= 0
    masks: dict[str, np.ndarray] = {
        "example": is_example_BN,
        "token": batch["examples_BT"] > 0,
        "pair": is_example_BN[:, ::2],
        "row": np.any(is_example_BN, axis=1),
    }
    return masks[per]


def regroup(outputs: Mapping[str, Output], batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return outputs without padding, flattened over rows: [M, ...] per example, [tokens, ...] per token.

    Args:
      outputs: predictions, copied to the host.
      batch: the core batch that they were computed from.
    """
    return {name: np.asarray(output.array)[is_real(output.per, batch)] for name, output in outputs.items()}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One example for people to read: its text, and each question's answer and model guesses."""

    text: str
    answers: tuple[str, ...]
    guesses: tuple[tuple[str, ...], ...]


# (record, sum, weight): a metric is the ratio of the totals.
RecordScores = list[tuple[Record, float, float]]


@dataclasses.dataclass(frozen=True)
class Traits:
    """Facts about an objective that data, training and evaluation need to know.

    Attributes:
      labels: names of the labels that `features` reads; the examples must carry them.
      text_term: the term whose loss is that of predicted text tokens, in nats; empty if there is none.
      tuned_settings: settings that an evaluation chooses if they are None; it reports them as metrics.
      untuned: {tuned setting: number that predictions use if it is None}; predictions do without the others.
      needs_global_batch: whether terms compare examples across the batch, so that micro-batches would change them.
      trains_words_alone: the setting that keeps steps of other tasks from training words; empty if there is none.
      needs_dropout: whether terms compare two views of a text that differ only by dropout.
      group: number of neighboring slots in a row that hold related examples; N is a multiple of it.
      sharding_rules: (path regex, `PartitionSpec`) for parameters outside `encoder`; heads without a rule are
        replicated.
    """

    labels: tuple[str, ...] = ()
    text_term: str = ""
    tuned_settings: tuple[str, ...] = ()
    untuned: Mapping[str, float] = dataclasses.field(default_factory=dict)
    needs_global_batch: bool = False
    trains_words_alone: str = ""
    needs_dropout: bool = False
    group: int = 1
    sharding_rules: Sequence[tuple[str, Any]] = ()


class Host:
    """What an objective does on the host.

    Attributes:
      traits: see `Traits`; a property if it depends on settings.
      best_metric: metric that selects the best checkpoint, a score, `<term>_loss` or `<term>_bits_per_byte`.
      classes: predicted class names, in order; a field if the classes come from the training file.
    """

    traits: ClassVar[Traits] = Traits()
    best_metric: ClassVar[str] = ""
    classes: ClassVar[tuple[str, ...]] = ()

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Return fixed-shape arrays that extend the core batch or replace some of its arrays.

        Values that depend on `draw.step`, such as an annealed temperature, are features too.
        """
        raise TypeError(f"{type(self).__name__} has no features()")

    def score(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> dict[str, float]:
        """Return metrics that are not sums (F1, correlations), over all examples of an evaluation at once.

        Args:
          outputs: arrays from `outputs` without rows and padding (`regroup`): [M, ...] per example, [tokens of all M
            examples, ...] per token, [M / 2, ...] per pair.
          examples: the M examples, in the same order.
          records: each example's record in a labeled file; empty for a token store.
        """
        return {}

    def predictions(self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]) -> list[Record]:
        """Return each record with its prediction, as plain JSON. Arguments as in `score`.

        Examples made from the same record are combined into one prediction.
        """
        return []

    def scores(
        self, outputs: dict[str, np.ndarray], examples: Ragged, records: list[Record]
    ) -> dict[str, RecordScores]:
        """Return metrics that average over the records of a labeled file, by record. `compare` resamples records."""
        return {}

    def baselines(
        self, batch: dict[str, np.ndarray], token_counts: np.ndarray
    ) -> dict[str, tuple[float | np.ndarray, float]]:
        """Return {metric: (sum, weight)} for model-free baselines on an evaluation batch.

        A sum may be an array with one entry per constant answer; the best answer over all batches counts. A class that
        overrides `terms_of`, `terms` or `weights` has no baselines unless it defines them too.

        Args:
          batch: core batch and features.
          token_counts: counts in the training split, int64: tokens [vocabulary] or labels [classes].
        """
        return {}

    def samples(self, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray], tokenizer) -> list[Sample]:
        """Return rows with the model's guesses, for people to read.

        Args:
          outputs: arrays from `outputs` for these rows, with padding.
          batch: the rows.
          tokenizer: the corpus tokenizer.
        """
        return []

    @property
    def fingerprints(self) -> dict[str, str]:
        """{resource loaded by `bind`: its fingerprint}; part of the run's identity."""
        return {}

    def bind(self, store: TokenStore | None) -> Self:
        """Return the objective with the resources that `features` reads, such as a lexicon or a table of token pairs.

        Without a store, the resources are empty but have the same types, which is enough to get feature shapes.
        """
        return self

    @final
    def copy_with(self, **values: Any) -> Self:
        """Return a copy with other settings, or with attributes that are not settings, such as a loaded lexicon."""
        # dataclasses.replace would drop attributes that are not fields, and frozen dataclasses need object.__setattr__.
        changed = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(changed, name, value)
        return changed


def question_of(objective: object) -> str:
    """Return the kind of bertjax whose question an objective from outside answers; empty if it declares none.

    A class with `question = "bert"` has the features of `bert` in evaluations, and computes its metrics of the same
    names in the same way, so that runs of both are compared by these. A subclass may change that, and has to say it
    again.
    """
    return vars(type(objective)).get("question", "")


def defined_in(kind: type, method: str) -> type:
    """Return the class that a class has a method from."""
    return next(each for each in kind.__mro__ if method in vars(each))
