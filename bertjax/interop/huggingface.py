"""A model's folder as transformers reads and writes it."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.config import from_dict
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.interop import bert, card, names, tokenizers, weights
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig
from bertjax.training.config import Stage

CONFIG = "config.json"


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face checkpoint, of whatever architecture."""
    try:
        found = json.loads((folder / CONFIG).read_bytes())
    except OSError:
        return False
    except ValueError:  # of a workdir or of a checkpoint, it is damaged
        return not (folder / "checkpoints").exists()
    return isinstance(found, dict) and "format_version" not in found  # a workdir has a config.json of its own


def write(folder: os.PathLike, export: Export) -> list[str]:
    """Writes a folder that `AutoModel` and `AutoTokenizer` open; `config.json`, without which they do not, comes last.

    Returns:
      What there is to say of it, a line each.

    Raises:
      UserError: the model is no BERT, or has heads or pieces of a tokenizer that Hugging Face's files cannot hold.
    """
    bert.check(export.encoder)
    folder = Path(folder)
    flat = flatten_dict(vocabulary.cut(export.params, export.encoder), sep="/")
    parts, notes = bert.parts_of(flat, "ours"), []
    if bert.MLM in parts and bert.NSP not in parts and bert.POOLER in parts:
        notes.append("left out: the pooler, which no head reads and BertForMaskedLM has not")
        flat = {path: leaf for path, leaf in flat.items() if not path.startswith("encoder/pooler/")}
        parts -= {bert.POOLER}
    tensors = names.to_tensors(flat, bert.names(parts))
    architecture = bert.ARCHITECTURES[parts]
    if architecture == bert.BARE:
        tensors = {name.removeprefix(bert.ROOT): tensor for name, tensor in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    tokenizers.write(folder, export.tokenizer, export.encoder.max_positions)
    weights.write(folder / weights.SAFETENSORS, tensors)
    (folder / card.FILE).write_text(card.text(export, architecture), encoding="utf-8")
    draft = folder / f".{CONFIG}.draft"
    settings = bert.settings(export.encoder, architecture, export.tokenizer.pad_id)
    draft.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / CONFIG)
    return [f"architecture {architecture}, {sum(tensor.size for tensor in tensors.values()):,} parameters", *notes]


def read(folder: os.PathLike) -> tuple[Export, list[str]]:
    """Reads a checkpoint of transformers: encoder, the heads that it has, tokenizer.

    Without heads its objective is masked language modelling, which its run would go on with.

    Returns:
      It, and what there is to say of it, a line each.

    Raises:
      UserError: it is damaged, no BERT, or a BERT that bertjax's encoder does not compute.
    """
    folder = Path(folder)
    encoder = bert.encoder_config(tokenizers.load_json(folder / CONFIG))
    found = bert.canonical(weights.read(folder))
    parts = bert.parts_of(found, "theirs")
    if parts not in bert.ARCHITECTURES and parts != {bert.POOLER, bert.MLM}:
        raise UserError(
            f"{folder} holds {', '.join(sorted(parts))} beside its encoder; bertjax converts BertModel, "
            "BertForMaskedLM and BertForPreTraining"
        )
    flat = names.to_params(found, bert.names(parts), bert.shapes(encoder))
    tokenizer = tokenizers.read(folder)
    _check_vocabulary(folder, encoder, tokenizer)
    objective = "bert" if bert.NSP in parts else "mlm"
    config = from_dict(
        {
            "model": _plain(encoder),
            "tasks": {objective: {"objective": {"kind": objective}}},
            "stages": [{"seq_len": min(Stage.seq_len, encoder.max_positions)}],
        }
    )
    encoder = config.encoder(encoder.vocab_size, backend="cpu")
    params = vocabulary.pad(unflatten_dict(flat, sep="/"), encoder)
    notes = [f"parts: encoder{''.join(f', {part}' for part in bert.PARTS if part in parts)}"]
    if bert.POOLER not in parts:
        notes.append("no pooler: pooled_BND is None")
    return Export(config, encoder, params, tokenizer, {}), notes


def _check_vocabulary(folder: Path, encoder: EncoderConfig, tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size != encoder.vocab_size:
        raise UserError(
            f"{folder} has {encoder.vocab_size} rows of word embeddings and a tokenizer of {tokenizer.vocab_size} ids; "
            "make them equal with resize_token_embeddings of transformers"
        )


def _plain(encoder: EncoderConfig) -> dict[str, Any]:
    settings = dataclasses.asdict(encoder)
    del settings["execution"]
    return settings
