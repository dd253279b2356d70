"""Extractive question answering (Devlin et al., 2019, sections 4.2 and 4.3; arXiv 1810.04805)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record, by_record
from bertjax.data.labeled.questions import NO_ANSWER
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.objectives.base import Arrays
from bertjax.objectives.finetuning import squad_metrics
from bertjax.objectives.finetuning.answers import record_scores, without_location
from bertjax.objectives.finetuning.base import TokenObjective
from bertjax.objectives.host import Output, Traits
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class _Answer:
    """The best answers to one question.

    Attributes:
      record: the question and its context.
      spans: (score, begin, stop) for each answer context[begin:stop], best first.
      no_answer: lowest [CLS] score over all windows.
    """

    record: Record
    spans: list[tuple[float, int, int]]
    no_answer: float

    @property
    def margin(self) -> float:
        """No-answer score minus the best answer's score."""
        return self.no_answer - self.spans[0][0]

    def text(self, place: int = 0) -> str:
        _, begin, stop = self.spans[place]
        return self.record["context"][begin:stop]

    @property
    def gold(self) -> list[str]:
        return [answer["text"] for answer in self.record["answers"]]

    @property
    def unit(self) -> str:
        """The unit that metrics count in this context, see `squad_metrics.unit_of`."""
        return squad_metrics.unit_of(self.record["context"])

    @property
    def f1(self) -> float:
        return squad_metrics.f1(self.text(), self.gold, self.unit)


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(TokenObjective):
    """Predicts an answer's first and last token. Terms: `span`, the mean of both losses.

    Each loss is a softmax over the example's own tokens, whatever else shares the row. A span's score is the sum of its
    two logits. The best spans over all windows are kept, each from the window that gives its first token the most
    context. If the training file has unanswerable questions (SQuAD 2.0), the answer is empty when [CLS] scores more
    than `threshold` above the best span. `exact_match` and `f1` are percentages, as in SQuAD; they count characters in
    Korean and in scripts without spaces (`squad_metrics`).

    Attributes:
      threshold: margin above which the answer is empty. None: each evaluation in a run picks the threshold with the
        highest F1 and reports it as `threshold` (Devlin et al., 4.3), and the export keeps the last one.
      longest: maximum number of tokens in an answer.
      nbest: number of answers to keep per question.
      classes: empty, or `NO_ANSWER` if there are unanswerable questions.
    """

    threshold: float | None = None
    longest: int = setting(30, least=1)
    nbest: int = setting(20, least=1)
    classes: tuple[str, ...] = ()
    best_metric: ClassVar[str] = "f1"
    term: ClassVar[str] = "span"
    num_outputs: ClassVar[int] = 2

    @property
    def traits(self) -> Traits:
        tuned = ("threshold",) if NO_ANSWER in self.classes else ()
        labels = ("start", "end", "begin", "stop", "most_context")
        return Traits(labels=labels, tuned_settings=tuned, untuned=dict.fromkeys(tuned, 0.0))

    def heads(self, config):
        """Return the heads.

        Raises:
          UserError: [CLS] must score "no answer", but cannot see the context in this encoder.
        """
        # Only a causal encoder hides the context from [CLS]. A bidirectional LSTM reads [CLS] last in one direction.
        if NO_ANSWER in self.classes and config.direction != BIDIRECTIONAL:
            raise UserError(
                f"[CLS] scores that a question has no answer, and model.direction={config.direction} does not let it "
                f"see the context; use a model with model.direction={BIDIRECTIONAL}, or remove questions without an "
                "answer"
            )
        return super().heads(config)

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        # Labels count from the start of an example; columns count from the start of its row.
        starts, ends = (examples.ragged.labels[name] for name in ("start", "end"))
        return {
            "start_columns_BN": examples.examples_to_rows((examples.starts + starts).astype(np.int32)),
            "end_columns_BN": examples.examples_to_rows((examples.starts + ends).astype(np.int32)),
            "weights_BN": examples.examples_to_rows((starts >= 0).astype(np.float32)),
        }

    def soft_logits(self, logits, batch):
        """Return first-token and last-token logits over each example's own tokens, [B, N, 2, T]."""
        logits_B12T = jnp.moveaxis(logits, -1, 1)[:, None]
        return jnp.where(_own_tokens(batch)[:, :, None], logits_B12T, jnp.finfo(logits.dtype).min)

    def soft_weights(self, batch):
        return jnp.repeat(batch["weights_BN"][..., None], 2, axis=-1)

    def terms_of(self, logits, batch):
        own_BNT = _own_tokens(batch)
        columns = (batch["start_columns_BN"], batch["end_columns_BN"])
        losses, is_best = zip(*(_span_end(logits[..., i], columns[i], own_BNT) for i in range(2)))
        weights_BN = batch["weights_BN"]
        # Empty slots have no tokens, so their loss is not finite.
        loss_BN = jnp.where(weights_BN > 0, losses[0] + losses[1], 0.0) / 2
        correct = jnp.sum(weights_BN * (is_best[0] & is_best[1]))
        return {self.term: jnp.sum(weights_BN * loss_BN)}, {"span_accuracy": (correct, jnp.sum(weights_BN))}

    def outputs(self, model, params, batch, taps=None):
        """Return `logits` for an answer's first and last token, [B, T, 2]."""
        return {"logits": Output(self.apply(model, params, batch, taps=taps), per="token")}

    def score(self, outputs, examples, records):
        answers = self._answers(outputs, examples, records)
        graded = self._graded(answers)
        scores = {name: float(values.mean()) for name, values in graded.items()}
        if NO_ANSWER not in self.classes:
            return scores
        without = np.array([not answer.gold for answer in answers])
        by_kind = {"f1_with_answer": graded["f1"][~without], "f1_without_answer": graded["f1"][without]}
        scores |= {name: float(values.mean()) for name, values in by_kind.items() if len(values)}
        return scores | {"threshold": self._threshold(answers)}

    def scores(self, outputs, examples, records):
        answers = self._answers(outputs, examples, records)
        questions = [answer.record for answer in answers]
        return {name: record_scores(questions, values) for name, values in self._graded(answers).items()}

    def _graded(self, answers: list[_Answer]) -> dict[str, np.ndarray]:
        """Return `exact_match` and `f1` per question, 0 to 100; an empty prediction is right if there is no answer."""
        exact = np.array([squad_metrics.exact_match(answer.text(), answer.gold, answer.unit) for answer in answers])
        f1 = np.array([answer.f1 for answer in answers])
        if NO_ANSWER in self.classes:
            threshold = self._threshold(answers)
            refused = np.array([answer.margin > threshold for answer in answers])
            without = np.array([not answer.gold for answer in answers])
            exact, f1 = np.where(refused, without, exact), np.where(refused, without, f1)
        return {"exact_match": 100.0 * exact, "f1": 100.0 * f1}

    def predictions(self, outputs, examples, records):
        """Return questions with `prediction`, its `begin` and `stop` in the context, `score` and `nbest`.

        If answers may be empty, `no_answer` is the no-answer score, and `prediction` is empty if it is too high.
        """
        answers = self._answers(outputs, examples, records)
        threshold = self._threshold(answers)
        return [self._prediction(answer, threshold) for answer in answers]

    def _prediction(self, answer: _Answer, threshold: float) -> Record:
        best = [
            {"text": answer.text(place), "begin": begin, "stop": stop, "score": round(score, 4)}
            for place, (score, begin, stop) in enumerate(answer.spans)
        ]
        question = {key: value for key, value in without_location(answer.record).items() if key != "context"}
        first = {"prediction": best[0]["text"], **{key: best[0][key] for key in ("begin", "stop", "score")}}
        if NO_ANSWER in self.classes:
            first["no_answer"] = round(answer.no_answer, 4)
            if answer.margin > threshold:
                first |= {"prediction": "", "begin": -1, "stop": -1}
        return question | first | {"nbest": best}

    def _threshold(self, answers: list[_Answer]) -> float:
        """Return the configured threshold, or the one with the highest F1; 0 if answers are unknown."""
        if self.threshold is not None:
            return self.threshold
        # Records to predict have no answers to tune with.
        if not all("answers" in answer.record for answer in answers):
            return 0.0
        answered = np.array([answer.f1 for answer in answers])
        refused = np.array([float(not answer.gold) for answer in answers])
        return squad_metrics.best_threshold(np.array([answer.margin for answer in answers]), answered, refused)

    def _answers(self, outputs, examples: Ragged, records: list[Record]) -> list[_Answer]:
        answers = []
        for record, windows in by_record(examples, records):
            candidates, no_answer = [], np.inf
            for window in windows:
                tokens = slice(*examples.offsets[window : window + 2])
                logits_T2 = outputs["logits"][tokens].astype(np.float64)
                # As in run_squad.py, the window that is most certain to have an answer decides.
                no_answer = min(no_answer, float(logits_T2[examples.cls_index[window]].sum()))
                spans = {name: examples.token_labels[name][tokens] for name in ("begin", "stop", "most_context")}
                candidates += _best_spans(logits_T2, **spans, longest=self.longest, count=self.nbest)
            if candidates:  # `eval.rows` may have excluded all windows with candidates
                answers.append(
                    _Answer(record, _without_repeats(candidates, record["context"])[: self.nbest], no_answer)
                )
        return answers


