"""A model that is asked again and again: what was compiled once is kept."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.data.labeled.base import WHERE, Record
from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.inference import buckets
from bertjax.inference.base import EncodedExamples, Use
from bertjax.inference.embed import Embed
from bertjax.inference.fill import Fill
from bertjax.inference.likelihood import PseudoLogLikelihood
from bertjax.inference.masked import masked_lm
from bertjax.inference.records import checked, records_of, the_one
from bertjax.inference.trained import Trained, has_predictions

# Records whose results are in memory at once.
PART = 1 << 13

USES: dict[str, type[Use]] = {"task": Trained, "fill": Fill, "embed": Embed}


@dataclasses.dataclass(frozen=True)
class Question:
    """Records that are ready to be asked about, part by part.

    Attributes:
      use: what is asked.
      parts: records and the examples made of them.
    """

    use: Use
    parts: list[tuple[list[Record], EncodedExamples]]

    @property
    def records(self) -> int:
        """How many."""
        return sum(len(records) for records, _ in self.parts)

    @property
    def tokens(self) -> int:
        """To be computed."""
        return sum(int(examples.lengths().sum()) for _, examples in self.parts)

    @property
    def notes(self) -> dict[str, int]:
        """{what happened when the records were encoded: to how many}."""
        totals: dict[str, int] = {}
        for _, examples in self.parts:
            for note, count in examples.notes.items():
                totals[note] = totals.get(note, 0) + count
        return totals


class Predictor:
    """Uses a model: `bertjax.predictor("runs/tiny/export").fill(["The king is [MASK]."])`.

    Args:
      model: the model, such as `bertjax.opening.SavedModel(name).export`.
    """

    def __init__(self, model: Export):
        self.model = model
        self._uses: dict[tuple, Use] = {}
        self._functions: dict[Use, Callable] = {}

    @property
    def default(self) -> str:
        """What the model was trained for: its `task`, or to `fill`; `embed` where it has no head for either."""
        if has_predictions(self.model):
            return "task"
        return "embed" if masked_lm(self.model) is None else "fill"

    @functools.cached_property
    def _params(self) -> dict:
        return jax.device_put(self.model.params)

    def fill(self, texts: Sequence[str], top: int = 5) -> list[dict[str, Any]]:
        """Fills every `[MASK]` of each text.

        Args:
          texts: each with the word `[MASK]` in it, once or several times.
          top: guesses for each mask.

        Returns:
          For each text {`text`, `masks`: for each of its masks the guesses [{`piece`, `probability`}, ...], best first,
          `filled`: the text with the best guess in each}.

        Raises:
          UserError: a text that is blank or has no mask, or a model without a masked-LM head.
        """
        return list(self.answers(self.question(self.use(Fill, top=top), records_of(texts))))

    def embed(self, texts: Sequence[str], normalize: bool = False) -> np.ndarray:
        """The mean of each text's last hidden states, [CLS] and [SEP] included; float32 [texts, D].

        Args:
          texts: `[MASK]` in them is text like any other.
          normalize: whether the vectors have the length 1.

        Raises:
          UserError: a text that is blank.
        """
        question = self.question(self.use(Embed, normalize=normalize), records_of(texts))
        return np.concatenate([outputs["embedding_BND"] for outputs in self.outputs(question)])

    def predict(self, records: Sequence[str | Record]) -> list[dict[str, Any]]:
        """What a fine-tuned model was trained to say of each record.

        Args:
          records: with the fields that the model was trained on (labels are not read); texts where there is one field.

        Raises:
          UserError: a record that lacks a field or is blank, or a model that was not fine-tuned.
        """
        use = self.use(Trained)
        whole = [r if isinstance(r, dict) else {the_one(use.fields): r} for r in records]
        return list(self.answers(self.question(use, checked(whole, use.fields))))

    def pseudo_log_likelihoods(self, texts: Sequence[str]) -> np.ndarray:
        """How likely each text is, in nats (`bertjax.inference.likelihood`); float64 [texts].

        Raises:
          UserError: a text that is blank, or a model without a masked-LM head.
        """
        question = self.question(self.use(PseudoLogLikelihood), records_of(texts))
        return np.array([answer["pseudo_log_likelihood"] for answer in self.answers(question)])

    def use(self, kind: type[Use], **options: Any) -> Use:
        """A use of this model, the same object for the same options.

        Raises:
          UserError: the model does not serve it, or an option is out of range.
        """
        key = kind, *sorted(options.items())
        if key not in self._uses:
            use = self._uses[key] = kind(self.model, **options)
            self._functions[use] = jax.jit(use.outputs)
        return self._uses[key]

    def question(self, use: Use, records: list[Record]) -> Question:
        """Encodes all records, so that a bad one is found before anything is computed.

        Raises:
          UserError: there are no records, or see `Use.encode`.
        """
        if not records:
            raise UserError("there is nothing to predict: give at least one sentence")
        parts = [records[first : first + PART] for first in range(0, len(records), PART)]
        return Question(use, [(part, use.encode(part)) for part in parts])

    def outputs(
        self, question: Question, on_tokens: Callable[[int], object] = lambda tokens: None
    ) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of each part of the records, as `bertjax.inference.buckets.run` gives them.

        Args:
          question: from `question`.
          on_tokens: called with the tokens of each batch when it is done.
        """
        use = question.use
        for _, examples in question.parts:
            compute = functools.partial(buckets.run, self._functions[use], self._params, examples, use.vocabulary)
            yield compute(use.seq_len, use.features, on_tokens, use.group)

    def answers(
        self, question: Question, on_tokens: Callable[[int], object] = lambda tokens: None
    ) -> Iterator[dict[str, Any]]:
        """For each record its fields and what the model says of it, in the order of the records."""
        for (part, examples), outputs in zip(question.parts, self.outputs(question, on_tokens), strict=True):
            for record, said in zip(part, question.use.predictions(outputs, examples, part), strict=True):
                yield {name: value for name, value in record.items() if name != WHERE} | said
