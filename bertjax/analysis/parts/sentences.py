"""Part `sentences`: attention maps, rollout, attributions and per-layer predictions for a few sentences."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from bertjax.analysis import attribution, drawing
from bertjax.analysis.attribution import Attribution
from bertjax.analysis.material import Encoded, Material, Texts
from bertjax.analysis.page import Maps, Table, caption
from bertjax.analysis.part import Figure, Part, Result
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject, captured
from bertjax.data.labeled.questions import Questions
from bertjax.models import replacing
from bertjax.models.model import Model
from bertjax.models.streams import Streams
from bertjax.objectives.base import Arrays
from bertjax.objectives.finetuning.base import MIX, ExampleObjective
from bertjax.objectives.finetuning.labels import MultiLabel, Regression
from bertjax.objectives.pretraining.mlm import MaskedLM

# Maximum number of given sentences, and of sentences taken from a corpus or labeled file.
MOST, TAKEN = 20, 6
# Maximum tokens of a sentence from a corpus, and of a given one. A map grows with the square and would fill the page.
LENGTH, LONGEST = 64, 128
# The page shows the maps of the last few models only: a run may have dozens of checkpoints.
SHOWN = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """Predicts answers for rows of one example each.

    Attributes:
      subject: a model for which `missing` is empty.
    """

    subject: Subject

    @staticmethod
    def missing(subject: Subject) -> str:
        """Return why a model cannot answer single sentences, as the end of a sentence; empty if it can."""
        objective = subject.objective
        if isinstance(objective, MultiLabel):
            return "predicts classes that do not exclude each other"
        if isinstance(objective, ExampleObjective):
            if objective.traits.group > 1:  # the choices of a question: a softmax over the examples of a row
                return "compares several texts, so that one sentence has no answer"
            return "has a head that reads all layers" if objective.reads == MIX else ""
        if not isinstance(objective, MaskedLM):
            return "has no head for masked tokens, classes of sentences or numbers"
        # ELECTRA's generator is a second encoder, and XLNet predicts from a second stream. Neither can be attributed to
        # the embeddings of this encoder.
        if "generator" in subject.export.params or subject.encoder.block.streams is Streams:
            return "predicts masked tokens by a second encoder or stream"
        return ""

    @property
    def is_masked_lm(self) -> bool:
        """Whether the answer is the token at a [MASK]."""
        return isinstance(self.subject.objective, MaskedLM)

    @property
    def is_number(self) -> bool:
        """Whether the answer is a number."""
        return isinstance(self.subject.objective, Regression)

    @functools.cached_property
    def _model(self) -> Model:
        return self.subject.objective.model(self.subject.encoder)

    def name_of(self, answer: int) -> str:
        """Return an answer as text: a piece or a class name."""
        if self.is_masked_lm:
            return self.subject.tokenizer.piece(answer)
        return str(self.subject.objective.classes[answer])

    def features(self, columns_B: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of the head beyond the core batch.

        Args:
          columns_B: int, column of the [MASK] in each row; ignored by models that are not masked LMs.
        """
        if not self.is_masked_lm:
            return {}
        return {f"{self.subject.objective.term}_positions_BK": columns_B.astype(np.int32)[:, None]}

    def logits(self, params: dict, batch: Arrays) -> jax.Array:
        """Device: return the logits per row, float32 [B, answers]."""
        objective = self.subject.objective
        method = objective.mlm_logits if self.is_masked_lm else None
        return objective.apply(self._model, params, batch, method=method)[:, 0]

    @functools.cached_property
    def predict(self) -> attribution.Predict:
        """(embeddings, params, batch, answers [B]) -> log-probability of the answer, or the number; [B, 1]."""

        def predict(inputs_BTE: jax.Array, params: dict, batch: Arrays, answer_B: jax.Array) -> jax.Array:
            # Gradients are taken with respect to the embeddings: token ids have none.
            with replacing.with_embeddings(inputs_BTE):
                logits = self.logits(params, batch)
            if self.is_number:
                return logits
            return jnp.take_along_axis(jax.nn.log_softmax(logits), answer_B[:, None], axis=1)

        return predict

    @functools.cached_property
    def by_layer(self) -> Any:
        """(params, batch) -> logits of a head that reads the embeddings or an earlier layer, [L + 1, B, answers].

        The head was trained on the last layer ("logit lens"). A bad answer from an earlier layer does not show that the
        layer lacks the information.
        """

        @jax.jit
        def by_layer(params: dict, batch: Arrays) -> jax.Array:
            hidden_LBTD = captured(self.subject.encoder, params, batch, ("hidden",))["hidden"]

            def at(hidden_BTD: jax.Array) -> jax.Array:
                with replacing.with_hidden(hidden_BTD):
                    return self.logits(params, batch)

            # `map` instead of `vmap`: the logits of all layers at once would take L + 1 times the memory.
            return jax.lax.map(at, hidden_LBTD)

        return by_layer

    @functools.cached_property
    def _embedded(self) -> Any:
        return jax.jit(functools.partial(attribution.embedded, self.subject.encoder))

    def attribute(self, batch: dict[str, np.ndarray], answer_B: np.ndarray) -> Attribution:
        """Return integrated gradients of the answers; `bertjax.analysis.attribution` describes the baseline.

        Args:
          batch: the core batch with `features`.
          answer_B: int, the answers whose log-probability is attributed; ignored if the prediction is a number.
        """
        params, vocabulary = self.subject.params, self.subject.vocabulary
        # Special tokens are the same in the baseline, so their attribution is exactly 0.
        is_kept_BT = vocabulary.is_special[batch["tokens_BT"]]
        baseline = batch | {"tokens_BT": np.where(is_kept_BT, batch["tokens_BT"], vocabulary.mask_id).astype(np.int32)}
        inputs_BTE, baseline_BTE = (self._embedded(params, each) for each in (batch, baseline))
        arguments = params, batch, answer_B.astype(np.int32)
        return attribution.integrated_gradients(
            self.predict, inputs_BTE, baseline_BTE, batch["examples_BT"], 1, *arguments
        )


