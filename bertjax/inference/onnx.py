"""ONNX Runtime as an engine: an ONNX file with its tokenizer answers without JAX, as its export does with it."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.tokenizer import Tokenizer, tokenizer_json
from bertjax.data.tokenizer.layout import Layout, layout_of
from bertjax.data.tokenizer.tokenizers_library import ROLES, library
from bertjax.inference.base import Bucket, Model, TaskPipeline, run
from bertjax.inference.description import (
    CLASSIFICATION,
    EMBEDDING,
    KINDS,
    MULTI_LABEL,
    REGRESSION,
    TAGGING,
    TOKENIZER,
    Description,
)
from bertjax.inference.records import read_labeled
from bertjax.objectives.finetuning import answers
from bertjax.objectives.host import Host, Output
from bertjax.runtime import untrusted
from bertjax.runtime.errors import Damaged, UserError, reason
from bertjax.runtime.setting import check
from bertjax.runtime.storage import place_of

SUFFIX = ".onnx"
INPUTS = IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
_HIDDEN = "last_hidden_state"
# Outputs that tasks are computed from, the first that a file has. Other files have several, such as those of questions.
_COMPUTED = ("logits", "sentence_embedding", _HIDDEN)
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
# Scores of an evaluation that fits these settings, which a file has in its weights and its description, and the number
# that is compared with the loss of a regression, which a file does not give.
_LEFT_OUT = ("temperature", "ece", "ece_calibrated", "threshold", "label_variance")


class TextTokenizer:
    """What texts need of a `Tokenizer`, from the `tokenizer.json` of any of them.

    Args:
      model: `tokenizer.json`. A text that spells one of its special tokens has the tokens of that text.
      layout: the layout of its template.
      pad_id: id at padding.
    """

    mask_id, special_ids, continuation_ids = -1, (), ()

    def __init__(self, model: str, layout: Layout, pad_id: int):
        self._processor = library().Tokenizer.from_str(model)
        # A text that spells [SEP] must not become the symbol. The library's name for that is "encode", not "parse".
        self._processor.encode_special_tokens = True
        self._processor.no_truncation()
        self._processor.no_padding()
        self.pad_id, self.cls_last, self.pair_separators = pad_id, layout.cls_last, layout.separators
        ids = self._processor.encode("").ids
        self.cls_id, self.sep_id = (ids[-1], ids[-2]) if self.cls_last else (ids[0], ids[-1])
        self.vocab_size = 1 + max(self._processor.get_vocab(with_added_tokens=True).values())

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return [encoding.ids for encoding in self._processor.encode_batch_fast(texts, add_special_tokens=False)]


class OnnxModel(Model):
    """A model in ONNX Runtime, on the CPU, and its own engine. Calls from several threads at once are allowed.

    Args:
      path: a file of `bertjax convert --to=MODEL.onnx`.
      threads: threads that compute one call; 0 for one on each core.
      max_tokens: lower limit for the tokens of a text; 0 for that of the model.

    Raises:
      UserError: the file does not exist, is not ONNX, has no description, or has a task that only its export computes;
        or a package is missing.
      Damaged: its description or tokenizer does not fit its weights.
    """

    def __init__(self, path: str | os.PathLike, threads: int = 0, max_tokens: int = 0):
        if threads < 0:
            raise UserError(f"threads={threads} must not be negative; 0 computes on every core")
        self.path = os.fspath(path)
        self._session = _session(self.path, threads)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.description = Description.of_metadata(metadata, self.path)
        self.max_tokens = min(max_tokens or self.description.max_tokens, self.description.max_tokens)
        self._inputs = tuple(node.name for node in self._session.get_inputs())
        outputs = [node.name for node in self._session.get_outputs()]
        self._output = next((name for name in _COMPUTED if name in outputs), "")
        if self.description.task not in _TASKS or not self._output:
            task = self.description.task
            raise UserError(f"{self.path} has the task {task!r}, which only its export computes: bertjax predict RUN")
        self.tokenizer = self._tokenizer(metadata[TOKENIZER])
        self._check()

    def _tokenizer(self, text: str) -> Tokenizer:
        try:
            model = untrusted.parse_json(text.encode())
            layout = layout_of(model["post_processor"])
            if layout is None:
                raise ValueError("it adds no special tokens")
            self._has_segments = layout.segment > 0
            if self.description.task != TAGGING:
                return cast(Tokenizer, TextTokenizer(text, layout, self.description.pad_id))
        except Exception as error:  # the library raises plain Exceptions
            why = f"the tokenizer in {self.path} cannot be read ({reason(error)})"
            raise Damaged(f"{why}; convert the model again") from None
        try:
            model |= {ROLES: self.description.symbols}
            return tokenizer_json.from_json(json.dumps(model, ensure_ascii=False).encode(), "it")
        except (UserError, ValueError) as error:
            what = f"{self.path} has a tokenizer for texts and not for words ({reason(error)})"
            raise UserError(f"{what}; use its export: bertjax predict RUN") from None

    def _check(self) -> None:
        """Compute a short and a long row, with the last piece of the vocabulary; raise Damaged unless they fit."""
        self.task().encode([dict.fromkeys(self.description.fields, "a") | {"_where": "a text"}])
        longest = min(self.max_tokens, _CHECKED_TOKENS)
        tokens = np.append(self.tokenizer.cls_id, np.full(longest, self.tokenizer.vocab_size - 1))
        outputs, _ = self._computed(tokens, np.zeros_like(tokens), np.array([1, longest]))
        task = self.description.task
        width = {REGRESSION: 1, EMBEDDING: outputs.shape[-1]}.get(task, len(self.description.labels))
        if list(outputs.shape) != (shape := [2, *[longest] * (task == TAGGING), width]):
            raise self._damaged(f"its output has the shape {list(outputs.shape)} for 2 texts, and not {shape}")
        if not np.isfinite(outputs).all():
            raise self._damaged("its outputs are not finite")

    def _damaged(self, why: str) -> Damaged:
        return Damaged(f"the metadata of {self.path} does not fit its model ({why}); convert the model again")

    @functools.cached_property
    def _task(self) -> "OnnxTask":
        return OnnxTask(self)

    def task(self, **options: Any) -> "OnnxTask":
        return OnnxTask(self, **options) if options else self._task  # a server answers many requests of one text

    def engine(self, pipeline: Any) -> "OnnxModel":
        return self

    def buckets(self, lengths: np.ndarray, longest: int) -> list[Bucket]:
        """Return rows to compute together, the shortest first; each call has the length of its longest."""
        order, first, buckets = np.argsort(lengths, kind="stable"), 0, []
        for last, number in enumerate(order):
            count, length = last - first + 1, lengths[number]
            if count > 1 and (
                count * length > _MOST_POSITIONS or length > _LONGEST_TO_SHORTEST * lengths[order[first]]
            ):
                buckets.append(order[first:last])
                first = last
        return [Bucket(int(lengths[own[-1]]), len(own), own) for own in (*buckets, order[first:]) if len(own)]

    def __call__(self, ragged: Ragged, bucket: Bucket) -> dict[str, Output]:
        outputs, mask_BT = self._computed(ragged.tokens, ragged.segments, ragged.lengths)
        name, values = outputs_of(self.description, outputs)
        is_of_tokens = self.description.task == TAGGING
        return {name: Output(values[mask_BT] if is_of_tokens else values, per="token" if is_of_tokens else "example")}

    def _computed(
        self, tokens: np.ndarray, segments: np.ndarray, lengths_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the output of the file, float32 [B, ...] or [B, T, ...], and a mask of the tokens, [B, T].

        Args:
          tokens, segments: of all rows, one after the other.
          lengths_B: tokens of each row; they are padded to the longest.
        """
        columns, padding_B = np.arange(lengths_B.max()), lengths_B.max() - lengths_B
        is_left = self.description.pads_left
        mask_BT = columns >= padding_B[:, None] if is_left else columns < lengths_B[:, None]
        inputs = {name: mask_BT.astype(np.int64) for name in self._inputs}
        for name, pad, values in ((IDS, self.description.pad_id, tokens), (SEGMENTS, 0, segments * self._has_segments)):
            if name in inputs:
                inputs[name] = np.full(mask_BT.shape, pad)
                inputs[name][mask_BT] = values
        try:
            [outputs] = self._session.run([self._output], inputs)
        except Exception as error:  # its classes have no common base, and are not public
            rows, seq_len = mask_BT.shape
            raise self._damaged(f"{rows} texts of {seq_len} tokens: {reason(error)}") from None
        if self._output == _HIDDEN:  # the mean over all tokens, as `predict --do=embed`
            weights_BT1 = mask_BT[..., None].astype(np.float32)
            outputs = (outputs * weights_BT1).sum(axis=1) / weights_BT1.sum(axis=1)
        return outputs, mask_BT


