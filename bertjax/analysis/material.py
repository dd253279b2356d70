"""Texts to analyze models on: held-out documents of a corpus, a labeled file, or given sentences.

A `Material` is independent of models. `material.encoded(subject)` returns its examples and batches for one model.
"""

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar, cast

import jax
import numpy as np

from bertjax.analysis import labeled_files
from bertjax.analysis.subject import Subject
from bertjax.data.batch import Draw, core, place
from bertjax.data.config import DataConfig
from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.formats.pairs import SegmentPairs
from bertjax.data.formats.runs import FullSentences
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.plan import Spec, open_or_make
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.inference import predictor
from bertjax.inference.records import records_of
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Objective
from bertjax.runtime.errors import UserError, cut_text
from bertjax.training.resolve import open_store
from bertjax.training.run.record import read_record
from bertjax.training.run.workdir import Workdir

# Limit on attention probabilities per batch, over all layers and heads: 128 MiB in float32.
ATTENTION = 1 << 25
# Default maximum length, as in Clark et al. (2019, section 2) and BERT's first training stage.
LENGTH = 128
# Seed for sampling examples, and for masking: every model and checkpoint sees the same masks.
SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """A material's examples for one model.

    Attributes:
      ragged: the M examples.
      records: the records behind them; empty for a corpus.
      record_of: int64 [M], index of each example's record.
      objective: the objective that can score them; None if the model has no suitable head.
      vocabulary: the vocabulary of the tokens.
      longest: maximum tokens per example.
      notes: {what was changed, such as texts that were cut: number of examples}.
    """

    ragged: Ragged
    records: list[Record]
    record_of: np.ndarray
    objective: Objective | None
    vocabulary: Vocabulary
    longest: int
    notes: dict[str, int] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ragged.ids)

    @property
    def tokens(self) -> int:
        """Number of tokens in all examples."""
        return len(self.ragged.tokens)

    @property
    def group(self) -> int:
        """Number of neighboring examples that share a row."""
        return self.objective.traits.group if self.objective else 1

    def batch(self, rows_BN: np.ndarray, seq_len: int, with_objective: bool = False) -> dict[str, np.ndarray]:
        """Return the core batch with examples packed as in `rows_BN`.

        Args:
          rows_BN: int, index of the example in each slot, -1 for an empty slot; each example at most once.
          seq_len: T.
          with_objective: whether to add the objective's features. A masked LM's features replace tokens by [MASK]; the
            choice depends on the example only.
        """
        members = rows_BN[rows_BN >= 0]
        # `place` expects indices into the examples that are taken, not into all.
        order_BN = np.full(rows_BN.shape, -1, np.int64)
        order_BN[rows_BN >= 0] = np.arange(len(members))
        placed = place(self.ragged.take(members), order_BN, seq_len, self.vocabulary)
        arrays = core(placed)
        if with_objective:
            # Epoch 0 for every example: masks do not depend on the batch.
            arrays |= self.objective.features(placed, Draw(SEED, np.zeros(len(members), np.int64)))
        return arrays

    def batches(
        self, encoder: EncoderConfig, with_objective: bool = False, share: float = 1.0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield all examples once, one group per row, in a few shapes. A shape may end with empty rows.

        The row count is a multiple of the local device count.

        Args:
          encoder: its attention maps limit the row count.
          with_objective: see `batch`.
          share: fraction of the usual row count, for functions that need more memory.
        """
        devices, group = jax.local_device_count(), self.group
        lengths = self.ragged.lengths.reshape(-1, group).sum(axis=1)
        for bucket in predictor.sort(lengths, max(self.longest * group, int(lengths.max()))):
            most = int(share * ATTENTION) // (encoder.layers * encoder.heads * bucket.seq_len**2)
            # Rounded down to a power of two, so that fewer different shapes are compiled.
            rows = min(bucket.rows, 1 << max(most, 1).bit_length() - 1)
            bucket = dataclasses.replace(bucket, rows=-(-rows // devices) * devices)
            for groups in bucket.batches():
                rows_BN = np.full((bucket.rows, group), -1, np.int64)
                rows_BN[: len(groups)] = groups[:, None] * group + np.arange(group)
                yield self.batch(rows_BN, bucket.seq_len, with_objective)


@dataclasses.dataclass(frozen=True)
class Material:
    """Texts to analyze models on. A subclass defines `_encode`.

    Attributes:
      name: name on the page, such as `corpus`, `glue:SST-2` or `texts`.
      examples: maximum number of examples.
      length: maximum tokens per example; 0 for `LENGTH`. A model with fewer positions reads shorter examples.
      note: a sentence for the page about what the name does not show.
    """

    name: str
    examples: int = 500
    length: int = 0
    note: ClassVar[str] = ""
    _made: dict[tuple, Encoded] = dataclasses.field(default_factory=dict, init=False, compare=False)

    def encoded(self, subject: Subject) -> Encoded:
        """Return the examples for a model, computed once for all models that read the same texts in the same way.

        Raises:
          UserError: the texts cannot be read, or a given text is too long for the model.
        """
        objective = self.objective(subject)
        key = (
            subject.tokenizer.fingerprint,
            self.longest(subject),
            subject.encoder.embeddings.segments > 1,
            self._texts_key(subject, objective),
        )
        if key not in self._made:
            self._made[key] = self._encode(subject, objective)
        # Models share the encoded examples, but each is scored by its own objective.
        return dataclasses.replace(self._made[key], objective=objective)

    def longest(self, subject: Subject) -> int:
        """Return the maximum tokens per example for a model."""
        return min(self.length or LENGTH, subject.encoder.max_positions)

    def objective(self, subject: Subject) -> Objective | None:
        """Return the model's objective that can score these texts; None if there is none."""
        return subject.pretraining

    def _texts_key(self, subject: Subject, objective: Objective | None) -> Hashable:
        """Return what decides the texts and labels of a model; None if all models have the same."""
        return None

    def _encode(self, subject: Subject, objective: Objective | None) -> Encoded:
        raise TypeError(f"{type(self).__name__} has no _encode()")

    def _chosen(self, count: int, group: int = 1) -> np.ndarray:
        """Return sorted indices of a random sample, at most `examples` of `count`; int64."""
        # Whole groups are drawn: a group, such as the choices of one question, is scored together.
        groups = np.random.default_rng(SEED).permutation(count // group)[: max(1, self.examples // group)]
        return (np.sort(groups)[:, None] * group + np.arange(group)).ravel()


@dataclasses.dataclass(frozen=True)
class Corpus(Material):
    """Held-out documents of a corpus, as pairs of adjacent segments `[CLS] A [SEP] B [SEP]` (Clark et al., 2019).

    A model without segments reads `[CLS] text [SEP]`. The token store is the run's own, or is prepared.

    Attributes:
      corpus: a corpus as in `data.corpus`; empty for the run's own corpus.
    """

    corpus: str = ""

    def _texts_key(self, subject, objective):
        if (data := self._data(subject)) is None:
            return str(subject.saved.folder)
        # `encoded` compares tokenizers by content; the same tokenizer has another path in each model's folder.
        return repr(dataclasses.replace(data, tokenizer=TokenizerConfig()))

    def _encode(self, subject, objective):
        longest, format = self.longest(subject), FullSentences()
        if subject.encoder.embeddings.segments > 1:
            format = SegmentPairs(random_next=0.0, short_seq_prob=0.0, fewest=2, trim="outer_ends")
        examples = open_or_make(self._store(subject), Spec("heldout", format, longest, SEED)).examples
        chosen = self._chosen(len(examples))
        ragged = dataclasses.replace(examples.take(chosen), ids=np.arange(len(chosen)))
        return Encoded(ragged, [], np.arange(len(chosen)), objective, subject.vocabulary, longest)

    def _data(self, subject: Subject) -> DataConfig | None:
        """Return the settings of the corpus to prepare; None if the model is a run with a store of its own."""
        saved = subject.saved
        if saved is None:
            raise UserError(f"{subject.label} is in memory, and a corpus needs a model in a folder; give texts instead")
        if not self.corpus:
            saved.check_data("--corpus=CORPUS")
        if not self.corpus and not saved.is_export and not subject.finetuned:
            return None
        data = saved.config.data
        if self.corpus:
            # Settings that describe the run's corpus do not apply to another one.
            data = dataclasses.replace(data, corpus=self.corpus, sources={}, heldout="", share=1.0)
        return dataclasses.replace(data, tokenizer=TokenizerConfig(model=str(saved.folder / "tokenizer")))

    def _store(self, subject: Subject) -> TokenStore:
        """Return the corpus in the model's tokens: the run's own store, or a store that is prepared now."""
        if (data := self._data(subject)) is None:
            return open_store(subject.saved.config.data, read_record(Workdir.at(subject.saved.folder)))
        return open_store(data, None)


@dataclasses.dataclass(frozen=True)
class Labeled(Material):
    """The records of a labeled file. Long texts are cut.

    Attributes:
      format: format of the file, with the file as its `heldout`; None for each fine-tuned model's own format.
      path: the file; empty for each fine-tuned model's development set.
    """

    format: LabeledFormat | None = None
    path: str = ""
    _read: dict[str, list[Record]] = dataclasses.field(default_factory=dict, init=False, compare=False)

    def format_of(self, subject: Subject) -> LabeledFormat:
        """Return the format in which a model reads the file.

        Raises:
          UserError: the columns of the file are unknown.
        """
        if self.format:
            return self.format
        if subject.finetuned:
            own = subject.saved.config.task.examples if subject.saved else subject.finetuned.examples
            # An export names no file of this machine, and a held-out share is not a file.
            if not (path := self.path or own.heldout) or not isinstance(path, str):
                raise UserError(f"{subject.label} has no development set on this machine; name a labeled file")
            return dataclasses.replace(cast(LabeledFormat, own), heldout=path)
        return labeled_files.format_of(self.path)

    def records(self, subject: Subject) -> list[Record]:
        """Return all records of the file.

        Raises:
          UserError: the file cannot be read, or has another format.
        """
        format = self.format_of(subject)
        key = repr(format)  # formats hold dicts, which have no hash
        if key not in self._read:
            self._read[key] = format.read(format.heldout)
        return self._read[key]

    def objective(self, subject):
        """Return the model's fine-tuned objective if it was trained on the same columns and classes."""
        if not subject.finetuned:
            return None
        objective, format = subject.finetuned.objective, self.format_of(subject)
        if type(format) is not type(subject.finetuned.examples) or format.inputs != subject.finetuned.examples.inputs:
            return None
        return objective if set(self.classes(subject)) <= set(objective.classes) or not objective.classes else None

    def classes(self, subject: Subject) -> tuple[str, ...]:
        """Return the sorted label names of the file; empty if labels are numbers."""
        return labeled_files.classes_of(self.format_of(subject), self.records(subject))

    def _texts_key(self, subject, objective):
        # The format names the file: by default, each fine-tuned model has its own.
        return repr(self.format_of(subject)), objective and objective.classes

    def _encode(self, subject, objective):
        format, records = self.format_of(subject), self.records(subject)
        classes = objective.classes if objective else self.classes(subject)
        # `longest` limits an example, and a format is given the tokens of a row, which a group of examples shares.
        seq_len = self.longest(subject) * format.group_of(records, classes)
        examples = format.encode(records, subject.tokenizer, seq_len, classes)
        chosen = self._chosen(len(examples), examples.group)
        ragged = dataclasses.replace(examples.take(chosen), ids=np.arange(len(chosen)))
        longest, record_of = self.longest(subject), examples.record_of[chosen]
        return Encoded(ragged, records, record_of, objective, subject.vocabulary, longest, examples.notes)


@dataclasses.dataclass(frozen=True)
class Texts(Material):
    """Given sentences, one example `[CLS] text [SEP]` per sentence. `[MASK]` is the symbol, as in `predict`.

    Attributes:
      texts: the sentences.
    """

    texts: tuple[str, ...] = ()

    def longest(self, subject):
        return min(self.length or subject.encoder.max_positions, subject.encoder.max_positions)

    def _encode(self, subject, objective):
        records = records_of(self.texts[: self.examples])
        encoded = subject.tokenizer.encode_masked([record["text"] for record in records])
        longest = self.longest(subject)
        # Sentences are never cut, unlike records of a file: a user who gives a sentence wants to see all of it.
        for record, ids in zip(records, encoded, strict=True):
            text = f"the text {cut_text(record['text'], 40)!r}"
            if len(ids) + 2 > longest:
                raise UserError(f"{text} has {len(ids) + 2} tokens and {subject.label} reads {longest}; shorten it")
            if subject.vocabulary.is_special[ids].all():
                known = f"no token that the vocabulary of {subject.label} knows"
                raise UserError(f"{text} has {known}; give another text")
        ragged = add_special_tokens(encoded, None, subject.vocabulary, labels={})
        return Encoded(ragged, records, np.arange(len(records)), objective, subject.vocabulary, longest)


@dataclasses.dataclass(frozen=True)
class OwnTexts(Material):
    """Each model's own held-out texts: those of its corpus, or the development set of a fine-tuned model."""

    note: ClassVar[str] = (
        "Fine-tuned models are analyzed on their development sets and the others on held-out text of their corpora, so "
        "differences between them are also due to the texts; give --corpus, --labeled or --texts for equal texts."
    )

    def _texts_of(self, subject: Subject) -> Material:
        return self._kinds[Labeled if subject.finetuned else Corpus]

    @functools.cached_property
    def _kinds(self) -> dict[type, Material]:
        return {kind: kind(self.name, self.examples, self.length) for kind in (Labeled, Corpus)}

    def encoded(self, subject):
        return self._texts_of(subject).encoded(subject)

    def objective(self, subject):
        return self._texts_of(subject).objective(subject)


def texts_material(texts: Sequence[str]) -> Texts:
    """Return given sentences as a material.

    Raises:
      UserError: a text is blank or not a string.
    """
    records_of(texts)
    return Texts("texts", examples=len(texts), texts=tuple(texts))


def labeled(spec: str, examples: int) -> Labeled:
    """Return the material for a value of `--labeled`, see `bertjax.analysis.labeled_files`.

    Raises:
      UserError: the task is unknown, or the file does not exist.
    """
    name, path, format = labeled_files.find(spec)
    return Labeled(name, examples, format=format, path=path)