class Sentences(Part):
    """Shows all heads' maps for up to 20 sentences in the page's viewer.

    Each sentence has attention rollout (Abnar & Zuidema, 2020). If the model has a head for single sentences, the part
    adds integrated gradients of the answer (Sundararajan et al., 2017) and the head's prediction from each layer.
    """

    name = "sentences"
    title = "Sentences"
    needs_attention = True

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        material = _material(materials)
        if isinstance(material, Texts):
            texts = list(material.texts[:MOST])
            if min(len(tokens) + 2 for tokens in subject.tokenizer.encode_masked(texts)) > LONGEST:
                return f"reads more than {LONGEST} tokens in each given text, the most of a map; give a shorter one"
        return ""

    def run(self, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide) -> Result:
        """Return the results; the guide describes `numbers`."""
        material = _material(materials)
        numbers: dict[str, Any] = {}
        maps, tables, figures, notes = [], [], [], []
        for number, subject in enumerate(subjects):
            encoded, left_out = _sentences(subject, material)
            notes += [f"{left_out} sentences with more than {LONGEST} tokens are left out."] if left_out else []
            reason = Answers.missing(subject)
            answers = None if reason else Answers(subject)
            notes += [f"{subject.label} {reason}: it has maps and rollout only."] if reason else []
            entries, of_model = numbers.setdefault(subject.label, []), []
            with progress(f"{subject.label}, {self.name}", encoded.tokens) as bar:
                for entry, of_sentence in _analyzed(subject, encoded, answers):
                    entries.append(entry)
                    of_model += of_sentence
                    bar.update(len(entry["tokens"]))
            # Numbers are kept for all models; maps, tables and figures only for the last ones.
            if number < len(subjects) - SHOWN:
                continue
            maps += of_model
            tables += [_table(entry, subject.label) for entry in entries]
            if answers:
                figures.append(_by_layer(entries, subject, number, answers))
        if len(subjects) > SHOWN:
            notes.append(f"Maps, tables and figures are those of the last {SHOWN} of {len(subjects)} models.")
        answered = [entry for entries in numbers.values() for entry in entries if "gap" in entry]
        return Result(numbers, {}, figures, _text(answered, notes), tables, maps)


def _material(materials: Sequence[Material]) -> Material:
    """Return the given texts, or else the first material."""
    return next((material for material in materials if isinstance(material, Texts)), materials[0])