def outputs_of(description: Description, outputs: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the output of a file as the one that the host side of its objective reads, with its name."""
    return _TASKS[description.task][1](description, outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxTask(TaskPipeline):
    """Answers of an ONNX file."""

    def __post_init__(self):
        super().__post_init__()
        description = self.model.description
        for name, value in (("threshold", self.threshold), ("top", self.top or None)):
            if value is not None and description.task not in (CLASSIFICATION, MULTI_LABEL):
                raise UserError(f"{name}={value:g} has no effect on the task {description.task!r}; leave it out")
        if self.threshold is not None:
            check(dataclasses.replace(description, threshold=self.threshold))

    @functools.cached_property
    def examples(self) -> LabeledFormat:
        return self.model.description.with_columns(dict(self.columns))

    @functools.cached_property
    def objective(self) -> Host:
        own = self.model.description
        threshold = own.threshold if self.threshold is None else self.threshold
        settings = {} if threshold is None else {"threshold": threshold}
        return _TASKS[own.task][0]().copy_with(classes=own.labels, **settings)

    @property
    def is_readable(self) -> bool:
        return self.model.description.task != EMBEDDING

    @property
    def array(self) -> str:
        return "embedding" if self.model.description.task == EMBEDDING else ""

    @functools.cached_property
    def seq_len(self) -> int:
        return self.model.max_tokens


def softmax(logits_MC: np.ndarray) -> np.ndarray:
    """Return probabilities over the last axis, float64: differences of float32 logits keep all of their digits."""
    shifted_MC = logits_MC.astype(np.float64)
    shifted_MC = np.exp(shifted_MC - shifted_MC.max(axis=-1, keepdims=True))  # the largest power is 1: no overflow
    return shifted_MC / shifted_MC.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), float64, without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))


def _number(own: Description, logits_M1: np.ndarray) -> np.ndarray:
    return sigmoid(logits_M1[:, 0]) if own.activation == "sigmoid" else logits_M1[:, 0].astype(np.float64)


# {task: (its host side, function from the output of a file to the one that the host side reads, with its name)}
_TASKS: dict[str, tuple[type[Host], Callable[[Description, np.ndarray], tuple[str, np.ndarray]]]] = {
    CLASSIFICATION: (answers.ClassAnswers, lambda own, logits: ("probabilities", softmax(logits))),
    MULTI_LABEL: (answers.SetAnswers, lambda own, logits: ("probabilities", sigmoid(logits))),
    REGRESSION: (answers.NumberAnswers, lambda own, logits: ("number", _number(own, logits))),
    EMBEDDING: (answers.EmbeddingAnswers, lambda own, vectors: ("embedding", vectors)),
    TAGGING: (answers.TagAnswers, lambda own, logits: ("guesses", logits.argmax(axis=-1))),
}


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


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_thread_tokenizers() -> None:
    """Keep `tokenizers` from starting threads of its own, which would compete with those that compute."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


Columns = Mapping[str, str | int]


def read(description: Description, path: str, columns: Columns = {}) -> tuple[list[Record], np.ndarray]:  # noqa: B006
    """Return the records of a labeled file, and their labels: class numbers, multi-hot sets or numbers.

    Args:
      description: the model.
      path: the file.
      columns: {setting of the examples: column in the file}, if they differ from those of the training file.

    Raises:
      UserError: the file cannot be read, has a label that the model does not know, or the model predicts no labels.
    """
    kind = description.examples.get("kind", "labeled_text")
    if description.task == EMBEDDING:
        raise UserError("the model computes embeddings, which a labeled file does not score; name a classifier")
    if kind not in KINDS or description.task == TAGGING:
        remedy = "score that: bertjax evaluate RUN"
        raise UserError(
            f"the model was trained on examples.kind={kind!r}, on whose files only its export is scored; {remedy}"
        )
    examples = cast(LabeledText, description.with_columns(columns))
    records = read_labeled(examples, path, description.labels)
    return records, examples.label_numbers(records, description.labels)


def score(model: OnnxModel, path: str, columns: Columns = {}, per_class: bool = False) -> dict[str, Any]:  # noqa: B006
    """Score a model on a labeled file.

    Args:
      model: the model.
      path: a .csv, .tsv, .jsonl or .json file, as for `bertjax evaluate`.
      columns: see `read`.
      per_class: whether to return scores by class as well.

    Returns:
      {`eval`: {metric: value}, `baseline`: {metric: value}, `records`: number of records, `cut`: number of texts that
      were cut}, and on request `classes`: {`heldout`: see `answers.scores_by_class`}, nested as for an export.

    Raises:
      UserError: see `read`.
    """
    is_class, classes = model.description.task == CLASSIFICATION, model.description.labels
    if per_class and not is_class:
        raise UserError(
            f"--per-class has no effect on {model.path}, which does not predict one class for each record; leave it out"
        )
    records, labels = read(model.description, path, columns)
    pipeline = model.task(columns=tuple(columns.items()))
    examples, objective = pipeline.encode_labeled(records), pipeline.objective
    outputs = run(model, pipeline, examples)
    by_record = objective.scores(outputs, examples.ragged, records)
    scores = {name: float(np.mean([value for _, value, _ in values])) for name, values in by_record.items()}
    # The weights have the temperature in them.
    scores |= objective.copy_with(temperature=1.0).score(outputs, examples.ragged, records)
    figures: dict[str, Any] = {
        "eval": {name: value for name, value in scores.items() if name not in _LEFT_OUT},
        "baseline": {"majority_accuracy": float(np.bincount(labels).max() / len(labels))} if is_class else {},
        "records": len(records),
        "cut": sum(examples.notes.values()),
    }
    if per_class:
        confusion_CC = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(confusion_CC, (labels, outputs["probabilities"].argmax(axis=-1)), 1)
        figures["classes"] = {"heldout": answers.scores_by_class(classes, confusion_CC)}
    return figures