def _own_tokens(batch: Arrays) -> jax.Array:
    """Return a mask over each example's own tokens, bool [B, N, T]."""
    slots = batch["weights_BN"].shape[1]
    return batch["examples_BT"][:, None, :] == 1 + jnp.arange(slots)[:, None]


def _span_end(logits_BT: jax.Array, columns_BN: jax.Array, own_BNT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cross-entropy over the example's own tokens, and whether the true column is the best; [B, N]."""
    # A finite minimum: empty slots have no tokens, and the logsumexp of only -inf is not finite.
    logits_BNT = jnp.where(own_BNT, logits_BT[:, None, :], jnp.finfo(logits_BT.dtype).min)
    true_BNT = jnp.arange(logits_BT.shape[1]) == columns_BN[..., None]
    true_BN = jnp.sum(jnp.where(true_BNT, logits_BT[:, None, :], 0.0), axis=-1)
    return jax.nn.logsumexp(logits_BNT, axis=-1) - true_BN, jnp.max(logits_BNT, axis=-1) <= true_BN


def _best_spans(logits_T2, begin, stop, most_context, longest: int, count: int) -> list[tuple[float, int, int]]:
    """Return (score, begin, stop) for the best spans in one window."""
    context = np.flatnonzero(stop > begin)  # answers neither start nor end with a token of only spaces
    starts = context[most_context[context]]
    # All spans from each start at once: [starts, longest].
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
    """Sort spans, best first, and keep only the best one per text."""
    kept = {}
    for span in sorted(spans, key=lambda span: -span[0]):
        kept.setdefault(context[span[1] : span[2]], span)
    return list(kept.values())
