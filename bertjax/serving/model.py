"""An ONNX file with its tokenizer: texts go in, probabilities, numbers or vectors come out."""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.data.framing import kept_of_pair
from bertjax.data.labeled import tagged
from bertjax.data.labeled.base import LabeledExamples
from bertjax.data.tokenizer import Tokenizer, tokenizer_json
from bertjax.data.tokenizer.tokenizers_library import ROLES, library
from bertjax.runtime import untrusted
from bertjax.runtime.errors import Damaged, UserError, reason
from bertjax.runtime.setting import check
from bertjax.runtime.storage import place_of
from bertjax.serving.description import (
    CLASSIFICATION,
    EMBEDDING,
    MULTI_LABEL,
    REGRESSION,
    TAGGING,
    TASKS,
    TOKENIZER,
    Description,
)

SUFFIX = ".onnx"
# A text, the two texts of a pair, or the words of a sentence to tag.
Text = str | Sequence[str]

_LOGITS, _SENTENCE, _HIDDEN = "logits", "sentence_embedding", "last_hidden_state"
_MASK, _SEGMENTS = "attention_mask", "token_type_ids"
# Positions in one call, padding included. Attention needs memory for T times these, in each head: about 100 MB in a
# base model at T=512.
_MOST_POSITIONS = 1 << 12
# Texts of one call have lengths that differ by at most this factor: what is gained by fewer calls must not be lost in
# padding.
_LONGEST_TO_SHORTEST = 1.5
# Graph passes of ONNX Runtime to leave out: its fused kernel for an addition and a layer norm is slower on a CPU than
# the two nodes that it replaces. Without it, MiniLM in int8 takes 12% less time (version 1.32, AVX2, 64 tokens).
_SLOW_PASSES = ["SkipLayerNormFusion"]
# Tokens of the row with which a file is checked when it is opened. Longer rows would need seconds.
_CHECKED_TOKENS = 512


class Row(NamedTuple):
    """One text as tokens.

    Attributes:
      ids: token ids, int64 [T], special tokens included.
      segments: 0 for the first text of a pair, 1 for the second, int64 [T].
      is_cut: whether the text was longer than the model reads.
    """

    ids: np.ndarray
    segments: np.ndarray
    is_cut: bool


class Encoded(NamedTuple):
    """Texts as rows.

    Attributes:
      rows: one row per text, or the windows of each if words are tagged.
      notes: {what was changed, such as texts that were cut: number of texts}.
      windows: the examples of which the rows are made, if words are tagged.
    """

    rows: list[Row]
    notes: dict[str, int]
    windows: LabeledExamples | None = None