def _sentences(subject: Subject, material: Material) -> tuple[Encoded, int]:
    """Return a material's sentences for a model, and how many given ones are too long."""
    if not isinstance(material, Texts):
        # A question of 64 tokens, the most by default, has no room for its context in 64.
        has_questions = subject.finetuned and isinstance(subject.finetuned.examples, Questions)
        length = LONGEST if has_questions else LENGTH
        return dataclasses.replace(material, examples=TAKEN, length=length).encoded(subject), 0
    encoded = dataclasses.replace(material, examples=MOST).encoded(subject)  # checks the texts
    kept = np.flatnonzero(encoded.ragged.lengths <= LONGEST)
    left_out = len(encoded.records) - len(kept)
    return dataclasses.replace(encoded, ragged=encoded.ragged.take(kept), record_of=encoded.record_of[kept]), left_out


def _analyzed(
    subject: Subject, encoded: Encoded, answers: Answers | None
) -> Iterator[tuple[dict[str, Any], list[Maps]]]:
    """Yield each sentence's entry in `analysis.json`, and maps of all heads and of rollout.

    All rows have one length, so each program is compiled once.
    """
    lengths = encoded.ragged.lengths
    seq_len = 1 << int(max(32, lengths.max()) - 1).bit_length()
    capture = jax.jit(lambda params, batch: captured(subject.encoder, params, batch, ("attention",))["attention"])
    for index, length in enumerate(lengths):
        batch = encoded.batch(np.array([[index]]), seq_len)
        tokens_T = batch["tokens_BT"][0, :length]
        tokens = [subject.tokenizer.piece(int(token)) for token in tokens_T]
        attention_LHTT = np.asarray(capture(subject.params, batch))[:, 0, :, :length, :length]
        rollout_LTT = attribution.rollout(attention_LHTT)
        text = subject.tokenizer.decode([int(t) for t in tokens_T if not subject.vocabulary.is_special[t]])
        if encoded.records and "text" in encoded.records[encoded.record_of[index]]:
            text = encoded.records[encoded.record_of[index]]["text"]
        numbers: dict[str, Any] = {"text": text, "tokens": tokens}
        column = _summary_column(subject, batch)
        if answers:
            answered, column = _answered(answers, batch, length)
            numbers |= answered
        numbers["rollout"] = rollout_LTT[-1, column].tolist()
        numbers["rollout_of"] = column
        entry = {"model": subject.label, "sentence": text, "tokens": tuple(tokens)}
        # Half precision is enough: the page stores each weight in one byte.
        maps = [
            Maps(weights_LHTT=attention_LHTT.astype(np.float16), **entry),
            Maps(weights_LHTT=rollout_LTT[:, None].astype(np.float16), kind="rollout", **entry),
        ]
        yield numbers, maps


def _answered(answers: Answers, batch: dict[str, np.ndarray], length: int) -> tuple[dict[str, Any], int]:
    """Return the answer for a one-example row, with attributions and per-layer answers, and the column it is read from.

    If a masked LM's sentence has no [MASK], the word whose loss falls most from the embeddings to the last layer is
    masked and becomes the answer.
    """
    subject, answer = answers.subject, -1
    column = _summary_column(subject, batch)
    if answers.is_masked_lm:
        tokens_T = batch["tokens_BT"][0, :length]
        masks = np.flatnonzero(tokens_T == subject.vocabulary.mask_id)
        if len(masks):
            column = int(masks[0])
        else:
            ordinary = np.flatnonzero(~subject.vocabulary.is_special[tokens_T])
            pieces = {at: subject.tokenizer.piece(int(tokens_T[at])) for at in ordinary.tolist()}
            # Full stops are easy, and nobody asks why.
            words = [at for at, piece in pieces.items() if any(map(str.isalnum, piece))] or [*pieces]
            column = max(words, key=lambda at: _fall_of_loss(answers, batch, at))
            answer = int(tokens_T[column])
            batch = _masked(answers, batch, column)
    batch = batch | answers.features(np.array([column]))
    logits_LC = np.asarray(answers.by_layer(subject.params, batch))[:, 0].astype(np.float64)
    answer = int(logits_LC[-1].argmax()) if answer < 0 else answer
    result = answers.attribute(batch, np.array([answer]))
    names = ("prediction", "baseline", "gap", "tolerance")
    numbers: dict[str, Any] = {name: float(getattr(result, f"{name}_BN")[0, 0]) for name in names}
    numbers["attributions"] = result.tokens_BT[0, :length].tolist()
    if answers.is_number:
        return numbers | {"layers": [{"number": float(logits[0])} for logits in logits_LC]}, column
    layers = [
        {"guess": answers.name_of(int(row.argmax())), "probability": float(np.exp(row[answer]))}
        for row in log_softmax(logits_LC, axis=1)
    ]
    if answers.is_masked_lm:
        numbers["masked"] = column
    return numbers | {"answer": answers.name_of(answer), "layers": layers}, column


