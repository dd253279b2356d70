"""The description that an ONNX file has of itself, with which it answers without its export (`bertjax.serving`)."""

import json
from pathlib import Path
from typing import Any

from bertjax.config.config import from_dict
from bertjax.config.export import Export
from bertjax.interop import sentence_transformers, task_heads
from bertjax.interop.tokenizers import MODEL, load_json
from bertjax.serving.description import DESCRIPTION, EMBEDDING, TOKENIZER, Description

# Settings of labeled files that the description keeps. The paths of the training files stay out of it.
_COLUMNS = ("kind", "text", "pair", "label", "quoted", "separator", "label_columns")


def description_of(export: Export) -> Description:
    """Return the description of a model.

    Raises:
      UserError: the objective of a fine-tuned head is a user's own.
    """
    tokenizer, longest = export.tokenizer, export.encoder.max_positions
    term = next((term for term in task_heads.TERMS if term in export.params.get("heads", {})), "")
    if not term or sentence_transformers.is_embedder(export.settings):
        limit = min(longest, export.max_tokens or longest)
        return Description(EMBEDDING, limit, tokenizer.pad_id, pads_left=tokenizer.cls_last)
    objective, examples = task_heads.objective_of(export.settings, term), from_dict(export.read_settings).task.examples
    return Description(
        task=term,
        max_tokens=examples.longest(longest),
        pad_id=tokenizer.pad_id,
        pads_left=tokenizer.cls_last,
        labels=tuple(objective.get("classes", ())),
        examples={name: getattr(examples, name) for name in _COLUMNS if hasattr(examples, name)},
        threshold=objective.get("threshold"),
        activation=objective.get("activation", "identity"),
    )


def attach(path: Path, export: Export, folder: Path) -> None:
    """Add the description and the tokenizer to an ONNX file.

    Args:
      path: the file; weights beside it stay as they are.
      export: the model.
      folder: a folder of transformers with its `tokenizer.json`.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    tokenizer = json.dumps(_tokenizer(export, folder), ensure_ascii=False)
    onnx.helper.set_model_props(model, {DESCRIPTION: description_of(export).to_json(), TOKENIZER: tokenizer})
    onnx.save(model, path)


def _tokenizer(export: Export, folder: Path) -> dict[str, Any]:
    """Return the `tokenizer.json` in which exactly the symbols that a text may spell out are marked special.

    A reader that takes special symbols for text, as `bertjax.serving` does, then splits every text as bertjax does.
    """
    description = load_json(folder / MODEL)
    # SentencePiece reads every symbol of a text as text.
    symbols = getattr(export.tokenizer, "text_symbols", None)
    if symbols is not None:
        for token in description.get("added_tokens") or []:
            token["special"] = token["content"] in symbols
    return description