class OnnxModel:
    """A model in ONNX Runtime, on the CPU. Calls from several threads at once are allowed.

    Args:
      path: a file of `bertjax convert --to=MODEL.onnx`.
      threads: threads that compute one call; 0 for one on each core.
      max_tokens: lower limit for the tokens of a text; 0 for that of the model.
      threshold: in place of the threshold of the description; None for that one.

    Raises:
      UserError: the file does not exist, is not ONNX, or has no description; the model has no probabilities for a
        threshold; or a package is missing.
      Damaged: its description or tokenizer does not fit its weights.
    """

    def __init__(self, path: str | os.PathLike, threads: int = 0, max_tokens: int = 0, threshold: float | None = None):
        if threads < 0:
            raise UserError(f"threads={threads} must not be negative; 0 computes on every core")
        self.path = os.fspath(path)
        self._session = _session(self.path, threads)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.description = Description.of_metadata(metadata, self.path)
        if threshold is not None:
            if self.description.task not in (CLASSIFICATION, MULTI_LABEL):
                raise UserError(
                    f"threshold={threshold:g} has no effect on the task {self.description.task!r}; leave it out"
                )
            self.description = dataclasses.replace(self.description, threshold=threshold)
            check(self.description)
        self.max_tokens = min(max_tokens or self.description.max_tokens, self.description.max_tokens)
        self._tokenizer, self._tokenizer_json = _tokenizer(metadata[TOKENIZER], self.path), metadata[TOKENIZER]
        self._inputs = tuple(node.name for node in self._session.get_inputs())
        outputs = [node.name for node in self._session.get_outputs()]
        self._output = next((name for name in (_LOGITS, _SENTENCE, _HIDDEN) if name in outputs), "")
        if self.description.task in TASKS and self._output:
            self._check()

    def _check(self) -> None:
        """Compute a short and a long row, with the last piece of the vocabulary; raise Damaged unless they fit."""
        description = self.description
        pieces = self._tokenizer.get_vocab(with_added_tokens=True).values()
        if not pieces:
            raise self._damaged("its tokenizer has no pieces")
        ids = np.full(min(self.max_tokens, _CHECKED_TOKENS), max(pieces), np.int64)
        long = Row(ids, np.zeros_like(ids), is_cut=False)
        [short] = self.rows([("a",) * len(description.fields) if len(description.fields) > 1 else "a"])
        if not len(short.ids):
            raise self._damaged("its tokenizer adds no special tokens")
        outputs = self._computed([short, long])
        width = {REGRESSION: 1, EMBEDDING: outputs.shape[-1]}.get(description.task, len(description.labels))
        of_tokens = [max(len(short.ids), len(long.ids))] * (description.task == TAGGING)
        if list(outputs.shape) != (shape := [2, *of_tokens, width]):
            raise self._damaged(f"its output has the shape {list(outputs.shape)} for 2 texts, and not {shape}")
        if not np.isfinite(outputs).all():
            raise self._damaged("its outputs are not finite")

    def _damaged(self, why: str) -> Damaged:
        return Damaged(f"the metadata of {self.path} does not fit its model ({why}); convert the model again")

    def check_task(self) -> None:
        """Raise UserError unless this module computes the answers of the task."""
        if self.description.task not in TASKS or not self._output:
            task = self.description.task
            raise UserError(f"{self.path} has the task {task!r}, which only its export computes: bertjax predict RUN")
        if self.description.task == TAGGING:
            _ = self._words  # before a server is asked

    @functools.cached_property
    def _words(self) -> Tokenizer:
        """The tokenizer of words inside of a text.

        Raises:
          UserError: the tokenizer does not encode words.
        """
        try:
            model = json.loads(self._tokenizer_json) | {ROLES: self.description.symbols}
            return tokenizer_json.from_json(json.dumps(model, ensure_ascii=False).encode(), "it")
        except (UserError, ValueError) as error:
            what = f"{self.path} has a tokenizer for texts and not for words ({reason(error)})"
            raise UserError(f"{what}; use its export: bertjax predict RUN") from None

    def rows(self, texts: Sequence[Text]) -> list[Row]:
        """Return the tokens of texts, laid out and cut as `bertjax predict` does.

        Raises:
          UserError: a text has a lone surrogate, which is not Unicode text.
        """
        inputs = [text if isinstance(text, str) else tuple(text) for text in texts]
        try:
            encodings = self._tokenizer.encode_batch_fast(inputs)
        except TypeError as error:  # the library's error for a text that is not UTF-8
            raise UserError(f"a text is not valid Unicode ({reason(error)}); send text in UTF-8") from None
        return [_row(encoding, self.max_tokens) for encoding in encodings]

    def values(self, rows: Sequence[Row]) -> np.ndarray:
        """Return probabilities, numbers or vectors in the order of at least one row, see `values_of`."""
        groups = list(_groups([len(row.ids) for row in rows]))
        parts = [values_of(self.description, self._computed([rows[member] for member in group])) for group in groups]
        return np.concatenate(parts)[np.argsort(np.concatenate(groups))]

    def encode(self, texts: Sequence[Text]) -> Encoded:
        """Return texts as rows: cut, or in windows if words are tagged, as `bertjax predict` of the export does.

        Raises:
          UserError: see `rows`.
        """
        if self.description.task != TAGGING:
            rows = self.rows(texts)
            cut = sum(row.is_cut for row in rows)
            return Encoded(rows, {f"cut to {self.max_tokens} tokens": cut} if cut else {})
        records = [{"text": text} if isinstance(text, str) else {"words": list(text)} for text in texts]
        windows = self.description.format.encode(records, self._words, self.max_tokens, self.description.labels)
        ragged = windows.ragged
        parts = (np.split(array.astype(np.int64), ragged.offsets[1:-1]) for array in (ragged.tokens, ragged.segments))
        return Encoded([Row(ids, segments, is_cut=False) for ids, segments in zip(*parts)], windows.notes, windows)

    def answers_to(self, encoded: Encoded) -> list[dict[str, Any]]:
        """Return one answer per text, see `answers_of`; with tags, see `bertjax.data.labeled.tagged.answer_of`."""
        if (windows := encoded.windows) is None:
            return answers_of(self.description, self.values(encoded.rows))
        records, labels = [windows.records[number] for number in windows.record_of], self.description.labels
        guesses = np.concatenate(self._guesses(encoded.rows))
        pairs = tagged.predicted(guesses, windows.ragged, records, labels)
        return [tagged.answer_of(record, tags, labels) for record, tags in pairs]

    def _guesses(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Return the best class of each token of each row."""
        guesses: dict[int, np.ndarray] = {}
        for group in _groups([len(row.ids) for row in rows]):
            best_BT = self._computed([rows[member] for member in group]).argmax(axis=-1)
            for member, best_T in zip(group.tolist(), best_BT, strict=True):
                guesses[member] = best_T[self._own(len(rows[member].ids), len(best_T))]
        return [guesses[number] for number in range(len(rows))]

    def answers(self, texts: Sequence[Text]) -> list[dict[str, Any]]:
        """Return one answer per text, see `answers_to`."""
        return self.answers_to(self.encode(texts))

    def _computed(self, rows: Sequence[Row]) -> np.ndarray:
        """Return one output row for each of the rows, which are padded to the longest; float32 [B, ...]."""
        longest = max(len(row.ids) for row in rows)
        shape = len(rows), longest
        tokens_BT = np.full(shape, self.description.pad_id, np.int64)
        segments_BT, mask_BT = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for number, row in enumerate(rows):
            own = self._own(len(row.ids), longest)
            tokens_BT[number, own], segments_BT[number, own], mask_BT[number, own] = row.ids, row.segments, 1
        named = {_MASK: mask_BT, _SEGMENTS: segments_BT}
        inputs = {name: named.get(name, tokens_BT) for name in self._inputs}
        try:
            [outputs] = self._session.run([self._output], inputs)
        except Exception as error:  # its classes have no common base, and are not public
            raise self._damaged(f"{shape[0]} texts of {shape[1]} tokens: {reason(error)}") from None
        if self._output != _HIDDEN:
            return outputs
        weights_BT1 = mask_BT[..., None].astype(np.float32)  # the mean over all tokens, as `predict --do=embed`
        return (outputs * weights_BT1).sum(axis=1) / weights_BT1.sum(axis=1)

    def _own(self, tokens: int, longest: int) -> slice:
        """Return the places of a row among those of the longest row of its call; the others are padding."""
        return slice(longest - tokens, None) if self.description.pads_left else slice(tokens)


def is_onnx(path: str | os.PathLike) -> bool:
    """Return whether a name is that of an ONNX file."""
    return os.fspath(path).endswith(SUFFIX)


def _session(path: str, threads: int):
    if not is_onnx(path) or not place_of(path, reads_remote=False).is_file():
        raise UserError(f"{path} is not an {SUFFIX} file; name one of python -m bertjax convert --to=MODEL{SUFFIX}")
    try:
        import onnxruntime
    except ImportError:
        raise UserError(f"{path} needs the package onnxruntime; pip install onnxruntime") from None
    path = os.fspath(untrusted.regular_file(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors only: warnings of graph passes are not for users
    try:
        return onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOW_PASSES
        )
    except Exception as error:  # its classes have no common base, and are not public
        raise Damaged(f"{path} cannot be opened by ONNX Runtime ({reason(error)}); convert the model again") from None


def _tokenizer(description: str, path: str):
    try:
        tokenizer = library().Tokenizer.from_str(description)
    except Exception as error:  # the library raises plain Exceptions
        raise Damaged(f"the tokenizer in {path} cannot be read ({reason(error)}); convert the model again") from None
    # A text that spells [SEP] must not become the symbol. The library's name for that is "encode", not "parse".
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _row(encoding, max_tokens: int) -> Row:
    """Return an encoding as a row, with texts cut at their ends as `bertjax.data.framing.truncate` does."""
    ids, segments = np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64)
    if len(ids) <= max_tokens:
        return Row(ids, segments, is_cut=False)
    # 0 and 1 for the tokens of the two texts; special tokens have no number and always stay.
    parts = np.array([-1 if part is None else part for part in encoding.sequence_ids])
    lengths = [int(np.sum(parts == part)) for part in (0, 1)]
    room = max(0, max_tokens - int(np.sum(parts < 0)))
    kept = [room, 0]
    if lengths[1]:
        kept = [int(most[0]) for most in kept_of_pair(np.array(lengths[:1]), np.array(lengths[1:]), room)]
    places = [np.flatnonzero(parts == part)[:most] for part, most in enumerate(kept)]
    stay = np.sort(np.concatenate([np.flatnonzero(parts < 0), *places]))
    return Row(ids[stay], segments[stay], is_cut=True)


def _groups(lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the numbers of rows to compute together, the shortest first."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    for last, number in enumerate(order):
        longest, shortest = lengths[number], lengths[order[first]]
        if (last - first + 1) * longest > _MOST_POSITIONS or longest > _LONGEST_TO_SHORTEST * shortest:
            if last > first:
                yield order[first:last]
            first = last
    yield order[first:]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_thread_tokenizers() -> None:
    """Keep `tokenizers` from starting threads of its own, which would compete with those that compute."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


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
