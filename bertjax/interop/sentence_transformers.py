"""Models in the layout of sentence-transformers: an encoder, its pooling, then a normalization or a linear classifier.

`modules.json` lists the modules in order; each has a folder with its settings. We read the layouts of versions 0 to 6
and write the layout of version 5. Modules and settings that `bertjax predict --do=embed` does not compute are refused
by name, or noted if only the encoder is converted.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.config.export import Export
from bertjax.interop import weights
from bertjax.interop.foreign_settings import notes_of_unknown, unusual
from bertjax.interop.names import ENCODER_ONLY
from bertjax.interop.task_heads import MEAN, ON_EXAMPLES, first_objective
from bertjax.interop.tokenizers import load_if_there, load_json
from bertjax.models.config import EncoderConfig
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, quoted, shorten

MODULES = "modules.json"
_POOLING = "1_Pooling"
_MEAN = "pooling_mode_mean_tokens"
_MODES = ("pooling_mode_cls_token", _MEAN, "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens")
# Module types by their last component; the first versions had one class per family.
_ENCODERS = (
    *("Transformer", "BERT", "RoBERTa", "DistilBERT", "ALBERT", "XLNet", "XLMRoBERTa", "CamemBERT"),
    *("MobileBERT", "Electra"),
)
_COMPUTED = ("Pooling", "Normalize", "Dropout")
# Module types outside of this package are code that comes with the model.
_PACKAGE = "sentence_transformers."
_ENCODER_FILES = "sentence_*_config.json"  # the first versions had one name per family
_PROMPTS = "config_sentence_transformers.json"
# Settings of encoder, pooling and prompts that are read or change nothing, and {key: values that bertjax follows}. Keys
# that are not listed give a note.
_ENCODER_READ = frozenset({"max_seq_length", "do_lower_case", "unpad_inputs", "tokenizer_name_or_path"})
_ENCODER_FOLLOWED = {
    "transformer_task": ("feature-extraction", "sequence-classification"),
    "modality_config": tuple(
        {"text": {"method": "forward", "method_output_name": name}}
        for name in ("last_hidden_state", ["last_hidden_state"], "logits")
    ),
    "module_output_name": ("token_embeddings", "scores"),
    **dict.fromkeys(("model_args", "config_args", "tokenizer_args", "processing_kwargs"), ()),
    **dict.fromkeys(("query_length", "document_length"), ()),
    "query_expansion": (False,),
}
_POOLING_FOLLOWED = {"include_prompt": (True,)}
_PROMPTS_READ = frozenset("__version__ model_type similarity_fn_name prompts default_prompt_name activation_fn".split())
_PROMPTS_FOLLOWED = {"truncate_dim": ()}


class Embedder(NamedTuple):
    """Settings of a sentence-transformers folder that concern its encoder.

    Attributes:
      folder: the encoder's folder.
      is_embedder: True for an embedder, False for a plain encoder or a cross-encoder (version 6 has one layout for
        both).
      activation: function that a cross-encoder applies to its logits; empty if the folder does not name it.
      max_tokens: maximum tokens per text as the folder has it, special tokens included; 0 for the encoder's own.
      lowercase: whether texts are lowercased before tokenization.
      is_normalized: whether embeddings are scaled to length 1.
      notes: differences to `bertjax predict --do=embed`, one line each.
    """

    folder: Path
    is_embedder: bool = False
    activation: str = ""
    max_tokens: Any = 0
    lowercase: bool = False
    is_normalized: bool = False
    notes: tuple[str, ...] = ()


def classifier_on_mean(export: Export) -> str:
    """Return the name of the model's head if it is the only one, linear, and on the mean of the hidden states.

    Most classes of transformers have no such head, and sentence-transformers has its parts. Empty for another model.
    """
    objective, heads = first_objective(export.settings), export.params.get("heads", {})
    term = str(objective.get("kind", ""))
    if heads.keys() != {term} or term not in ON_EXAMPLES or heads[term].keys() != {"kernel", "bias"}:
        return ""
    return term if objective.get("pooling") == MEAN and objective.get("reads", "last") == "last" else ""


def write(
    folder: Path,
    encoder: EncoderConfig,
    max_tokens: int,
    normalize: bool = False,
    head: Mapping[str, np.ndarray] | None = None,
    activation: str = "",
) -> None:
    """Write `modules.json` and the modules' settings beside an encoder: mean pooling, [CLS] and [SEP] included.

    Args:
      folder: the encoder's folder.
      encoder: its architecture.
      max_tokens: maximum tokens per text, special tokens included.
      normalize: whether embeddings are scaled to length 1.
      head: `kernel` [D, C] and `bias` [C] of a linear layer on the mean, float32; its outputs take the place of the
        embedding. None for no such layer.
      activation: class of PyTorch that is applied to its outputs.
    """
    kinds = ["Transformer", "Pooling", *["Normalize"] * normalize, *["Dense"] * (head is not None)]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    pooling = {"word_embedding_dimension": encoder.width} | {mode: mode == _MEAN for mode in _MODES}
    files = {
        f"{_POOLING}/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": max_tokens, "do_lower_case": False},
        MODULES: modules,
    }
    if head is not None:
        features = dict(zip(("in_features", "out_features"), head["kernel"].shape))
        files[f"{modules[-1]['path']}/config.json"] = features | {"bias": True, "activation_function": activation}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if head is not None:
        tensors = {"linear.weight": np.ascontiguousarray(head["kernel"].T), "linear.bias": head["bias"]}
        weights.write(folder / modules[-1]["path"] / weights.SAFETENSORS, tensors)


def read(folder: Path, encoder_only: bool = False) -> Embedder:
    """Read the modules of a folder; a folder without `modules.json` is a plain encoder.

    Args:
      folder: the model.
      encoder_only: whether modules after the encoder give a note instead of an error.

    Raises:
      UserError: bertjax cannot compute its embeddings, or a file is damaged.
    """
    if not (folder / MODULES).exists():
        return Embedder(folder)
    modules = untrusted.read_json(folder / MODULES)
    # The library runs modules in the order of `idx`, not of the file.
    modules = sorted(modules, key=lambda module: module.get("idx", 0))
    types = [str(module["type"]) for module in modules]
    kinds = [name.rpartition(".")[2] for name in types]
    paths = [_inside(folder, module.get("path", "")) for module in modules]
    if not kinds or kinds[0] not in _ENCODERS:
        raise UserError(f"{folder / MODULES} starts with {quoted(kinds[:1])}; bertjax reads a Transformer")
    encoder = paths[0]
    left_out = [f"code of its own ({quoted(name)})" for name in types if not name.startswith(_PACKAGE)]
    for kind, path in zip(kinds[1:], paths[1:], strict=True):
        if kind not in _COMPUTED:
            left_out.append(f"the module {quoted(path.name)} ({quoted(kind)})")
    notes = []
    after = [kind for kind in kinds[1:] if kind in ("Pooling", "Normalize")]
    if after not in ([], ["Pooling"], ["Pooling", "Normalize"]):
        left_out.append(f"the modules {' and '.join(after)} in this order")
    is_normalized = after[-1:] == ["Normalize"] and not encoder_only
    if "Pooling" in kinds:
        path = paths[kinds.index("Pooling")] / "config.json"
        if not path.exists() and not encoder_only:
            raise UserError(
                f"{path}, which sets how embeddings are pooled, does not exist; download it beside the others"
            )
        pooling = load_if_there(path)
        left_out += [f"{odd} of its pooling" for odd in unusual(pooling, _POOLING_FOLLOWED)]
        if (modes := _modes(pooling)) != ["mean"]:
            is_normalized = False  # of no use to other vectors
            notes.append(
                f"sentence-transformers pools this model by {shorten(list(map(quoted, modes)))}, and bertjax predict "
                "--do=embed takes the mean"
            )
    if is_normalized:
        notes.append("embeddings are scaled to length 1, as in sentence-transformers")
    # Of several, BERT's comes first, as in sentence-transformers.
    file = min(encoder.glob(_ENCODER_FILES), key=lambda path: ("_bert_" not in path.name, path.name), default=None)
    settings, about = load_json(file) if file else {}, load_if_there(folder / _PROMPTS)
    name = file.name if file else ""
    left_out += [f"{odd} of {name}" for odd in unusual(settings, _ENCODER_FOLLOWED)]
    left_out += [f"{odd} of {_PROMPTS}" for odd in unusual(about, _PROMPTS_FOLLOWED)]
    prompts = {name: text for name, text in (about.get("prompts") or {}).items() if text}
    if (default := about.get("default_prompt_name")) in prompts:
        left_out.append(f"the prompt {quoted(prompts[default])} before each text")
    elif prompts:
        named = shorten([f"{quoted(name)}: {quoted(text)}" for name, text in prompts.items()])
        notes.append(f"the model has prompts ({named}); write them before the texts that are embedded")
    if left_out and not encoder_only:
        raise UserError(
            f"{folder} embeds with {' and '.join(left_out)}, which bertjax does not compute; {ENCODER_ONLY}"
        )
    notes += [f"not converted: {what}" for what in left_out]
    notes += notes_of_unknown(name, settings, _ENCODER_READ | _ENCODER_FOLLOWED.keys())
    notes += notes_of_unknown(_PROMPTS, about, _PROMPTS_READ | _PROMPTS_FOLLOWED.keys())
    is_embedder, activation = about.get("model_type") != "CrossEncoder", str(about.get("activation_fn") or "")
    lowercase = bool(settings.get("do_lower_case"))
    limit = settings.get("max_seq_length") or 0
    return Embedder(encoder, is_embedder, activation, limit, lowercase, is_normalized, tuple(notes))


def _inside(folder: Path, path: str) -> Path:
    """Return a module's folder; an untrusted `modules.json` must not lead out of the model's folder."""
    if not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
        raise UserError(f"{folder / MODULES} has path={quoted(path)}; the folder of a module is inside of the model's")
    return folder / path


def _modes(pooling: Mapping[str, Any]) -> list[str]:
    """Return the names of a pooling's modes: version 6 lists names, older versions have a flag per mode."""
    if named := pooling.get("pooling_mode"):
        return [str(mode) for mode in ([named] if isinstance(named, str) else named)]
    flags = [mode for mode, is_used in pooling.items() if mode.startswith("pooling_mode_") and is_used]
    return [mode.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for mode in flags] or [
        "mean"
    ]
