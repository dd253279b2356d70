"""Answers to questions as spans of a context (Devlin et al., 2019, sections 4.2 and 4.3; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record
from bertjax.data.labeled.questions import NO_ANSWER
from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.finetuning import squad_metrics
from bertjax.objectives.finetuning.base import shown
from bertjax.objectives.finetuning.tokens import TokenModule, by_record


@dataclasses.dataclass(frozen=True)
class _Answer:
    """What is said to a question.

    Attributes:
      spans: (score, begin, stop), the best answers, best first: context[begin:stop].
      no_answer: the score of [CLS], the lowest of the windows.
    """

    record: Record
    spans: list[tuple[float, int, int]]
    no_answer: float

    @property
    def margin(self) -> float:
        """By how much no answer scores higher than the best one."""
        return self.no_answer - self.spans[0][0]

    def text(self, place: int = 0) -> str:
        _, begin, stop = self.spans[place]
        return self.record["context"][begin:stop]

    @property
    def gold(self) -> list[str]:
        return [answer["text"] for answer in self.record["answers"]]


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(Objective):
    """Predicts the first and the last token of an answer. Terms: `span`, the mean of the losses of both.

    Both are softmaxes over the tokens of the example, whatever else is in its row. A span scores the sum of its two
    logits; the best ones over all windows of a context are kept, each from the window that gives its first token the
    most context. Where the training file has questions without an answer (SQuAD 2.0), none is given if [CLS] scores
    more than `threshold` above the best answer. `exact_match` and `f1` are percentages, as SQuAD has them.

    Attributes:
      threshold: of no answer. Where the answers are known, the one that gives the highest F1 is taken in its place and
        reported as `threshold` (Devlin et al., 4.3).
      longest: tokens of an answer.
      nbest: answers that are kept for each question.
      classes: see `Objective`: whether there are questions without an answer.
    """

    threshold: float = 0.0
    longest: int = 30
    nbest: int = 20
    classes: tuple[str, ...] = ()
    labels: ClassVar[tuple[str, ...]] = ("start", "end", "begin", "stop", "most_context")
    best_metric: ClassVar[str] = "f1"
    term: ClassVar[str] = "span"

    def __post_init__(self):
        for field in ("longest", "nbest"):
            if getattr(self, field) < 1:
                raise UserError(f"objective.{field}={getattr(self, field)} must be at least 1")

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return TokenModule(encoder, self.term, 2)

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        starts, ends = (examples.ragged.labels[name] for name in ("start", "end"))
        return {
            "start_columns_BN": examples.examples_to_rows((examples.starts + starts).astype(np.int32)),
            "end_columns_BN": examples.examples_to_rows((examples.starts + ends).astype(np.int32)),
            "weights_BN": examples.examples_to_rows((starts >= 0).astype(np.float32)),
        }

    def weights(self, batch: Arrays) -> Arrays:
        return {self.term: jnp.sum(batch["weights_BN"])}

    def terms(self, module, params, frozen, batch, key, train):
        logits_BT2 = module.apply({"params": params}, batch, key if train else None)
        slots = batch["weights_BN"].shape[1]
        own_BNT = batch["examples_BT"][:, None, :] == 1 + jnp.arange(slots)[:, None]
        columns = (batch["start_columns_BN"], batch["end_columns_BN"])
        losses, rights = zip(*(_span_end(logits_BT2[..., i], columns[i], own_BNT) for i in range(2)))
        weights_BN = batch["weights_BN"]
        # An empty slot has no token to be certain of, and its loss is no number.
        loss_BN = jnp.where(weights_BN > 0, losses[0] + losses[1], 0.0) / 2
        right = jnp.sum(weights_BN * (rights[0] & rights[1]))
        return {self.term: jnp.sum(weights_BN * loss_BN)}, {"span_accuracy": (right, jnp.sum(weights_BN))}

    def outputs(self, module, params, batch):
        """`logits_BT2`, of beginning and of ending an answer."""
        return {"logits_BT2": module.apply({"params": params}, batch)}

    def score(self, outputs, examples, records):
        said = self._answers(outputs, examples, records)
        exact = np.array([squad_metrics.exact_match(answer.text(), answer.gold) for answer in said])
        f1 = np.array([squad_metrics.f1(answer.text(), answer.gold) for answer in said])
        if NO_ANSWER not in self.classes:
            return {"exact_match": 100 * float(exact.mean()), "f1": 100 * float(f1.mean())}
        threshold = self._tuned(said)
        refused = np.array([answer.margin > threshold for answer in said])
        without = np.array([not answer.gold for answer in said])
        exact, f1 = np.where(refused, without, exact), np.where(refused, without, f1)
        apart = {"f1_with_answer": f1[~without], "f1_without_answer": f1[without]}
        return {
            "exact_match": 100 * float(exact.mean()),
            "f1": 100 * float(f1.mean()),
            **{name: 100 * float(scores.mean()) for name, scores in apart.items() if len(scores)},
            "threshold": threshold,
        }

    def predictions(self, outputs, examples, records):
        """Each question with its `prediction`, `begin` and `stop` of that in the context, `score` and `nbest`.

        Where there may be none, also `no_answer`, its score; the prediction is then empty if that is too high.
        """
        said = self._answers(outputs, examples, records)
        threshold = self._tuned(said) if all("answers" in answer.record for answer in said) else self.threshold
        return [self._prediction(answer, threshold) for answer in said]

    def _prediction(self, answer: _Answer, threshold: float) -> Record:
        best = [
            {"text": answer.text(place), "begin": begin, "stop": stop, "score": round(score, 4)}
            for place, (score, begin, stop) in enumerate(answer.spans)
        ]
        question = {key: value for key, value in shown(answer.record).items() if key != "context"}
        first = {"prediction": best[0]["text"], **{key: best[0][key] for key in ("begin", "stop", "score")}}
        if NO_ANSWER in self.classes:
            first["no_answer"] = round(answer.no_answer, 4)
            if answer.margin > threshold:
                first |= {"prediction": "", "begin": -1, "stop": -1}
        return question | first | {"nbest": best}

    def _tuned(self, said: list[_Answer]) -> float:
        """The threshold with the highest F1."""
        answered = np.array([squad_metrics.f1(answer.text(), answer.gold) for answer in said])
        refused = np.array([float(not answer.gold) for answer in said])
        return squad_metrics.best_threshold(np.array([answer.margin for answer in said]), answered, refused)

    def _answers(self, outputs, examples: Ragged, records: list[Record]) -> list[_Answer]:
        said = []
        for record, windows in by_record(examples, records):
            found, no_answer = [], np.inf
            for window in windows:
                tokens = slice(*examples.offsets[window : window + 2])
                logits_T2 = outputs["logits_BT2"][tokens].astype(np.float64)
                no_answer = min(no_answer, float(logits_T2[0].sum()))
                spans = {name: examples.token_labels[name][tokens] for name in ("begin", "stop", "most_context")}
                found += _best_spans(logits_T2, **spans, longest=self.longest, count=self.nbest)
            if found:  # `eval.rows` may have left out the windows that can answer
                said.append(_Answer(record, _without_repeats(found, record["context"])[: self.nbest], no_answer))
        return said


def _span_end(logits_BT: jax.Array, columns_BN: jax.Array, own_BNT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy of a column among the tokens of its own example, and whether that is the best; both [B, N]."""
    logits_BNT = jnp.where(own_BNT, logits_BT[:, None, :], jnp.finfo(logits_BT.dtype).min)
    true_BNT = jnp.arange(logits_BT.shape[1]) == columns_BN[..., None]
    true_BN = jnp.sum(jnp.where(true_BNT, logits_BT[:, None, :], 0.0), axis=-1)
    return jax.nn.logsumexp(logits_BNT, axis=-1) - true_BN, jnp.max(logits_BNT, axis=-1) <= true_BN


