"""The description that an ONNX file has of itself, with which it answers without its export (`bertjax.serving`)."""

import json
from pathlib import Path
from typing import Any

from bertjax.config.config import from_dict
from bertjax.config.export import Export
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.interop import task_heads
from bertjax.interop.tokenizers import MODEL, load_json
from bertjax.serving.description import DESCRIPTION, EMBEDDING, TOKENIZER, Description

# Settings of labeled files that the description keeps. The paths of the training files stay out of it.
_COLUMNS = ("kind", "text", "pair", "label", "quoted", "separator", "label_columns")


def description_of(export: Export) -> Description:
    """Return the description of a model.

    Raises:
      UserError: the objective of a fine-tuned head is a user's own.
    """
    tokenizer, longest = export.tokenizer, export.lengths.example
    term = next((term for term in task_heads.TERMS if term in export.params.get("heads", {})), "")
    if not term or export.is_embedder:
        return Description(EMBEDDING, longest, tokenizer.pad_id, pads_left=tokenizer.cls_last)
    objective, examples = task_heads.objective_of(export.settings, term), from_dict(export.read_settings).task.examples
    return Description(
        task=term,
        max_tokens=longest,
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
    tokenizer = json.dumps(tokenizer_of(export, folder), ensure_ascii=False)
    onnx.helper.set_model_props(model, {DESCRIPTION: description_of(export).to_json(), TOKENIZER: tokenizer})
    onnx.save(model, path)


def tokenizer_of(export: Export, folder: Path) -> dict[str, Any]:
    """Return a `tokenizer.json` that splits every text as bertjax does, also texts that spell out special symbols.

    Its reader must take special symbols for text, as `bertjax.serving` does. That of the folder does not suffice:
    transformers takes them for symbols.
    """
    description = load_json(folder / MODEL)
    if isinstance(export.tokenizer, HuggingFaceTokenizer):
        return export.tokenizer.library_description() | {"post_processor": description["post_processor"]}
    # The library's Unigram matches every piece of its vocabulary. It never sees a space, which its splitter replaces,
    # so a name with one matches nothing. A low score would change that of unknown characters, which depends on the
    # lowest. The template of [CLS] and [SEP] has their ids.
    symbols = {token["content"] for token in description["added_tokens"]}
    model = description["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [[f"{piece} " if piece in symbols else piece, score] for piece, score in model["vocab"]]
    return description | {"added_tokens": []}