def _masked(answers: Answers, batch: dict[str, np.ndarray], column: int) -> dict[str, np.ndarray]:
    """Return a one-example row with [MASK] in a column; the original keeps its word."""
    tokens_BT = batch["tokens_BT"].copy()
    tokens_BT[0, column] = answers.subject.vocabulary.mask_id
    return batch | {"tokens_BT": tokens_BT}


def _fall_of_loss(answers: Answers, batch: dict[str, np.ndarray], column: int) -> float:
    """Return by how many nats the layers lower the loss of a token that is masked."""
    row = _masked(answers, batch, column) | answers.features(np.array([column]))
    logits_LC = np.asarray(answers.by_layer(answers.subject.params, row))[[0, -1], 0].astype(np.float64)
    before, after = log_softmax(logits_LC, axis=1)[:, batch["tokens_BT"][0, column]]
    return float(after - before)


def _summary_column(subject: Subject, batch: dict[str, np.ndarray]) -> int:
    """Return the column that summarizes the only example: [CLS], or the last token if [CLS] does not see all of it."""
    encoder = subject.encoder
    columns_BM = encoder.block.summary_columns(encoder, batch["examples_BT"], batch["summary_positions_BN"])
    return int(columns_BM[0, 0])


def _table(numbers: dict[str, Any], label: str) -> Table:
    """Return a sentence's numbers, token by token."""
    has_answer, about = "attributions" in numbers, f"{label}: {numbers['text']}"
    if has_answer:
        what = f"log-probability of {numbers['answer']!r} in nats" if "answer" in numbers else "predicted number"
        about = caption("sentences/answer", **numbers | {"model": label, "what": what})[0]
    headings = ("token", "attribution", "rollout") if has_answer else ("token", "rollout")
    rows = []
    for index, token in enumerate(numbers["tokens"]):
        shown = "[MASK]" if numbers.get("masked") == index else token
        cells = [f"{index} {shown}"]
        cells += [f"{numbers['attributions'][index]:+.3f}"] if has_answer else []
        rows.append((*cells, f"{numbers['rollout'][index]:.3f}"))
    return Table(about, headings, tuple(rows))


def _by_layer(sentences: Sequence[dict[str, Any]], subject: Subject, number: int, answers: Answers) -> Figure:
    """Return the figure with one model's predictions by layer."""
    key, unit = ("number", "predicted number") if answers.is_number else ("probability", "probability of the answer")
    lines = {}
    for index, sentence in enumerate(sentences, 1):
        values = [layer[key] for layer in sentence["layers"]]
        lines[f"{index}: {sentence['answer']}" if "answer" in sentence else str(index)] = range(len(values)), values
    chart = drawing.curves(lines, "layer", unit)
    return drawing.figure("sentences/layers", chart, number + 1, model=subject.label)


def _text(answered: Sequence[dict[str, Any]], notes: Sequence[str]) -> str:
    paragraphs = [caption("sentences")[0]]
    if answered:
        gaps = [(entry["gap"], entry["tolerance"]) for entry in answered]
        values = {"complete": sum(gap <= tolerance for gap, tolerance in gaps), "largest": max(gaps)[0]}
        values |= {"answers": len(answered), "tolerance": attribution.TOLERANCE}
        paragraphs.append(caption("sentences/attributions", **values)[0])
    return "\n\n".join(paragraphs + [" ".join(dict.fromkeys(notes))] * bool(notes))