def _best_spans(logits_T2, begin, stop, most_context, longest: int, count: int) -> list[tuple[float, int, int]]:
    """(score, begin, stop) of the best spans of one window."""
    context = np.flatnonzero(stop > begin)  # a token that is a space alone neither begins nor ends an answer
    starts = context[most_context[context]]
    lengths = np.arange(longest)
    ends = np.minimum(starts[:, None] + lengths, len(logits_T2) - 1)
    possible = (starts[:, None] + lengths < len(logits_T2)) & (stop > begin)[ends]
    scores = np.where(possible, logits_T2[starts, 0][:, None] + logits_T2[ends, 1], -np.inf)
    order = np.argsort(-scores, axis=None, kind="stable")[: min(count, int(possible.sum()))]
    rows, columns = np.unravel_index(order, scores.shape)
    return [
        (float(scores[row, column]), int(begin[starts[row]]), int(stop[ends[row, column]]))
        for row, column in zip(rows, columns)
    ]


def _without_repeats(spans: list[tuple[float, int, int]], context: str) -> list[tuple[float, int, int]]:
    """The spans, best first, but none whose text is that of a better one."""
    kept = {}
    for span in sorted(spans, key=lambda span: -span[0]):
        kept.setdefault(context[span[1] : span[2]], span)
    return list(kept.values())
