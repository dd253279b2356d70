"""What an ONNX file says about its model, in its metadata: the task, the labels, the columns, the lengths.

The metadata of an ONNX file is a list of texts by name (`metadata_props` in onnx.proto). Ours has two: this description
as JSON, and the `tokenizer.json` of Hugging Face's `tokenizers`. A copy of the file alone can then answer.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

from bertjax.runtime.errors import Damaged, UserError, check_format, quoted, reason

# Names in the metadata.
DESCRIPTION, TOKENIZER = "bertjax", "tokenizer.json"
FORMAT = 1

CLASSIFICATION, MULTI_LABEL, REGRESSION, EMBEDDING = "classification", "multi_label", "regression", "embedding"
# Tasks whose answers `bertjax.serving.model` computes. Other files have hidden states or logits for each token.
TASKS = (CLASSIFICATION, MULTI_LABEL, REGRESSION, EMBEDDING)
# No encoder reads as many tokens, and no vocabulary has as many pieces.
_MOST_TOKENS, _MOST_PIECES = 1 << 20, 1 << 31
_COLUMN_TYPES: dict[str, type] = {
    **dict.fromkeys(("kind", "text", "pair", "label", "separator"), str),
    "quoted": bool,
    "label_columns": list,
}


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
    """

    task: str
    max_tokens: int
    pad_id: int
    pads_left: bool = False
    labels: tuple[str, ...] = ()
    examples: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    threshold: float | None = None
    activation: str = "identity"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the text columns: one for single texts, two for pairs."""
        text, pair = self.examples.get("text", "text"), self.examples.get("pair", "")
        return (text, pair) if pair else (text,)

    def with_columns(self, columns: Mapping[str, str | int]) -> Self:
        """Return a copy that reads a file with other columns.

        Args:
          columns: {setting of the examples: column}, from the flags of a command.

        Raises:
          UserError: the model reads no pairs.
        """
        if "pair" in columns and len(self.fields) == 1:
            raise UserError(f"--pair={columns['pair']} has no effect on a model of single texts; remove it")
        examples = {**self.examples, **columns}
        if "label" in columns:  # one column with the names of the classes, in place of a column for each class
            examples.pop("label_columns", None)
        return dataclasses.replace(self, examples=examples)

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
        try:
            values = json.loads(metadata[DESCRIPTION])
            check_format(path, values.pop("format", None), FORMAT, remedy="convert the model again")
            read = cls(**values | {"labels": tuple(values.get("labels", ()))})
            read._check()
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"the metadata of {path} is damaged ({reason(error)}); convert the model again") from None
        return read

    def _check(self) -> None:
        """Raise ValueError unless the values can be used."""
        kinds = {"task": str, "max_tokens": int, "pad_id": int, "pads_left": bool, "examples": dict, "activation": str}
        for name, kind in kinds.items():
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"{name}={quoted(getattr(self, name))} is not of type {kind.__name__}")
        if not (0 < self.max_tokens <= _MOST_TOKENS and 0 <= self.pad_id < _MOST_PIECES):
            raise ValueError("max_tokens or pad_id is out of range")
        if self.threshold is not None and not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold={self.threshold} is not between 0 and 1")
        if not all(isinstance(label, str) for label in self.labels) or not all(map(_is_column, self.fields)):
            raise ValueError("labels or columns are not texts")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two labels have one name")
        for name, kind in _COLUMN_TYPES.items():
            if type(self.examples.get(name, kind())) is not kind:
                raise ValueError(f"examples.{name}={quoted(self.examples[name])} is not of type {kind.__name__}")
        if not all(map(_is_column, self.examples.get("label_columns", ()))):
            raise ValueError("examples.label_columns are not texts")
        if self.task in (CLASSIFICATION, MULTI_LABEL) and not self.labels:
            raise ValueError("it has no labels")


def _is_column(name: Any) -> bool:
    return isinstance(name, str) and bool(name)
