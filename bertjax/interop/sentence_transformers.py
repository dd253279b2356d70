"""Sentence embeddings as the sentence-transformers library stores them: an encoder, its pooling, a normalization.

The layout is that of sentence-transformers 5: `modules.json` lists the modules in the order of their computation, and
each has a folder with its settings. The encoder is in the folder itself.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax import untrusted
from bertjax.interop.task_heads import first_objective
from bertjax.models.config import EncoderConfig

MODULES = "modules.json"
_PREFIX = "embedding_"
# An objective that compares embeddings by anything but their cosine; the others leave their length without a meaning.
_COMPARES_LENGTHS = "embedding_classification"
_POOLING = "1_Pooling"
_MEAN = "pooling_mode_mean_tokens"
_MODES = ("pooling_mode_cls_token", _MEAN, "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens")


def is_embedder(settings: Mapping[str, Any]) -> bool:
    """Return whether the first objective of a run trains sentence embeddings."""
    return _kind(settings).startswith(_PREFIX)


def is_normalized(settings: Mapping[str, Any]) -> bool:
    """Return whether the objective of an embedder compares embeddings by their cosine only."""
    return _kind(settings) != _COMPARES_LENGTHS


def write(folder: Path, encoder: EncoderConfig, normalize: bool) -> None:
    """Write the modules beside an encoder of transformers: pooling by the mean, [CLS] and [SEP] included.

    Args:
      folder: the folder of the encoder.
      encoder: its architecture.
      normalize: whether embeddings get length 1.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
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
    (folder / _POOLING).mkdir(exist_ok=True)
    for name, content in (
        (f"{_POOLING}/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": encoder.max_positions, "do_lower_case": False}),
        (MODULES, modules),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def notes(folder: Path) -> list[str]:
    """Return a note if a folder pools in another way than `bertjax.predict --do=embed` does."""
    path = folder / _POOLING / "config.json"
    if not (folder / MODULES).exists() or not path.exists():
        return []
    modes = [mode for mode, is_used in untrusted.read_json(path).items() if mode.startswith("pooling_mode") and is_used]
    if modes == [_MEAN]:
        return []
    names = ", ".join(mode.removeprefix("pooling_mode_") for mode in modes)
    return [f"sentence-transformers pools this model by {names}, and bertjax.predict --do=embed takes the mean"]


def _kind(settings: Mapping[str, Any]) -> str:
    return str(first_objective(settings).get("kind", ""))
