"""What an ONNX file says about its model, in its metadata: the task, the labels, the columns, the lengths.

The metadata of an ONNX file is a list of texts by name (`metadata_props` in onnx.proto). Ours has two: this description
as JSON, and the `tokenizer.json` of Hugging Face's `tokenizers`. A copy of the file alone can then answer.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, Self

from bertjax.config import typed
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime.errors import Damaged, UserError, check_format, quoted, reason
from bertjax.runtime.setting import check, setting

# Names in the metadata.
DESCRIPTION, TOKENIZER = "bertjax", "tokenizer.json"
FORMAT = 1

CLASSIFICATION, MULTI_LABEL, REGRESSION, EMBEDDING = "classification", "multi_label", "regression", "embedding"
TAGGING = "tagging"
# Tasks whose answers `bertjax.inference.onnx` computes. Other files have hidden states or other logits for each token.
TASKS = (CLASSIFICATION, MULTI_LABEL, REGRESSION, EMBEDDING, TAGGING)
# No encoder reads as many tokens, and no vocabulary has as many pieces.
_MOST_TOKENS, _MOST_PIECES = 1 << 20, 1 << 31
# Formats whose files are read.
KINDS: dict[str, type[LabeledFormat]] = {"labeled_text": LabeledText, "label_sets": LabelSets, "tagged": Tagged}


@dataclasses.dataclass(frozen=True)
class Description:
    """A model's description.

    Attributes:
      task: one of `TASKS`, or the name of another head, which only the export can use; empty without a head.
      max_tokens: maximum tokens per text or pair, special tokens included.
      pad_id: id at padding.
      pads_left: whether padding comes first, as XLNet needs it.
      labels: class names, in the order of the logits.
      examples: settings of the labeled files: `kind` and the names of their columns.
      threshold: smallest probability of a class that applies (`multi_label`) or of an accepted answer; None for none.
      activation: function from the logit to the number: `identity` or `sigmoid` (regression only).
      symbols: the tokenizer's piece for each symbol such as `[UNK]` (tagging only).
    """

    task: str
    max_tokens: int = setting(dataclasses.MISSING, least=1, most=_MOST_TOKENS)
    pad_id: int = setting(dataclasses.MISSING, least=0, most=_MOST_PIECES)
    pads_left: bool = False
    labels: tuple[str, ...] = ()
    examples: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    threshold: float | None = setting(None, least=0, most=1)
    activation: str = "identity"
    symbols: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def format(self) -> LabeledFormat:
        """The format of labeled files. Of a format of a user's own it has the texts only."""
        kind = KINDS.get(self.examples.get("kind", ""), LabeledText)
        known = {field.name for field in dataclasses.fields(kind)}
        own = {"text": "text", **self.examples}
        settings = {name: value for name, value in own.items() if name in known}
        return typed.build(kind, settings, "examples", {})

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the text columns: one for single texts, two for pairs."""
        return self.format.inputs

    def with_columns(self, columns: Mapping[str, str | int]) -> LabeledFormat:
        """Return the format of a file with other columns.

        Args:
          columns: {setting of the examples: column}, from the flags of a command.

        Raises:
          UserError: the model reads no pairs.
        """
        if "pair" in columns and len(self.fields) == 1:
            raise UserError(f"--pair={columns['pair']} has no effect on a model of single texts; remove it")
        return self.format.with_columns(columns)

    def to_json(self) -> str:
        """Return the metadata entry."""
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str], path: str) -> Self:
        """Read the metadata of a file.

        Args:
          metadata: {name: text}.
          path: the file, for messages.

        Raises:
          UserError: bertjax did not write the file, or wrote another format.
          Damaged: the description is not valid.
        """
        if missing := [name for name in (DESCRIPTION, TOKENIZER) if name not in metadata]:
            raise UserError(
                f"{path} has no {missing[0]} in its metadata; write it with bertjax convert --to=MODEL.onnx"
            )
        remedy = "convert the model again"
        try:
            values = json.loads(metadata[DESCRIPTION])
            if (version := values.pop("format", None)) == FORMAT:  # others may have other entries
                read = cls(**values | {"labels": tuple(values.get("labels", ()))})
                read._check()
        except (UserError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"the metadata of {path} is damaged ({reason(error)}); {remedy}") from None
        check_format(path, version, FORMAT, remedy=remedy)
        return read  # pyrefly: ignore[unbound-name] - `check_format` raises for other versions

    def _check(self) -> None:
        """Raise ValueError or UserError unless the values can be used."""
        kinds = {"task": str, "max_tokens": int, "pad_id": int, "pads_left": bool, "examples": dict, "activation": str}
        kinds["symbols"] = dict
        for name, kind in kinds.items():
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"{name}={quoted(getattr(self, name))} is not of type {kind.__name__}")
        check(self)
        _ = self.format
        if not all(isinstance(label, str) for label in self.labels) or len(set(self.labels)) < len(self.labels):
            raise ValueError("labels are not different texts")
        if self.task in (CLASSIFICATION, MULTI_LABEL, TAGGING) and not self.labels:
            raise ValueError("it has no labels")
